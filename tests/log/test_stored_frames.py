"""Frames to send from their file: the same bytes as a read returns, and the cases that read instead."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.log.values import LIMITS, append, open_both, run
from tinymq.base.errors import CorruptData
from tinymq.format.entry import HEADER_SIZE, Kind, NewEntry, iter_entries, make_entry, parse_header
from tinymq.log import Log
from tinymq.log.files.files import RealFile, RealFiles
from tinymq.log.segment import reads
from tinymq.log.segment.reads import SENT_FRAME_BYTES_MIN, Frames, StoredFrames

SIZE = 100_000
WHOLE = SIZE + HEADER_SIZE
COUNT = 6


@pytest.fixture
def open_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[RealFile]]:
    """The open files of this test; none may be left at its end."""
    found: set[RealFile] = set()
    real_open, real_close = RealFiles.open, RealFile.close

    def opened(self: RealFiles, path: str, *, create: bool = False) -> RealFile:
        file = real_open(self, path, create=create)
        found.add(file)
        return file

    def closed(self: RealFile) -> None:
        real_close(self)
        found.discard(self)

    monkeypatch.setattr(RealFiles, "open", opened)
    monkeypatch.setattr(RealFile, "close", closed)
    yield found
    assert not found


def on_disk(tmp_path: Path, fill: Callable[[Log], object], check: Callable[[Log, Path], object]) -> None:
    """Fill a log of one segment, and run `check` once no entry is in memory, with the segment's path."""

    async def main() -> None:
        limits = replace(LIMITS, tail_cache_bytes_max=1, segment_bytes=8 << 20)
        for step in (fill, check):
            store, opened = await open_both(RealFiles(tmp_path), limits=limits)
            if step is fill:
                fill(opened.log)
                await store.writer.drain()
            else:
                (path,) = glob.glob(f"{tmp_path}/**/*.log", recursive=True)
                result = check(opened.log, Path(path))
                if hasattr(result, "__await__"):
                    await result
            await store.close()

    run(main())


def records(log: Log) -> None:
    append(log, COUNT, SIZE, records=10)


def sent(frames: Frames) -> bytes:
    """Return the bytes as sendfile would send them."""
    assert isinstance(frames, StoredFrames)
    content = b"".join(made + os.pread(frames.fileno(), length, at) for made, at, length in frames.pieces)
    assert len(content) == len(frames)
    frames.close()
    return content


@pytest.mark.parametrize("bytes_max", [1, WHOLE, 3 * WHOLE, 1 << 20])
@pytest.mark.parametrize(("offset", "end"), [(0, 60), (15, 60), (0, 31), (30, 30), (59, 60)])
def test_sent_bytes_equal_read_bytes(
    tmp_path: Path, open_files: set[RealFile], offset: int, end: int, bytes_max: int
) -> None:
    async def check(log: Log, path: Path) -> None:
        read = bytes(await log.reader.read_from_offset(offset, max(end, offset + 1), bytes_max))
        found = await log.reader.find_from_offset(offset, max(end, offset + 1), bytes_max)
        entries = [entry.header for entry in iter_entries(read)]
        assert isinstance(found, StoredFrames)
        assert found.offsets == (entries[0].base_offset, entries[-1].next_offset)
        assert sent(found) == read

    on_disk(tmp_path, records, check)


def test_frames_in_memory_are_sent_as_bytes(tmp_path: Path) -> None:
    async def check(log: Log, path: Path) -> None:
        assert await log.reader.find_from_offset(log.next_offset, 100, 1 << 20) == b""
        append(log, 1, SIZE, records=10)
        assert isinstance(await log.reader.find_from_offset(60, 70, 1 << 20), bytes)

    on_disk(tmp_path, records, check)


def test_small_frames_are_read(tmp_path: Path, open_files: set[RealFile]) -> None:
    def small(log: Log) -> None:
        append(log, 1, SIZE, records=10)
        append(log, 20, SENT_FRAME_BYTES_MIN - HEADER_SIZE - 1, records=10)
        append(log, 1, SENT_FRAME_BYTES_MIN, records=10)

    async def check(log: Log, path: Path) -> None:
        first = await log.reader.find_from_offset(0, 1000, WHOLE)
        assert len(sent(first)) == WHOLE
        assert not isinstance(await log.reader.find_from_offset(10, 1000, 1 << 20), StoredFrames)
        last = await log.reader.find_from_offset(210, 1000, 1 << 20)
        assert len(sent(last)) == SENT_FRAME_BYTES_MIN + HEADER_SIZE

    on_disk(tmp_path, small, check)


def test_an_entry_without_records_ends_a_large_range(tmp_path: Path, open_files: set[RealFile]) -> None:
    """A few small frames between others are read into one answer instead of one range each."""

    def mixed(log: Log) -> None:
        append(log, 2, SIZE, records=10)
        append(log, 1, SIZE, kind=Kind.NOOP)
        append(log, 1, SIZE, records=10)

    async def check(log: Log, path: Path) -> None:
        much = await log.reader.find_from_offset(0, 30, 4 * WHOLE)
        assert isinstance(much, StoredFrames)
        assert much.offsets == (0, 20)
        assert [e.header.kind for e in iter_entries(sent(much))] == [Kind.DATA] * 2
        few = await log.reader.find_from_offset(0, 30, 4 * WHOLE + 2)
        assert not isinstance(few, StoredFrames)
        assert [e.header.base_offset for e in iter_entries(few)] == [0, 10, 20]

    on_disk(tmp_path, mixed, check)


