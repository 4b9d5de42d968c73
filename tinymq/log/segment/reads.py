"""Reads of frames from a segment, as functions for the executor: they touch nothing but the file.

Every returned entry is verified: the checksums of header and payload, indexes without a gap, and each header chained to
the one before. Anything else is CorruptData, never fewer frames. StoredFrames are the exception: they are sent unread,
so only their headers are verified. Their receiver verifies the payloads, and if one is damaged, asks the broker to read
it here.

A PUBLISH entry stands for batches that lie in STAGED entries before it. Readers get each of them under a header that is
made for it (tinymq/format/made_frames.py). If the entries were read along with the PUBLISH entry, as those of a small
transaction are, the frames are made here; otherwise in published_batches.py.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from tinymq.base.errors import CorruptData, StorageError
from tinymq.base.value import value
from tinymq.format.entry import HEADER_SIZE, Entry, EntryHeader, Kind, crc32c_of, parse_entry, parse_header
from tinymq.format.made_frames import made_head, misfit, published_items
from tinymq.format.transactional import STAGED_HEAD_SIZE
from tinymq.log.files.files import File, Files, RealFile
from tinymq.log.segment.index import NO_TIMESTAMP, ROW_BYTES
from tinymq.log.segment.scan import frames

FRAMES_MANY = 16  # in one read: the part of the last frame that is read for nothing is then small

SENDS_FILES = sys.platform == "linux"
SENT_FRAME_BYTES_MIN = 16 * 1024  # reading one header costs as much as reading so many bytes
# of a published batch: sending it costs one more call and one more read, for two headers
SENT_BATCH_BYTES_MIN = 64 * 1024
SENT_FRAMES_MAX = 512  # in one StoredFrames
# A run of frames is sent unread only if it fills this share of `bytes_max`. Otherwise entries of other kinds would cut
# one answer after the other down to a frame or two.
SENT_SHARE_MIN = 0.5


@value
class Span:
    """A part of a segment to read: frame `index` is at `position` of `path`, and `last_index` is the last to return."""

    path: str
    position: int
    index: int
    last_index: int
    max_before_us: int = NO_TIMESTAMP  # greatest record timestamp before it in the segment


@value
class Located:
    """A frame's header and position, and the greatest record timestamp in its segment up to it."""

    header: EntryHeader
    position: int
    max_timestamp_us: int | None


Piece = tuple[bytes, int, int]  # bytes that are not in the file, and behind them a part of it: position, length


class StoredFrames:
    """Consecutive frames with records as parts of their file, to be sent from there. Their headers are verified, their
    payloads are not. Headers that are made for published batches stand between the parts. The file stays open until the
    object is closed or dropped."""

    __slots__ = ("_file", "_length", "loaded_s", "offsets", "pieces")

    def __init__(self, file: RealFile, pieces: Sequence[Piece], offsets: tuple[int, int]) -> None:
        """All parts of the file must be in the system's memory now, and their positions rise."""
        self.pieces = pieces
        self.loaded_s = time.monotonic()  # the page cache had all of them
        self.offsets = offsets  # of the first record, and of the one behind the last
        self._file = file
        self._length = sum(len(made) + length for made, _, length in pieces)

    def __len__(self) -> int:
        return self._length

    def fileno(self) -> int:
        return self._file.fileno()

    def load(self, position: int) -> None:
        """Have the system read again what lies at or behind `position`. Blocks. See RealFile.load."""
        for _, start, length in self.pieces:
            begin, end = max(start, position), start + length
            if begin < end:
                self._file.load(begin, end - begin)

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    def __del__(self) -> None:  # an answer is dropped in many places, as when a client leaves or a fetch is cancelled
        self.close()


Frames = bytes | memoryview | StoredFrames


def read_entries(files: Files, span: Span, index: int, bytes_max: int) -> list[Entry]:
    """Entries from `index` on, at least one, up to about `bytes_max` bytes. Asserts that the span has `index`."""
    file = open_segment(files, span.path)
    try:
        position, _ = _skip(file, span, lambda header: header.index == index)
        return _entries(file, span, index, position, bytes_max)
    finally:
        file.close()


def _entries(file: File, span: Span, index: int, position: int, bytes_max: int) -> list[Entry]:
    """Entries from `index` on, whose frame is at `position`. Each payload is copied once: to cut it out of a larger
    read costs more than its checksum."""
    stored: list[Entry] = []
    try:
        for frame in frames(file, position, bytes_max):
            position, header = frame.position, frame.header
            if header.index != index or (stored and header.prev_crc != stored[-1].header.header_crc):
                raise damaged(span.path, position, index, "it does not follow the entry before")
            stored.append(Entry(header, frame.head, frame.payload))
            index, position = index + 1, position + header.size
            if index > span.last_index:
                return stored
    except CorruptData as error:
        if "index" in error.detail:
            raise
        raise damaged(span.path, position, index, error.message) from error
    if not stored:
        raise damaged(span.path, position, index, "it is missing")
    return stored


