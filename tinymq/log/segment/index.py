"""A segment's sparse index: offset → position and time → offset, one row for each 64 KiB of frames.

It lies in a file beside a full segment, from which it can be made again at any time.

    offset size field
         0    8 magic         bytes "tinymqix"
         8    2 version       u16   1
        10    2 reserved      u16   0
        12    4 crc           u32   crc32c of everything else
        16    8 first_index   u64   of the segment
        24    8 end           u64   bytes of the segment
        32    4 rows          u32
        36    4 runs          u32
        40    8 last_position u64   where the last frame begins
        48   64 last frame's header, as in the segment
       112    8 max_timestamp i64   greatest of the segment's records; the least i64 when it has none
       120   32 per row: index u64 · base_offset u64 · position u64 · i64 greatest timestamp of the records before
         …   16 per run: first index u64 · term u64
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from itertools import pairwise

from tinymq.base.errors import CorruptData
from tinymq.base.value import value
from tinymq.format.entry import HEADER_SIZE, EntryHeader, crc32c, parse_header
from tinymq.log.files.file_version import newer_version

MAGIC = b"tinymqix"
VERSION = 1
ROW_BYTES = 64 * 1024  # a frame gets a row if it begins so far behind that of the last row, or further
NO_TIMESTAMP = -(1 << 63)

_HEAD = struct.Struct("<8sHHIQQIIQ")
_ROW = struct.Struct("<QQQq")
_RUN = struct.Struct("<QQ")
_HEAD_SIZE = 48
assert _HEAD.size == _HEAD_SIZE


class SparseIndex:
    """The rows, in columns, so that a row costs 32 bytes. Each frame begins less than ROW_BYTES behind its row."""

    __slots__ = ("indexes", "offsets", "positions", "timestamps")

    def __init__(self) -> None:
        self.indexes = array("Q")
        self.offsets = array("Q")
        self.positions = array("Q")
        self.timestamps = array("q")  # greatest of all records before the row; invariant: never falls

    def note(self, header: EntryHeader, position: int, max_before_us: int | None) -> None:
        """Add a row for the frame at `position` if it needs one. `max_before_us`: the greatest timestamp before it."""
        if not self.positions or position - self.positions[-1] >= ROW_BYTES:
            self.add(header.index, header.base_offset, position, max_before_us)

    def add(self, index: int, base_offset: int, position: int, max_before_us: int | None) -> None:
        """Add a row."""
        self.indexes.append(index)
        self.offsets.append(base_offset)
        self.positions.append(position)
        self.timestamps.append(NO_TIMESTAMP if max_before_us is None else max_before_us)

    def row_of_index(self, index: int) -> int:
        """The last row at or before `index`."""
        return max(0, bisect_right(self.indexes, index) - 1)

    def row_of_offset(self, offset: int) -> int:
        """A row at or before the frame that holds `offset`.

        It is the last row whose base offset is not above `offset`: an entry without records has the base offset of the
        next entry.
        """
        return max(0, bisect_right(self.offsets, offset) - 1)

    def row_of_time(self, timestamp_us: int) -> int:
        """The last row before which all records are older than `timestamp_us`."""
        low, high = 0, len(self.timestamps)
        while low < high:
            middle = (low + high) // 2
            if self.timestamps[middle] < timestamp_us:
                low = middle + 1
            else:
                high = middle
        return max(0, low - 1)

    def cut(self, last_index: int) -> None:
        """Drop rows above `last_index`."""
        keep = bisect_right(self.indexes, last_index)
        for column in (self.indexes, self.offsets, self.positions, self.timestamps):
            del column[keep:]


@value
class IndexFile:
    """The content of an index file, as drawn above."""

    first_index: int
    end: int
    last: EntryHeader
    last_head: bytes
    last_position: int
    max_timestamp_us: int | None
    sparse: SparseIndex
    runs: tuple[tuple[int, int], ...]  # (first index, term) of the segment's entries


def pack_index(index: IndexFile) -> bytes:
    sparse = index.sparse
    greatest = NO_TIMESTAMP if index.max_timestamp_us is None else index.max_timestamp_us
    rows = zip(sparse.indexes, sparse.offsets, sparse.positions, sparse.timestamps, strict=True)
    body = b"".join((
        index.last_head, greatest.to_bytes(8, "little", signed=True),
        *(_ROW.pack(*row) for row in rows), *(_RUN.pack(*run) for run in index.runs),
    ))  # fmt: skip

    fields = (index.first_index, index.end, len(sparse.indexes), len(index.runs), index.last_position)
    packed = _HEAD.pack(MAGIC, VERSION, 0, 0, *fields)
    return _HEAD.pack(MAGIC, VERSION, 0, crc32c(packed[:12] + packed[16:] + body), *fields) + body


def parse_index(data: bytes) -> IndexFile:
    """Raises CorruptData or UnsupportedVersion. The caller then reads the segment itself."""
    if len(data) < _HEAD_SIZE + HEADER_SIZE + 8:
        raise CorruptData("truncated index")
    magic, version, _, crc, first_index, end, rows, runs, last_position = _HEAD.unpack_from(data)
    if magic != MAGIC or crc32c(data[:12] + data[16:]) != crc:
        raise CorruptData("index checksum mismatch")
    if version != VERSION:
        raise newer_version("an index", version, VERSION)
    at_rows = _HEAD_SIZE + HEADER_SIZE + 8
    at_runs = at_rows + rows * _ROW.size
    if len(data) != at_runs + runs * _RUN.size:
        raise CorruptData("index of a wrong length")
    head = data[_HEAD_SIZE : _HEAD_SIZE + HEADER_SIZE]
    greatest = int.from_bytes(data[at_rows - 8 : at_rows], "little", signed=True)
    sparse = SparseIndex()
    for row in _ROW.iter_unpack(data[at_rows:at_runs]):
        sparse.add(*row)
    last = parse_header(head)
    parsed_runs = tuple(_RUN.iter_unpack(data[at_runs:]))
    # An intact file may come from a build with a defect. Look-ups rely on columns that rise and end in the segment.
    _check_rises([first_index - 1, *sparse.indexes], last.index)
    _check_rises([-1, *sparse.positions], last_position)
    _check_rises([first_index - 1, *(first for first, _ in parsed_runs)], last.index)
    return IndexFile(
        first_index=first_index,
        end=end,
        last=last,
        last_head=head,
        last_position=last_position,
        max_timestamp_us=None if greatest == NO_TIMESTAMP else greatest,
        sparse=sparse,
        runs=parsed_runs,
    )


def _check_rises(column: list[int], most: int) -> None:
    """Raises CorruptData unless each number is above the one before, and the last at most `most`."""
    if column[-1] > most or any(a >= b for a, b in pairwise(column)):
        raise CorruptData("index out of order")
