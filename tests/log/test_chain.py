"""Cold reads verify the chain: a valid frame of another history is not served as the next one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tinymq.base.errors import CorruptData
from tinymq.format.entry import Entry, Kind, NewEntry, make_entry
from tinymq.log.files.files import Files, RealFiles
from tinymq.log.segment.reads import (
    SENT_FRAME_BYTES_MIN,
    Span,
    StoredFrames,
    find_data_frames,
    read_data_frames,
    read_entries,
)

COUNT = 12
ALL_BYTES = 1 << 20
SIZES = [100, SENT_FRAME_BYTES_MIN]  # large frames are sent from their file without being read

Read = Callable[[Files, Span], bytes]


def chained(fill: bytes, size: int) -> list[Entry]:
    """COUNT entries with one record each."""
    made: list[Entry] = []
    for index in range(1, COUNT + 1):
        crc = made[-1].header.header_crc if made else 0
        made.append(
            make_entry(
                NewEntry(Kind.DATA, fill * size, record_count=1),
                index=index,
                term=1,
                prev_crc=crc,
                base_offset=index - 1,
                append_time_us=1,
            )
        )
    return made


def written(tmp_path: Path, entries: list[Entry]) -> Files:
    files = RealFiles(tmp_path)
    file = files.open("segment", create=True)
    file.write(0, [part for entry in entries for part in (entry.head, entry.payload)])
    file.close()
    return files


def to_be_sent(files: Files, span: Span) -> bytes:
    found = find_data_frames(files, span, 0, COUNT, ALL_BYTES)
    assert not isinstance(found, Entry)
    if not isinstance(found, StoredFrames):
        return bytes(found)
    return b"".join(os.pread(found.fileno(), length, position) for _, position, length in found.pieces)


READS: dict[str, Read] = {
    "entries": lambda files, span: b"".join(e.head + e.payload for e in read_entries(files, span, 1, ALL_BYTES)),
    "frames": lambda files, span: bytes(read_data_frames(files, span, 0, COUNT, ALL_BYTES)),
    "frames to be sent": to_be_sent,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", READS)
def test_frames_of_an_unbroken_chain_are_read(tmp_path: Path, how: str, size: int) -> None:
    entries = chained(b"a", size)
    read = READS[how](written(tmp_path, entries), Span("segment", 0, 1, COUNT))
    assert read == b"".join(entry.head + entry.payload for entry in entries)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("whole", range(1, COUNT))
def test_a_read_stops_at_frames_of_another_history(tmp_path: Path, how: str, whole: int, size: int) -> None:
    """Each frame is valid and has the expected index, term and offset; only the chain shows the difference. This
    happens when a disk returns the old content of a sector that was rewritten.
    """
    spliced = chained(b"a", size)[:whole] + chained(b"b", size)[whole:]
    files = written(tmp_path, spliced)
    with pytest.raises(CorruptData, match="does not follow the entry before") as caught:
        READS[how](files, Span("segment", 0, 1, COUNT))
    assert int(caught.value.detail["index"]) == whole + 1