def read_data_frames(
    files: Files, span: Span, offset: int, end_offset: int, bytes_max: int, *, sends: bool = False
) -> bytes | memoryview | Entry:
    """Frames with records, as stored, from the one that holds `offset` up to `end_offset`; at least one, and about
    `bytes_max` bytes at most. The span has `offset`. The frames are copied once, from the file.

    Returns the entry that holds `offset` if it is a PUBLISH entry whose batch lies too far before it to be read along.
    With `sends`, also if the batch is better sent from its file.
    """
    file = open_segment(files, span.path)
    try:
        position, first = _skip(file, span, lambda header: header.next_offset > offset)
        if first.kind == Kind.PUBLISH:
            return _published(file, span, (position, first), (offset, end_offset), bytes_max, sends)
        if first.kind != Kind.DATA:
            raise damaged(span.path, position, first.index, "an entry of this kind has no records")
        data = file.read(position, _whole(file, span, position, first, bytes_max))
        stored = _walk(data, span, first.index, position, bytes_max)
    finally:
        file.close()
    parts = [(start, start + h.size) for start, h in stored if h.kind == Kind.DATA and h.base_offset < end_offset]
    if parts[-1][1] == sum(end - start for start, end in parts):
        return memoryview(data)[: parts[-1][1]]  # one run from the start of `data`: nothing to join
    if any(header.kind == Kind.PUBLISH for _, header in stored):
        return _joined(data, (span.path, position), stored, (offset, end_offset), bytes_max)
    return b"".join([data[start:end] for start, end in parts])


def _published(
    file: File, span: Span, at: tuple[int, EntryHeader], offsets: tuple[int, int], bytes_max: int, sends: bool
) -> bytes | Entry:
    """As `read_data_frames`, for a PUBLISH entry with this position and header that holds the first offset."""
    position, publish = at
    try:
        entry = parse_entry(file.read(position, publish.size))
    except CorruptData as error:
        raise damaged(span.path, position, publish.index, error.message) from error
    # The batches of a small transaction lie right before it, and those of the next ones behind it: one read has all.
    start, earliest = _skip(file, span, lambda h: h.kind == Kind.STAGED or h.index == publish.index)
    item = next(published_items(publish, entry.payload, *offsets))
    sends = sends and isinstance(file, RealFile) and item.length >= SENT_BATCH_BYTES_MIN
    if sends or item.entry_index < earliest.index:
        return entry
    data = file.read(start, position - start + _whole(file, span, position, publish, bytes_max))
    stored = _walk(data, span, earliest.index, start, len(data))
    return _joined(data, (span.path, start), stored, offsets, bytes_max)


def _joined(
    data: bytes, place: tuple[str, int], stored: list[tuple[int, EntryHeader]], offsets: tuple[int, int], bytes_max: int
) -> bytes:
    """The frames for a reader among verified frames of `data`, which begins at `place` of a file. They end with the
    first batch that lies before `data`."""
    (path, base), (offset, end_offset) = place, offsets
    view, parts = memoryview(data), list[bytes | memoryview]()
    first_index = stored[0][1].index
    for start, header in stored:
        if header.base_offset >= end_offset:
            break
        if header.next_offset <= offset or header.kind not in (Kind.DATA, Kind.PUBLISH):
            continue
        end = start + header.size
        if header.kind == Kind.DATA:
            bytes_max -= header.size
            if bytes_max < 0 and parts:
                break
            parts.append(view[start:end])
            continue
        for item in published_items(header, view[start + HEADER_SIZE : end], offset, end_offset):
            bytes_max -= HEADER_SIZE + item.length
            if item.entry_index < first_index or (bytes_max < 0 and parts):
                return b"".join(parts)
            position, staged = stored[item.entry_index - first_index]
            if problem := misfit(item, staged):  # the frame's own checksum covers the batch
                raise damaged(path, base + position, item.entry_index, problem)
            parts += made_head(header, item), view[position + HEADER_SIZE + STAGED_HEAD_SIZE : position + staged.size]
    return b"".join(parts)


def find_data_frames(files: Files, span: Span, offset: int, end_offset: int, bytes_max: int) -> Frames | Entry:
    """As `read_data_frames`, for a caller that can send a part of a file. Where that is cheaper the frames stay unread,
    and are in the system's memory when this returns."""
    return _find(files, span, offset, end_offset, bytes_max) or read_data_frames(
        files, span, offset, end_offset, bytes_max, sends=SENDS_FILES
    )


def _find(files: Files, span: Span, offset: int, end_offset: int, bytes_max: int) -> StoredFrames | None:
    """The frames as a part of their file; None if they have to be read."""
    file = open_segment(files, span.path)
    stored = None
    try:
        if isinstance(file, RealFile) and SENDS_FILES:
            position, first = _skip(file, span, lambda header: header.next_offset > offset)
            last, length = _run(file, span, position, first, end_offset, bytes_max)
            if last is not None and position + length <= file.size():
                # Not every file system can send. If the disk is at fault, the read that follows says so.
                with suppress(StorageError):
                    file.load(position, length)
                    stored = StoredFrames(file, ((b"", position, length),), (first.base_offset, last.next_offset))
        return stored
    finally:
        if stored is None:
            file.close()


