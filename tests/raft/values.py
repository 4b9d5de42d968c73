"""Small values that the tests of this room share: a group, its members, chained entries, a log in a list."""

from __future__ import annotations

from collections.abc import Sequence

from tinymq.base.types import GroupId, TopicId
from tinymq.format.entry import Entry, Kind, NewEntry, make_entry
from tinymq.raft.rules.membership import Membership, Replica

GROUP = GroupId(TopicId(b"g" * 16), 0)


def incarnation(broker_id: int) -> bytes:
    return bytes([broker_id]) * 16


def membership(count: int = 3) -> Membership:
    """Brokers 1 to `count`; 1 is preferred."""
    return Membership(GROUP, 1, tuple(Replica(b, incarnation(b)) for b in range(1, count + 1)))


def chain(terms: Sequence[int], after: Entry | None = None, payload: bytes = b"x") -> list[Entry]:
    """Entries of these terms, one record each, that follow `after`, or start a log."""
    made: list[Entry] = []
    last = after
    for term in terms:
        last = make_entry(
            NewEntry(Kind.DATA, payload, record_count=1),
            index=1 if last is None else last.index + 1,
            term=term,
            prev_crc=0 if last is None else last.header.header_crc,
            base_offset=0 if last is None else last.header.next_offset,
            append_time_us=1,
        )
        made.append(last)
    return made


class ListLog:
    """The log as decisions see it, durable up to `durable_index` (by default, all of it)."""

    def __init__(self, entries: Sequence[Entry], trimmed: int = 0, durable: int | None = None) -> None:
        self.entries = list(entries)
        self.trimmed = trimmed  # so many at the head are gone
        self.cold_before = 0  # entries below are not in memory
        self._durable = durable

    @property
    def first_index(self) -> int:
        return self.trimmed + 1

    @property
    def last_index(self) -> int:
        return len(self.entries)

    @property
    def durable_index(self) -> int:
        return self.last_index if self._durable is None else self._durable

    def term_at(self, index: int) -> int | None:
        if index == self.trimmed == 0:
            return 0
        if self.first_index - 1 <= index <= self.last_index:
            return self.entries[index - 1].term
        return None

    @property
    def reader(self) -> ListLog:
        return self

    def tail(self, index: int, bytes_max: int) -> list[Entry] | None:
        if index < self.cold_before:
            return None
        taken: list[Entry] = []
        size = 0
        for entry in self.entries[index - 1 :]:
            if taken and size + entry.size > bytes_max:
                break
            taken.append(entry)
            size += entry.size
        return taken

    def append(self, entries: Sequence[Entry]) -> None:
        self.entries.extend(entries)

    def truncate_from(self, index: int) -> None:
        del self.entries[index - 1 :]
