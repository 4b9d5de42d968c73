"""The end of a log in memory: entries, and the positions of their frames, for replication and tail reads.

All tails of a broker share one bound (tail_budget.py). The cost of an entry is its payload and the objects around it.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress

from tinymq.base.errors import CorruptData
from tinymq.format.entry import HEADER_SIZE, Entry, Kind, NewEntry, make_entry
from tinymq.format.made_frames import made_head, misfit, published_items
from tinymq.format.transactional import STAGED_HEAD_SIZE
from tinymq.log.replica_log.tail_budget import TailBudget

ENTRY_OBJECT_BYTES = 640  # memory of an entry besides its payload: header, head, numbers (560 measured, plus the head)
_COMPACT_MIN = 1024  # the lists are cut when so many entries at their start are dropped
_DROPPED = make_entry(NewEntry(Kind.NOOP, b""), index=1, term=0, prev_crc=0, base_offset=0, append_time_us=0)


class Tail:
    """Consecutive entries up to the log's last one. An empty tail starts after it."""

    __slots__ = ("_budget", "_entries", "_kept_from", "_positions", "_skip", "bytes", "first_index", "listed")

    def __init__(self, next_index: int, budget: TailBudget) -> None:
        self.first_index = next_index
        self.listed = False  # see BudgetedTail
        self.bytes = 0  # invariant: the sum of `cost` over all entries; the budget includes it
        self._budget = budget
        self._kept_from = 0  # entries below this index may be dropped
        self._skip = 0  # the first so many items of the lists are dropped entries; the lists are cut now and then
        self._entries: list[Entry] = []  # invariant: consecutive from item `_skip`, whose index is `first_index`
        self._positions: list[int] = []  # the frame of the entry at the same place begins there in its segment

    @property
    def next_index(self) -> int:
        return self.first_index + len(self._entries) - self._skip

    def append(self, entry: Entry, position: int) -> None:
        self._entries.append(entry)
        self._positions.append(position)
        added = entry.header.length + ENTRY_OBJECT_BYTES
        self.bytes += added
        budget = self._budget
        budget.bytes += added
        if self.listed:
            budget.touch(self)

    def entry(self, index: int) -> Entry | None:
        """The entry at `index`; None if it is not in memory."""
        item = index - self.first_index
        if item < 0 or index >= self.next_index:
            return None
        return self._entries[self._skip + item]

    def position(self, index: int) -> int:
        """The position of the entry's frame in its segment. Asserts that the entry is in memory."""
        assert self.first_index <= index < self.next_index
        return self._positions[self._skip + index - self.first_index]

    def slice(self, index: int, bytes_max: int) -> list[Entry] | None:
        """Entries from `index` on, at least one; [] past the end; None if `index` is not in memory."""
        item = index - self.first_index
        if item < 0:
            return None
        item += self._skip
        entries = self._entries
        end = item
        while end < len(entries):
            bytes_max -= entries[end].header.length + HEADER_SIZE
            if bytes_max < 0 and end > item:
                break
            end += 1
        return entries[item:end]

    def frames(self, offset: int, end_offset: int, bytes_max: int) -> bytes | None:
        """Whole frames with records. The first one holds `offset`; None if that one is not in memory, as when its
        PUBLISH entry is, and its batch is not."""
        entries = self._entries
        item = self._place_of(offset)
        if item < self._skip:
            return None
        parts: list[bytes | memoryview] = []
        for i in range(item, len(entries)):
            entry = entries[i]
            header = entry.header
            if header.base_offset >= end_offset:
                break
            if header.kind != Kind.DATA or header.next_offset <= offset:
                if header.kind == Kind.PUBLISH and header.next_offset > offset:
                    bytes_max = self._add_published(entry, (offset, end_offset), bytes_max, parts)
                    if bytes_max < 0:
                        break
                continue
            bytes_max -= header.length + HEADER_SIZE
            if bytes_max < 0 and parts:
                break
            parts.append(entry.head)
            parts.append(entry.payload)
        return b"".join(parts) if parts else None

    def publish_at(self, offset: int) -> Entry | None:
        """The PUBLISH entry that has the record at `offset`; None if another entry has it, or one that is not in
        memory."""
        item = self._place_of(offset)
        if item < self._skip or self._entries[item].header.kind != Kind.PUBLISH:
            return None
        return self._entries[item]

    def _place_of(self, offset: int) -> int:
        """The place of the entry that holds `offset`, unless that is past the end; below `_skip` if it is not in
        memory."""
        # An entry without records has the base offset of the next one. So the last entry whose base offset is not above
        # `offset` holds it.
        return bisect_right(self._entries, offset, lo=self._skip, key=_base_offset) - 1

    def _add_published(
        self, publish: Entry, offsets: tuple[int, int], bytes_max: int, parts: list[bytes | memoryview]
    ) -> int:
        """Add the batches of a PUBLISH entry to `parts`. Returns how many bytes may follow; below 0: the frames end
        here."""
        with suppress(CorruptData):  # reported when the frames are read by another way
            for item in published_items(publish.header, publish.payload, *offsets):
                bytes_max -= item.length + HEADER_SIZE
                staged = self.entry(item.entry_index)
                if staged is None or misfit(item, staged.header) or (bytes_max < 0 and parts):
                    return -1
                parts += made_head(publish.header, item), memoryview(staged.payload)[STAGED_HEAD_SIZE:]
            return bytes_max
        return -1

    def cut_from(self, index: int) -> None:
        """Forget the entries from `index` on, which are truncated."""
        if index <= self.first_index:
            self.first_index = index
            self._entries.clear()
            self._positions.clear()
            self._skip = 0
            self._take_off(self.bytes)
            return
        keep = self._skip + index - self.first_index
        self._take_off(sum(map(cost, self._entries[keep:])))
        del self._entries[keep:]
        del self._positions[keep:]

    def cut_before(self, index: int) -> None:
        """Forget the entries before `index`, whose segments are removed."""
        count = max(0, min(index, self.next_index) - self.first_index)
        self._drop(count, sum(map(cost, self._entries[self._skip : self._skip + count])))

    def release(self, index: int) -> None:
        """Allow the budget to drop the entries below `index`, which are durable and applied."""
        if index > self._kept_from:
            self._kept_from = index
            budget = self._budget
            if not self.listed:
                budget.add(self)
            if budget.bytes > budget.bytes_max:
                budget.make_room()

    def drop_oldest(self, excess_bytes: int) -> bool:
        """See BudgetedTail."""
        last = min(self._kept_from, self.next_index)
        count = gone_bytes = 0
        while gone_bytes < excess_bytes and self.first_index + count < last:
            gone_bytes += self._entries[self._skip + count].header.length + ENTRY_OBJECT_BYTES
            count += 1
        self._drop(count, gone_bytes)
        return self.first_index < last

    def close(self) -> None:
        """Take the tail out of the budget, because its log is closed. Readers may still use the tail."""
        self._budget.forget(self, self.bytes)
        self._budget = TailBudget(self.bytes)

    def _take_off(self, gone_bytes: int) -> None:
        self.bytes -= gone_bytes
        self._budget.bytes -= gone_bytes

    def _drop(self, count: int, gone_bytes: int) -> None:
        """Forget the first `count` entries, which take `gone_bytes`. Shorten the lists now and then."""
        if not count:
            return
        for item in range(self._skip, self._skip + count):
            self._entries[item] = _DROPPED
        self._take_off(gone_bytes)
        self._skip += count
        self.first_index += count
        if self._skip >= _COMPACT_MIN and self._skip * 2 >= len(self._entries):
            del self._entries[: self._skip]
            del self._positions[: self._skip]
            self._skip = 0


def cost(entry: Entry) -> int:
    """The bytes that an entry takes in memory."""
    return entry.header.length + ENTRY_OBJECT_BYTES


def _base_offset(entry: Entry) -> int:
    return entry.header.base_offset