def _run(
    file: File, span: Span, position: int, first: EntryHeader, end_offset: int, bytes_max: int
) -> tuple[EntryHeader | None, int]:
    """The last of the consecutive frames with records from `first` on, and the bytes of all of them.

    The last one is None if reading the frames is better than sending them: they are small, there are only a few between
    entries of other kinds, or one is damaged, and only a read reports where.
    """
    last, length, header = None, 0, first
    for _ in range(SENT_FRAMES_MAX):
        if header.base_offset >= end_offset:
            break
        if header.kind != Kind.DATA or header.size < SENT_FRAME_BYTES_MIN:
            if length < bytes_max * SENT_SHARE_MIN:
                return None, 0
            break
        if last is not None and length + header.size > bytes_max:
            break
        last, length = header, length + header.size
        if header.index == span.last_index:
            break
        try:
            header = parse_header(file.read(position + length, HEADER_SIZE))
        except CorruptData:
            return None, 0
        if header.index != last.index + 1 or header.prev_crc != last.header_crc:
            return None, 0
    return last, length


def locate(files: Files, span: Span, index: int) -> Located:
    """Find the frame of entry `index` by reading headers only."""
    greatest = span.max_before_us
    file = open_segment(files, span.path)
    try:
        for position, header in _headers(file, span):
            if header.record_count:
                greatest = max(greatest, header.max_timestamp_us)
            if header.index == index:
                return Located(header, position, None if greatest == NO_TIMESTAMP else greatest)
    finally:
        file.close()
    raise damaged(span.path, span.position, index, "it is not where the index says")


def open_segment(files: Files, path: str) -> File:
    """Raises CorruptData if the file is missing."""
    try:
        return files.open(path)
    except FileNotFoundError as error:
        raise CorruptData(f"{path} is missing", path=path) from error


def damaged(path: str, position: int, index: int, what: str) -> CorruptData:
    """The error for a frame that is not as it was written."""
    return CorruptData(f"{path} at byte {position}, entry {index}: {what}", path=path, position=position, index=index)


def _whole(file: File, span: Span, position: int, first: EntryHeader, bytes_max: int) -> int:
    """The number of bytes to read.

    A read of large frames ends with the end of a frame: of a frame that it cuts off, it would read up to the whole
    frame for nothing. To find that end, the headers alone are read here, and again when all bytes are verified.
    """
    if first.size * FRAMES_MANY < bytes_max:
        return bytes_max
    total, index = first.size, first.index + 1
    while index <= span.last_index and total < bytes_max:
        head = file.read(position + total, HEADER_SIZE)
        try:
            size = parse_header(head).size
        except CorruptData:
            return bytes_max  # the damage is reported when the bytes are verified
        if total + size > bytes_max:
            break
        total, index = total + size, index + 1
    return total


def _skip(file: File, span: Span, wanted: Callable[[EntryHeader], bool]) -> tuple[int, EntryHeader]:
    """Position and header of the first frame for which `wanted` is true."""
    for position, header in _headers(file, span):
        if wanted(header):
            return position, header
    raise damaged(span.path, span.position, span.index, "the frame is not where the index says")


def _headers(file: File, span: Span) -> Iterator[tuple[int, EntryHeader]]:
    """Position and header of the frames near the span's start, verified. A span begins at a row of the sparse index, so
    any frame that is looked up begins less than ROW_BYTES behind it."""
    data = file.read(span.position, ROW_BYTES + HEADER_SIZE)
    position = 0
    for index in range(span.index, span.last_index + 1):
        if position > ROW_BYTES:
            return
        try:
            header = parse_header(data, position)
        except CorruptData as error:
            raise damaged(span.path, span.position + position, index, error.message) from error
        if header.index != index:
            raise damaged(span.path, span.position + position, index, f"found entry {header.index}")
        yield span.position + position, header
        position += header.size


def _walk(data: bytes, span: Span, index: int, base: int, bytes_max: int) -> list[tuple[int, EntryHeader]]:
    """Verify the frames in `data`, which begins with entry `index` at position `base` of the file."""
    stored: list[tuple[int, EntryHeader]] = []
    view = memoryview(data)
    position = 0
    prev_crc: int | None = None
    while index <= span.last_index and position + HEADER_SIZE <= len(data):
        try:
            header = parse_header(data, position)
        except CorruptData as error:
            raise damaged(span.path, base + position, index, error.message) from error
        if header.index != index or (prev_crc is not None and header.prev_crc != prev_crc):
            raise damaged(span.path, base + position, index, "it does not follow the entry before")
        end = position + header.size
        if stored and (end > len(data) or end > bytes_max):
            break  # cut off, or too much: the next read begins with it
        if end > len(data):
            raise damaged(span.path, base + position, index, "truncated entry payload")
        if crc32c_of(view[position + HEADER_SIZE : end]) != header.payload_crc:
            raise damaged(span.path, base + position, index, "entry payload checksum mismatch")
        stored.append((position, header))
        position, prev_crc = end, header.header_crc
        index += 1
    return stored