def test_the_number_of_examined_headers_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "SENT_FRAMES_MAX", 2)

    async def check(log: Log, path: Path) -> None:
        assert len(sent(await log.reader.find_from_offset(0, 60, 1 << 20))) == 2 * WHOLE

    on_disk(tmp_path, records, check)


@pytest.mark.parametrize("which", ["load", "open"])
def test_where_files_cannot_be_sent_they_are_read(
    tmp_path: Path, open_files: set[RealFile], monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    def refuse(*values: object) -> int:
        raise OSError(errno.EINVAL, "not here")

    async def check(log: Log, path: Path) -> None:
        if which == "load":
            monkeypatch.setattr(os, "sendfile", refuse)
        else:
            monkeypatch.setattr(reads, "SENDS_FILES", False)
        found = await log.reader.find_from_offset(0, 60, 1 << 20)
        assert not isinstance(found, StoredFrames)
        assert len(found) == COUNT * WHOLE

    on_disk(tmp_path, records, check)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def position_of(path: Path, index: int) -> int:
    return path.read_bytes().index(b"%d.%d.%d." % (index, index, index)) - HEADER_SIZE


@pytest.mark.parametrize("field", [0, 12, 16, 40])
def test_a_damaged_header_is_found_by_the_fallback_read(tmp_path: Path, open_files: set[RealFile], field: int) -> None:
    async def check(log: Log, path: Path) -> None:
        flip(path, position_of(path, 4) + field)
        with pytest.raises(CorruptData) as raised:
            await log.reader.find_from_offset(0, 60, 1 << 20)
        assert raised.value.detail["index"] == "4"

    on_disk(tmp_path, records, check)


@pytest.mark.parametrize("wrong", ["index", "chain"])
def test_frames_that_break_the_chain_are_found_by_the_fallback_read(
    tmp_path: Path, open_files: set[RealFile], wrong: str
) -> None:
    """Each of them is a good one."""

    async def check(log: Log, path: Path) -> None:
        replace_fourth(path, wrong)
        with pytest.raises(CorruptData):
            await log.reader.find_from_offset(0, 60, 1 << 20)

    on_disk(tmp_path, records, check)


def replace_fourth(path: Path, wrong: str) -> None:
    """Replace a frame by the next one, or by a copy with another predecessor."""
    content = bytearray(path.read_bytes())
    at = position_of(path, 4)
    if wrong == "index":
        content[at : at + WHOLE] = content[at + WHOLE : at + 2 * WHOLE]
    else:
        good = parse_header(bytes(content[at : at + HEADER_SIZE]))
        other = make_entry(
            NewEntry(
                good.kind,
                bytes(content[at + HEADER_SIZE : at + WHOLE]),
                record_count=good.record_count,
                max_timestamp_us=good.max_timestamp_us,
            ),
            index=good.index,
            term=good.term,
            prev_crc=good.prev_crc ^ 1,
            base_offset=good.base_offset,
            append_time_us=good.append_time_us,
        )
        content[at : at + HEADER_SIZE] = other.head
    path.write_bytes(content)


def test_a_damaged_payload_is_sent_and_found_by_the_reader(tmp_path: Path, open_files: set[RealFile]) -> None:
    async def check(log: Log, path: Path) -> None:
        flip(path, position_of(path, 4) + HEADER_SIZE + 5)
        found = await log.reader.find_from_offset(0, 60, 1 << 20)
        with pytest.raises(CorruptData):
            list(iter_entries(sent(found)))
        with pytest.raises(CorruptData) as raised:
            await log.reader.read_from_offset(0, 60, 1 << 20)
        assert raised.value.detail["index"] == "4"

    on_disk(tmp_path, records, check)


@pytest.mark.parametrize("left", [0, HEADER_SIZE, WHOLE - 1])
def test_a_truncated_file_is_found_by_the_fallback_read(tmp_path: Path, open_files: set[RealFile], left: int) -> None:
    async def check(log: Log, path: Path) -> None:
        os.truncate(path, position_of(path, 7) + left)
        with pytest.raises(CorruptData):
            await log.reader.find_from_offset(50, 60, 1 << 20)  # of the seventh entry

    on_disk(tmp_path, records, check)


def test_a_dropped_range_leaves_no_file_open(tmp_path: Path, open_files: set[RealFile]) -> None:
    async def check(log: Log, path: Path) -> None:
        before = len(open_files)
        found = await log.reader.find_from_offset(0, 60, 1 << 20)
        assert isinstance(found, StoredFrames)
        assert len(open_files) == before + 1
        del found
        assert len(open_files) == before

    on_disk(tmp_path, records, check)


def test_loading_reads_pages_that_are_not_cached(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    fd = os.open(path, os.O_RDONLY)
    file = RealFile(fd, "file")
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    file.load(0, 1 << 20)
    file.load(1 << 20, 100)  # no frame is there
    for at in range(0, 1 << 20, 4096):
        assert os.preadv(fd, [bytearray(1)], at, os.RWF_NOWAIT) == 1
    file.close()
