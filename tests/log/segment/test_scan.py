"""Frames of all sizes are read back as written: small ones from shared slabs, large ones alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tinymq.base.errors import CorruptData
from tinymq.format.entry import Entry, Kind, NewEntry, make_entry
from tinymq.log.files.files import File, RealFiles
from tinymq.log.segment.reads import Span, read_entries
from tinymq.log.segment.scan import LARGE_BYTES, SLAB_BYTES, frames

SIZES = (0, 1, 100, LARGE_BYTES - 65, LARGE_BYTES - 1, LARGE_BYTES, SLAB_BYTES - 64, SLAB_BYTES, 3 * SLAB_BYTES)


def entries(rng: random.Random, count: int) -> list[Entry]:
    made: list[Entry] = []
    for index in range(1, count + 1):
        crc = made[-1].header.header_crc if made else 0
        payload = rng.randbytes(rng.choice(SIZES))
        made.append(
            make_entry(
                NewEntry(Kind.COMMAND, payload), index=index, term=1, prev_crc=crc, base_offset=0, append_time_us=1
            )
        )
    return made


def written(files: RealFiles, made: list[Entry], zeros: int = 0) -> File:
    file = files.open("segment", create=True)
    file.truncate(0)
    file.write(0, [part for entry in made for part in (entry.head, entry.payload)] + [bytes(zeros)])
    return file


@pytest.mark.parametrize("seed", range(10))
def test_every_frame_is_read_at_its_place_up_to_the_zeros(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    made = entries(rng, 20)
    file = written(RealFiles(tmp_path), made, rng.choice((0, 10, SLAB_BYTES * 2)))
    position = 0
    for entry, frame in zip(made, frames(file, 0), strict=True):
        assert (frame.position, frame.header, frame.head) == (position, entry.header, entry.head)
        assert frame.payload == entry.payload
        position += entry.size


@pytest.mark.parametrize("seed", range(10))
def test_the_first_frame_that_is_cut_or_flipped_is_named(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    made = entries(rng, 12)
    file = written(RealFiles(tmp_path), made)
    at = rng.randrange(file.size())
    starts = [sum(entry.size for entry in made[:n]) for n in range(len(made))]
    hit = max(n for n, start in enumerate(starts) if start <= at)
    if seed % 2 and at > starts[hit]:
        file.truncate(at)
    else:
        file.write(at, [bytes([file.read(at, 1)[0] ^ 1])])
    read: list[int] = []
    with pytest.raises(CorruptData) as caught:
        read.extend(frame.position for frame in frames(file, 0))
    assert read == starts[:hit]
    assert int(caught.value.detail["position"]) == starts[hit]


@pytest.mark.parametrize("seed", range(10))
def test_entries_are_read_in_pieces_of_bounded_size(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    made = entries(rng, 20)
    files = RealFiles(tmp_path)
    written(files, made).close()
    bytes_max = rng.choice((1, 1000, LARGE_BYTES, 2 * SLAB_BYTES))
    span = Span("segment", 0, 1, len(made))
    index = 1
    while index <= len(made):
        position = sum(entry.size for entry in made[: index - 1])
        piece = read_entries(files, Span(span.path, position, index, span.last_index), index, bytes_max)
        assert piece == made[index - 1 : index - 1 + len(piece)]
        assert len(piece) == 1 or sum(entry.size for entry in piece) <= bytes_max
        following = made[index - 1 + len(piece) : index + len(piece)]
        assert not following or sum(entry.size for entry in [*piece, *following]) > bytes_max
        index += len(piece)
