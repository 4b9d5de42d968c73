"""The end of a log in memory: entries and where their frames begin, bounded, for replication and tail reads."""

from __future__ import annotations

from bisect import bisect_right

from tinymq.entry import HEADER_SIZE, Entry, Kind, make_entry

_COMPACT_MIN = 1024  # dropped entries that are worth moving the others for
_DROPPED = make_entry(
    kind=Kind.NOOP, index=1, term=0, prev_crc=0, base_offset=0, record_count=0, append_time_us=0, max_timestamp_us=0,
    payload=b"",
)  # fmt: skip


class Tail:
    """Consecutive entries up to the log's last one. An empty tail starts after it."""

    __slots__ = ("_bytes_max", "_entries", "_positions", "_skip", "bytes", "first_index")

    def __init__(self, next_index: int, bytes_max: int) -> None:
        self.first_index = next_index
        self.bytes = 0
        self._bytes_max = bytes_max
        self._skip = 0  # entries before this one are dropped; the lists are cut now and then
        self._entries: list[Entry] = []
        self._positions: list[int] = []

    @property
    def next_index(self) -> int:
        return self.first_index + len(self._entries) - self._skip

    def append(self, entry: Entry, position: int) -> None:
        self._entries.append(entry)
        self._positions.append(position)
        self.bytes += entry.header.length + HEADER_SIZE

    def entry(self, index: int) -> Entry | None:
        at = index - self.first_index
        if at < 0 or index >= self.next_index:
            return None
        return self._entries[self._skip + at]

    def position(self, index: int) -> int:
        """Where the frame begins in its segment. Asserts that it is here."""
        assert self.first_index <= index < self.next_index
        return self._positions[self._skip + index - self.first_index]

    def slice(self, index: int, bytes_max: int) -> list[Entry] | None:
        """Entries from `index`, at least one; [] past the end; None when not in memory."""
        at = index - self.first_index
        if at < 0:
            return None
        at += self._skip
        entries = self._entries
        end = at
        while end < len(entries):
            bytes_max -= entries[end].header.length + HEADER_SIZE
            if bytes_max < 0 and end > at:
                break
            end += 1
        return entries[at:end]

    def frames(self, offset: int, end_offset: int, bytes_max: int) -> bytes | None:
        """Whole frames with records, the first one holding `offset`; None when that one is not in memory."""
        entries = self._entries
        at = bisect_right(entries, offset, lo=self._skip, key=_base_offset) - 1
        if at < self._skip:
            return None
        parts: list[bytes] = []
        for i in range(at, len(entries)):
            entry = entries[i]
            header = entry.header
            if header.base_offset >= end_offset:
                break
            if header.kind != Kind.DATA or header.next_offset <= offset:
                continue
            bytes_max -= header.length + HEADER_SIZE
            if bytes_max < 0 and parts:
                break
            parts.append(entry.head)
            parts.append(entry.payload)
        return b"".join(parts)

    def cut_from(self, index: int) -> None:
        """Drop entries from `index` on."""
        if index <= self.first_index:
            self.first_index = index
            self._entries.clear()
            self._positions.clear()
            self._skip = self.bytes = 0
            return
        keep = self._skip + index - self.first_index
        self.bytes -= sum(e.header.length + HEADER_SIZE for e in self._entries[keep:])
        del self._entries[keep:]
        del self._positions[keep:]

    def cut_before(self, index: int) -> None:
        """Drop entries before `index`."""
        self._drop(min(index, self.next_index) - self.first_index)

    def shrink(self, keep_from: int) -> None:
        """Drop the oldest while over the bound, but none from `keep_from` on."""
        count, over = 0, self.bytes - self._bytes_max
        while over > 0 and self.first_index + count < min(keep_from, self.next_index):
            over -= self._entries[self._skip + count].header.length + HEADER_SIZE
            count += 1
        self._drop(count)

    def _drop(self, count: int) -> None:
        """Forget the first `count` entries at once; make room in the lists now and then."""
        if count <= 0:
            return
        for at in range(self._skip, self._skip + count):
            self.bytes -= self._entries[at].header.length + HEADER_SIZE
            self._entries[at] = _DROPPED
        self._skip += count
        self.first_index += count
        if self._skip >= _COMPACT_MIN and self._skip * 2 >= len(self._entries):
            del self._entries[: self._skip]
            del self._positions[: self._skip]
            self._skip = 0


def _base_offset(entry: Entry) -> int:
    return entry.header.base_offset
