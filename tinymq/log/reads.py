"""Reading frames from a segment: pure functions for the executor, which touch nothing but the file.

What is returned was verified: checksums of header and payload, indexes without a gap, each header chained to the
one before. Anything else is CorruptData, never fewer frames.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.entry import HEADER_SIZE, Entry, EntryHeader, Kind, crc32c, parse_header
from tinymq.errors import CorruptData
from tinymq.log.files import File, Files
from tinymq.log.index import NO_TIMESTAMP, ROW_BYTES


@dataclass(frozen=True, slots=True)
class Span:
    """Where to read: frame `index` begins at `position` of `path`, and `last_index` is the last to return."""

    path: str
    position: int
    index: int
    last_index: int
    max_before_us: int = NO_TIMESTAMP  # greatest record timestamp before it in the segment


@dataclass(frozen=True, slots=True)
class Located:
    """A frame's header, where it begins, and the greatest record timestamp up to it in its segment."""

    header: EntryHeader
    position: int
    max_timestamp_us: int | None


def read_entries(files: Files, span: Span, index: int, bytes_max: int) -> list[Entry]:
    """Entries from `index` on, at least one, up to about `bytes_max` bytes."""
    data, _, found = _read(files, span, index, bytes_max)
    return [
        Entry(header, data[at : at + HEADER_SIZE], data[at + HEADER_SIZE : at + header.size]) for at, header in found
    ]


def read_data_frames(files: Files, span: Span, offset: int, end_offset: int, bytes_max: int) -> list[bytes]:
    """Frames with records between the two offsets, as stored, at least one if the span has any. The span begins at
    or before the frame that holds `offset`."""
    index = span.index
    while True:
        data, base, found = _read(files, span, index, bytes_max)
        wanted = [
            data[at : at + header.size]
            for at, header in found
            if header.kind == Kind.DATA and header.next_offset > offset and header.base_offset < end_offset
        ]
        position, header = found[-1]
        if wanted or header.index >= span.last_index or header.next_offset >= end_offset:
            return wanted
        index = header.index + 1
        span = Span(span.path, base + position + header.size, index, span.last_index)


def locate(files: Files, span: Span, index: int) -> Located:
    """Find frame `index`, reading headers only."""
    greatest = span.max_before_us
    position = span.position
    expected = span.index
    file = _open(files, span.path)
    try:
        while True:
            header = _header(file, span.path, position, expected)
            if header.record_count:
                greatest = max(greatest, header.max_timestamp_us)
            if expected == index:
                return Located(header, position, None if greatest == NO_TIMESTAMP else greatest)
            position += header.size
            expected += 1
    finally:
        file.close()


def _open(files: Files, path: str) -> File:
    try:
        return files.open(path)
    except FileNotFoundError as error:
        raise CorruptData(f"{path} is missing", path=path) from error


def _header(file: File, path: str, position: int, index: int) -> EntryHeader:
    try:
        header = parse_header(file.read(position, HEADER_SIZE))
    except CorruptData as error:
        raise _damaged(path, position, index, error.message) from error
    if header.index != index:
        raise _damaged(path, position, index, f"found entry {header.index}")
    return header


def _damaged(path: str, position: int, index: int, what: str) -> CorruptData:
    return CorruptData(f"{path} at byte {position}, entry {index}: {what}", path=path, position=position, index=index)


def _read(files: Files, span: Span, index: int, bytes_max: int) -> tuple[bytes, int, list[tuple[int, EntryHeader]]]:
    """Bytes of the segment, where they begin in it, and the whole, verified frames that begin in them, by position."""
    file = _open(files, span.path)
    try:
        base = span.position
        if index > span.index:
            base += _skip(file.read(base, ROW_BYTES + HEADER_SIZE), span, index)
        data = file.read(base, max(bytes_max, HEADER_SIZE))
        try:
            first = parse_header(data)
        except CorruptData as error:
            raise _damaged(span.path, base, index, error.message) from error
        if first.size > len(data):
            data = file.read(base, first.size)
        return data, base, _walk(data, span, index, base, bytes_max)
    finally:
        file.close()


def _skip(data: bytes, span: Span, index: int) -> int:
    """Where in `data` frame `index` begins. It is near: the span begins at its row of the sparse index."""
    position = 0
    for expected in range(span.index, index):
        try:
            header = parse_header(data, position)
        except CorruptData as error:
            raise _damaged(span.path, span.position + position, expected, error.message) from error
        if header.index != expected:
            raise _damaged(span.path, span.position + position, expected, f"found entry {header.index}")
        position += header.size
    return position


def _walk(data: bytes, span: Span, index: int, base: int, bytes_max: int) -> list[tuple[int, EntryHeader]]:
    found: list[tuple[int, EntryHeader]] = []
    position = 0
    prev_crc: int | None = None
    while index <= span.last_index and position + HEADER_SIZE <= len(data):
        try:
            header = parse_header(data, position)
        except CorruptData as error:
            raise _damaged(span.path, base + position, index, error.message) from error
        if header.index != index or (prev_crc is not None and header.prev_crc != prev_crc):
            raise _damaged(span.path, base + position, index, "it does not follow the entry before")
        end = position + header.size
        if found and (end > len(data) or end > bytes_max):
            break
        if end > len(data):
            raise _damaged(span.path, base + position, index, "truncated entry payload")
        if crc32c(data[position + HEADER_SIZE : end]) != header.payload_crc:
            raise _damaged(span.path, base + position, index, "entry payload checksum mismatch")
        found.append((position, header))
        position, prev_crc = end, header.header_crc
        index += 1
    return found
