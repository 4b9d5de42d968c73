"""A segment: a file of frames (tinymq/format/entry.py) behind one header, and its model in memory.

offset size field
     0    8 magic        bytes "tinymqsg"
     8    2 version      u16   1
    10    2 reserved     u16   0
    12    4 crc          u32   crc32c of the other 60 bytes
    16   16 topic id     bytes
    32    4 partition    u32
    36    4 prev_crc     u32   header_crc of the entry before the first; 0 before index 1
    40    8 first_index  u64   Raft index of the first frame
    48    8 base_offset  u64   offset of the next record when the first frame was appended
    56    8 prev_term    u64   Raft term of the entry before
    64    … frames, back to back; zeros may follow them until the segment is full
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass

from tinymq.base.errors import CorruptData
from tinymq.base.types import GroupId, TopicId
from tinymq.format.entry import EntryHeader, crc32c
from tinymq.log.files.file_version import newer_version
from tinymq.log.segment.index import SparseIndex

MAGIC = b"tinymqsg"
VERSION = 1
SEGMENT_HEADER_SIZE = 64
ENTRIES_MAX = 8192  # a start reads each entry of the newest segment, and applies it: docs/adr/0023

_HEADER = struct.Struct("<8sHHI16sIIQQQ")
assert _HEADER.size == SEGMENT_HEADER_SIZE


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """A segment's own header: its place in the log, and the end of the entry before it."""

    group: GroupId
    first_index: int
    base_offset: int
    prev_term: int
    prev_crc: int


def pack_segment_header(header: SegmentHeader) -> bytes:
    fields = (  # in the order of the drawing, behind crc
        header.group.topic_id,
        header.group.partition,
        header.prev_crc,
        header.first_index,
        header.base_offset,
        header.prev_term,
    )
    packed = _HEADER.pack(MAGIC, VERSION, 0, 0, *fields)
    return _HEADER.pack(MAGIC, VERSION, 0, crc32c(packed[:12] + packed[16:]), *fields)


def parse_segment_header(data: bytes) -> SegmentHeader:
    """Raises CorruptData, or UnsupportedVersion if the header is whole but of another version."""
    if len(data) < SEGMENT_HEADER_SIZE:
        raise CorruptData("truncated segment header")
    magic, version, _, crc, topic, partition, prev_crc, first, base, prev_term = _HEADER.unpack_from(data)
    if magic != MAGIC or crc32c(data[:12] + data[16:SEGMENT_HEADER_SIZE]) != crc:
        raise CorruptData("segment header checksum mismatch")
    if version != VERSION:
        raise newer_version("a segment", version, VERSION)
    group = GroupId(TopicId(topic), partition)
    return SegmentHeader(group, first_index=first, base_offset=base, prev_term=prev_term, prev_crc=prev_crc)


class Segment:
    """One segment in memory: its bounds and a sparse index, no entries. Lives on the loop."""

    __slots__ = (
        "end", "first_time_us", "header", "last", "last_index", "last_position", "max_timestamp_us", "path", "sealed",
        "sparse",
    )  # fmt: skip

    def __init__(self, header: SegmentHeader, path: str) -> None:
        self.header = header
        self.path = path
        self.end = SEGMENT_HEADER_SIZE  # position of the next frame
        self.last: EntryHeader | None = None  # None while it holds no frame
        self.last_index = header.first_index - 1  # of `last`; first_index - 1 while it is empty
        self.last_position = 0  # of the last frame
        self.first_time_us: int | None = None  # append time of the first frame; None: no frame, or not known
        self.max_timestamp_us: int | None = None  # greatest of its records; None: no records
        self.sealed = False  # full: nothing is appended any more, unless it is truncated first
        self.sparse = SparseIndex()

    @property
    def first_index(self) -> int:
        return self.header.first_index

    @property
    def last_term(self) -> int:
        return self.header.prev_term if self.last is None else self.last.term

    @property
    def last_crc(self) -> int:
        return self.header.prev_crc if self.last is None else self.last.header_crc

    @property
    def next_offset(self) -> int:
        return self.header.base_offset if self.last is None else self.last.next_offset

    def misfit(self, header: EntryHeader) -> str | None:
        """Why `header` cannot be that of the next frame; None if it can."""
        if header.index != self.last_index + 1:
            return f"entry {header.index} after entry {self.last_index}"
        if header.prev_crc != self.last_crc:
            return f"entry {header.index} is chained to another entry than the one before"
        if header.base_offset != self.next_offset or header.term < self.last_term:
            return f"entry {header.index} has an offset or term that cannot follow"
        return None

    def append(self, header: EntryHeader) -> int:
        """Add a frame at the end. Returns its position."""
        position = self.end
        if self.last is None:
            self.first_time_us = header.append_time_us
        self.sparse.note(header, position, self.max_timestamp_us)
        if header.record_count and (self.max_timestamp_us is None or header.max_timestamp_us > self.max_timestamp_us):
            self.max_timestamp_us = header.max_timestamp_us
        self.last = header
        self.last_index = header.index
        self.last_position = position
        self.end = position + header.size
        return position

    def cut(self, last: EntryHeader | None, last_position: int, max_timestamp_us: int | None) -> None:
        """Forget the frames behind `last`, whose frame is at `last_position`. None: forget all of them."""
        self.last = last
        self.first_time_us = None if last is None else self.first_time_us
        self.last_index = self.header.first_index - 1 if last is None else last.index
        self.last_position = last_position
        self.end = SEGMENT_HEADER_SIZE if last is None else last_position + last.size
        self.max_timestamp_us = max_timestamp_us
        self.sparse.cut(self.last_index)
        self.sealed = False

    def is_full(self, segment_bytes: int) -> bool:
        """Whether its last entry has filled the segment."""
        return self.end >= segment_bytes or self.last_index - self.first_index + 1 >= ENTRIES_MAX

    def is_over(self, append_time_us: int, segment_us: int) -> bool:
        """Whether an entry of this append time belongs into the next segment. Every replica decides alike."""
        return self.first_time_us is not None and append_time_us >= self.first_time_us + segment_us


def segment_of_index(segments: list[Segment], index: int) -> int:
    """The place in `segments` of the one that holds `index`; the first one for an index below it."""
    return max(0, bisect_right(segments, index, key=_first_index) - 1)


def segment_of_offset(segments: list[Segment], offset: int) -> int:
    """The place in `segments` of the one that holds the record at `offset`; the first one for an offset below it."""
    return max(0, bisect_right(segments, offset, key=_base_offset) - 1)


def _first_index(segment: Segment) -> int:
    return segment.header.first_index


def _base_offset(segment: Segment) -> int:
    return segment.header.base_offset
