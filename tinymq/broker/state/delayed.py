"""The delayed batches of one partition that are not published yet. Pure, and replicated.

The leader decides before it appends an entry, so no rule here refuses one: an entry about a batch that has ended
changes nothing. The batches lie in columns of numbers, 40 bytes each, and not in objects: a snapshot is then a copy,
which takes as long as copying 4 MB takes. Packed, little-endian, one column after another:

    size column
      8n schedule_ids    u64  rising
      8n deliver_at_us   i64
      8n staged_at_us    i64
      8n entry_indexes   u64  of the STAGED entries that have the batches
      4n records         u32
      4n bytes           u32  of the batches

The states that remember batches, by producer or by message id, keep the *place* of each: its first offset, or its
schedule id with the highest bit set. Both stay below 2^63.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from tinymq.base.errors import CorruptData

_ENDED = 0  # as an entry index: the batch has ended, and its row goes with the next compaction
_ROW_BYTES = 40
_DEAD_MIN = 64  # rows that are not worth a compaction


_PLACE = 1 << 63


def delayed_place(schedule_id: int) -> int:
    """The place of a delayed batch, for good: it does not change when the batch is published."""
    return _PLACE | schedule_id


def schedule_id_at(place: int) -> int:
    """The schedule id of the batch at a place; 0: the place is an offset."""
    return place & ~_PLACE if place & _PLACE else 0


class DelayedBatch(NamedTuple):
    """A delayed batch that is not published yet."""

    schedule_id: int
    deliver_at_us: int
    staged_at_us: int  # append time of its first STAGED entry
    entry_index: int  # of the STAGED entry that has it now
    records: int
    bytes: int


class DelayedBatches:
    """The batches by schedule id. Only `apply` of the partition's state changes them."""

    __slots__ = ("_columns", "_dead", "_lowest_index", "bytes", "records")

    def __init__(self) -> None:
        self._columns = _empty()
        self._dead = 0  # invariant: the number of rows that have ended
        self._lowest_index: int | None = None  # None: not known
        self.records = 0  # of all batches
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._columns[0]) - self._dead

    def __iter__(self) -> Iterator[DelayedBatch]:
        return self.after(0)

    def get(self, schedule_id: int) -> DelayedBatch | None:
        """The batch; None: it has ended, or there never was one."""
        row = self._row(schedule_id)
        return None if row is None else self._at(row)

    def after(self, schedule_id: int) -> Iterator[DelayedBatch]:
        """The batches with greater schedule ids, in their order."""
        first = bisect_right(self._columns[0], schedule_id)
        return (self._at(row) for row in range(first, len(self._columns[0])) if self._columns[3][row] != _ENDED)

    def due_times(self) -> Iterator[tuple[int, int]]:
        """(deliver_at_us, schedule id) of all batches, by schedule id."""
        ids, due, _, indexes, _, _ = self._columns
        return ((us, schedule_id) for schedule_id, us, index in zip(ids, due, indexes, strict=True) if index != _ENDED)

    def between(self, first_index: int, last_index: int) -> list[DelayedBatch]:
        """The batches whose STAGED entries lie there, by schedule id."""
        indexes = self._columns[3]
        return [self._at(row) for row, index in enumerate(indexes) if first_index <= index <= last_index]

    @property
    def lowest_index(self) -> int | None:
        """The lowest Raft index of an entry that has one of the batches; None: there are none. The log must keep its
        entries from here on."""
        if not len(self):
            return None
        if self._lowest_index is None:
            self._lowest_index = min(index for index in self._columns[3] if index != _ENDED)
        return self._lowest_index

    # ---- apply

    def stage(self, batch: DelayedBatch) -> None:
        """Add a batch. Its schedule id is above all others."""
        for column, field in zip(self._columns, batch, strict=True):
            column.append(field)
        self.records += batch.records
        self.bytes += batch.bytes

    def carry(self, schedule_id: int, entry_index: int) -> None:
        """Note that another entry has the batch now. For a batch that has ended, nothing changes: its copy is left over
        from a leader that did not know the end yet."""
        row = self._row(schedule_id)
        if row is not None:
            self._columns[3][row] = entry_index
            self._lowest_index = None

    def end(self, schedule_id: int) -> bool:
        """Take a batch out. False: it has ended before, and nothing changes."""
        row = self._row(schedule_id)
        if row is None:
            return False
        _, _, _, indexes, records, sizes = self._columns
        if indexes[row] == self._lowest_index:
            self._lowest_index = None
        indexes[row] = _ENDED
        self.records -= records[row]
        self.bytes -= sizes[row]
        self._dead += 1
        if self._dead > _DEAD_MIN and 2 * self._dead > len(indexes):
            self._compact()
        return True

    def _row(self, schedule_id: int) -> int | None:
        ids, indexes = self._columns[0], self._columns[3]
        row = bisect_left(ids, schedule_id)
        there = row < len(ids) and ids[row] == schedule_id and indexes[row] != _ENDED
        return row if there else None

    def _at(self, row: int) -> DelayedBatch:
        return DelayedBatch(*[column[row] for column in self._columns])

    def _compact(self) -> None:
        """Remove the rows that have ended, one slice for each run of other rows."""
        columns, indexes, start = _empty(), self._columns[3], 0
        for _ in range(self._dead):
            end = indexes.index(_ENDED, start)
            if start < end:
                for column, old in zip(columns, self._columns, strict=True):
                    column.extend(old[start:end])
            start = end + 1
        for column, old in zip(columns, self._columns, strict=True):
            column.extend(old[start:])
        self._columns, self._dead = columns, 0

    # ---- as bytes

    def dump(self) -> bytes:
        """The batches, as drawn above. Equal batches give equal bytes."""
        if self._dead:
            self._compact()
        return b"".join([_little_endian(column).tobytes() for column in self._columns])

    @classmethod
    def load(cls, packed: bytes, applied_index: int) -> DelayedBatches:
        """The inverse of `dump`, for a log that is applied up to `applied_index`. Raises CorruptData for anything that
        `dump` cannot write."""
        batches = cls()
        count = len(packed) // _ROW_BYTES
        _check(len(packed) % _ROW_BYTES == 0)
        start = 0
        for number, column in enumerate(batches._columns):
            end = start + count * column.itemsize
            column.frombytes(packed[start:end])
            batches._columns[number], start = _little_endian(column), end
        ids, due, staged, indexes, records, sizes = batches._columns
        _check(all(before < after for before, after in pairwise(ids)) and (not count or ids[0] > 0))
        _check(all(schedule_id <= index for schedule_id, index in zip(ids, indexes, strict=True)))
        _check(len(set(indexes)) == count and max(indexes, default=0) <= applied_index < 1 << 63)
        _check(min(due, default=0) >= 0 and min(staged, default=0) >= 0)
        _check(min(records, default=1) > 0 and min(sizes, default=1) > 0)
        batches.records, batches.bytes = sum(records), sum(sizes)
        return batches


def _empty() -> list[array[int]]:
    return [array(typecode) for typecode in "QqqQII"]


def _little_endian(column: array[int]) -> array[int]:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column


def _check(holds: bool) -> None:
    if not holds:
        raise CorruptData("the applied state's delayed batches are out of range")
