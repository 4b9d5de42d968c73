"""A segment file in plain words, for `tinymq log dump`. It needs neither a broker nor a data directory, and writes
nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tinymq.base.errors import CorruptData, StorageError
from tinymq.base.quantity import quantity
from tinymq.format.entry import EntryHeader, Kind
from tinymq.log.files.files import File, open_to_read
from tinymq.log.segment.scan import frames
from tinymq.log.segment.segment import SEGMENT_HEADER_SIZE, Segment, SegmentHeader, parse_segment_header


@dataclass(frozen=True, slots=True)
class DumpedSegment:
    """The segment's own header."""

    header: SegmentHeader
    size: int


@dataclass(frozen=True, slots=True)
class DumpedEntry:
    """One whole frame. `problem` says why it cannot follow the frame before it."""

    position: int
    header: EntryHeader
    payload: bytes
    problem: str | None


@dataclass(frozen=True, slots=True)
class DumpedEnd:
    """Where reading stopped: at the end, or at a problem."""

    position: int
    entries: int
    problem: str | None


Dumped = DumpedSegment | DumpedEntry | DumpedEnd


def dump_segment(path: Path) -> Iterator[Dumped]:
    """Everything in a segment file, verified, up to the first frame that is not whole.

    A frame that is whole but out of place is shown with its problem. Raises StorageError if the file cannot be read,
    UnsupportedVersion.
    """
    try:
        file = open_to_read(path)
    except FileNotFoundError as error:
        raise StorageError(f"there is no file {path}") from error
    try:
        yield from _dump(file)
    finally:
        file.close()


def _dump(file: File) -> Iterator[Dumped]:
    try:
        header = parse_segment_header(file.read(0, SEGMENT_HEADER_SIZE))
    except CorruptData as error:
        yield DumpedEnd(0, 0, error.message)
        return
    yield DumpedSegment(header, file.size())
    segment = Segment(header, file.path)
    count = 0
    try:
        for frame in frames(file):
            count += 1
            yield DumpedEntry(frame.position, frame.header, frame.payload, segment.misfit(frame.header))
            segment.append(frame.header)
    except CorruptData as error:
        yield DumpedEnd(int(error.detail["position"]), count, error.message)
    else:
        yield DumpedEnd(segment.end, count, None)


def format_dumped(item: Dumped) -> str:
    """One line for a person."""
    if isinstance(item, DumpedSegment):
        header = item.header
        return (
            f"segment of {header.group}, {item.size} bytes: from entry {header.first_index}, offset "
            f"{header.base_offset}, after term {header.prev_term}, crc {header.prev_crc:08x}"
        )
    if isinstance(item, DumpedEntry):
        entry = item.header
        records = f"offsets {entry.base_offset}..{entry.next_offset - 1}" if entry.record_count else "no records"
        problem = f"  PROBLEM: {item.problem}" if item.problem else ""
        return (
            f"@{item.position} entry {entry.index} term {entry.term} {kind_name(entry.kind)} "
            f"{entry.length} bytes, {records}, appended {entry.append_time_us} us, "
            f"crc {entry.header_crc:08x}{problem}"
        )
    entries = quantity(item.entries, "entry", "entries")
    if item.problem:
        return f"@{item.position} PROBLEM after {entries}: {item.problem}"
    return f"@{item.position} end: {entries}, all whole"


def kind_name(kind: int) -> str:
    """The kind's name, or its number if this build does not know it."""
    try:
        return Kind(kind).name
    except ValueError:
        return f"kind {kind}"
