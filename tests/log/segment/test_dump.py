"""`dump`: a segment file in plain words, whole, torn or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.log.values import GROUP, append, faulty, following, open_both, run
from tinymq.base.errors import StorageError
from tinymq.format.entry import Kind, NewEntry, make_entry
from tinymq.log.files.files import open_to_read
from tinymq.log.segment.dump import DumpedEnd, DumpedEntry, DumpedSegment, dump_segment, format_dumped
from tinymq.simulation.faulty_files import FaultyFiles


def filled() -> FaultyFiles:
    files = faulty()

    async def body() -> None:
        store, opened = await open_both(files)
        append(opened.log, 3, records=2)
        opened.log.append([following(opened.log, b"", kind=Kind.NOOP, term=4)])
        await store.close()

    run(body())
    return files


def segment_file(tmp_path: Path, content: bytes | None = None) -> Path:
    files = filled()
    path = tmp_path / "1.log"
    path.write_bytes(
        files.content(next(p for p in files.paths() if p.endswith(".log"))) if content is None else content
    )
    return path


def test_a_whole_segment(tmp_path: Path) -> None:
    dumped = list(dump_segment(segment_file(tmp_path)))
    assert isinstance(dumped[0], DumpedSegment)
    assert dumped[0].header.group == GROUP
    entries = [d for d in dumped if isinstance(d, DumpedEntry)]
    assert [e.header.index for e in entries] == [1, 2, 3, 4, 5]
    assert all(e.problem is None for e in entries)
    assert len(entries[1].payload) == 100
    assert isinstance(dumped[-1], DumpedEnd)
    assert (dumped[-1].entries, dumped[-1].problem) == (5, None)
    lines = [format_dumped(d) for d in dumped]
    assert "entry 2 term 1 DATA 100 bytes, offsets 0..1" in lines[2]
    assert "entry 5 term 4 NOOP 0 bytes, no records" in lines[5]
    assert "5 entries, all whole" in lines[-1]


def test_a_damaged_frame_is_reported_with_its_position(tmp_path: Path) -> None:
    path = segment_file(tmp_path)
    content = bytearray(path.read_bytes())
    entry = [d for d in dump_segment(path) if isinstance(d, DumpedEntry)][2]
    content[entry.position + 70] ^= 1
    path.write_bytes(content)
    end = list(dump_segment(path))[-1]
    assert end == DumpedEnd(entry.position, 2, "entry payload checksum mismatch")
    assert "PROBLEM after 2 entries" in format_dumped(end)


def test_a_frame_out_of_place_is_shown_with_its_problem(tmp_path: Path) -> None:
    stray = make_entry(NewEntry(77, b""), index=9, term=9, prev_crc=1, base_offset=0, append_time_us=0)
    path = segment_file(tmp_path)
    path.write_bytes(strip(path) + stray.head)
    last = [d for d in dump_segment(path) if isinstance(d, DumpedEntry)][-1]
    assert last.problem == "entry 9 after entry 5"
    assert "kind 77" in format_dumped(last)


def strip(path: Path) -> bytes:
    end = list(dump_segment(path))[-1]
    assert isinstance(end, DumpedEnd)
    return path.read_bytes()[: end.position]


@pytest.mark.parametrize("content", [b"", b"short", b"not a segment at all, but long enough to be one's header" * 2])
def test_a_file_that_is_not_a_segment_is_reported(tmp_path: Path, content: bytes) -> None:
    (end,) = dump_segment(segment_file(tmp_path, content))
    assert isinstance(end, DumpedEnd)
    assert end.problem


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        list(dump_segment(tmp_path / "nothing.log"))
    with pytest.raises(FileNotFoundError):
        open_to_read(tmp_path / "nothing.log")
