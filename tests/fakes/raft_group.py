"""A Raft group of one replica that commits when a test says so. Entries, offsets and terms are real."""

from __future__ import annotations

from collections.abc import Callable

from tinymq.base.errors import DeadlineExceeded, NotLeader, TinymqError
from tinymq.base.types import GroupId, Position, TopicId
from tinymq.format.entry import Entry, Kind, NewEntry, make_entry
from tinymq.format.feature_level import KNOWN_LEVEL
from tinymq.log.segment.reads import Frames

NOW_US = 1_700_000_000_000_000


class FakeLog:
    """A log with all entries in memory, or none (`cold`)."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.log_start_offset = 0
        self.cold = False
        self.synced_index = 1 << 62  # everything is synced at once, unless a test says how far

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def reader(self) -> FakeLog:
        return self

    @property
    def time_index(self) -> FakeLog:
        return self

    async def read(self, index: int, bytes_max: int) -> list[Entry]:
        return [entry for entry in self.entries if entry.index >= index]

    def tail_from_offset(self, offset: int, end_offset: int, bytes_max: int) -> bytes | None:
        return None if self.cold else self._frames(offset, end_offset, bytes_max)

    async def read_from_offset(self, offset: int, end_offset: int, bytes_max: int) -> bytes | memoryview:
        return self._frames(offset, end_offset, bytes_max)

    async def find_from_offset(self, offset: int, end_offset: int, bytes_max: int) -> Frames:
        return await self.read_from_offset(offset, end_offset, bytes_max)

    async def entry_for_time(self, timestamp_us: int, end_offset: int, start_offset: int = 0) -> Entry | None:
        data = self._data(end_offset, start_offset)
        return next((e for e in data if e.header.max_timestamp_us >= timestamp_us), None)

    async def entry_of_max_timestamp(self, end_offset: int, start_offset: int = 0) -> Entry | None:
        return max(self._data(end_offset, start_offset), key=lambda e: e.header.max_timestamp_us, default=None)

    def closed_below(self, offset: int) -> list[tuple[int, int, int]]:
        return []  # one segment, which is open

    def remove_before_offset(self, offset: int, keep_from: int | None = None) -> None:
        """A trim only moves the start; the entries stay, so that the test can check them."""
        bases = [e.header.base_offset for e in self.entries if e.header.next_offset > offset]
        self.log_start_offset = max(self.log_start_offset, min([*bases, offset]))

    def _data(self, end_offset: int, start_offset: int = 0) -> list[Entry]:
        data = [e for e in self.entries if e.header.kind == Kind.DATA]
        return [e for e in data if e.header.base_offset < end_offset and e.header.next_offset > start_offset]

    def _frames(self, offset: int, end_offset: int, bytes_max: int) -> bytes:
        taken: list[bytes] = []
        size = 0
        for entry in self._data(end_offset):
            if entry.header.next_offset <= offset:
                continue
            if taken and size + entry.size > bytes_max:
                break
            taken += [entry.head, entry.payload]
            size += entry.size
        return b"".join(taken)


class FakeGroup:
    """Leads from the start by default. `commit()` applies the proposed entries."""

    def __init__(
        self,
        machine: object,
        id: GroupId | None = None,
        on_proposed: Callable[[], None] | None = None,
        leads: bool = True,
    ) -> None:
        self.id = id or GroupId(TopicId(b"t" * 16), 0)
        self.machine = machine
        self.log = FakeLog()
        self.term = 1
        self.leader: int | None = 1
        self.failure: TinymqError | None = None
        self.feature_level = KNOWN_LEVEL
        self.applied = 0
        self.next_offset = 0
        self.on_proposed = on_proposed
        self.proves = True  # a majority confirms that there is no later leader
        self.reads = 0
        self.knows_time = True  # a majority's clocks are heard
        self.later_us = 0  # how much more time has passed than entries tell
        self._leads = leads
        if leads:
            self._start_leading()

    def _start_leading(self) -> None:
        self._append(NewEntry(Kind.NOOP, b""))
        self.commit()
        self.machine.lead(self.term)  # type: ignore[attr-defined]

    def propose(self, new: NewEntry, *, raises_level: bool = False) -> Position:
        if not self._leads:
            raise NotLeader("a fake follower", leader=self.leader)
        entry = self._append(new)
        if self.on_proposed is not None:
            self.on_proposed()
        return Position(entry.index, entry.term, entry.header.base_offset, entry.header.append_time_us)

    def append_time_now_us(self) -> int:
        if not self._leads:
            raise NotLeader("a fake follower", leader=self.leader)
        return NOW_US + len(self.log.entries) + self.later_us

    def expiry_now_us(self) -> int | None:
        return self.append_time_now_us() if self.knows_time else None

    async def read_index(self, timeout_s: float) -> int:
        if not self._leads:
            raise NotLeader("a fake follower", leader=self.leader)
        if not self.proves:
            raise DeadlineExceeded(f"nobody answered in {timeout_s} s")
        self.reads += 1
        return self.applied

    def _append(self, new: NewEntry) -> Entry:
        last = self.log.entries[-1] if self.log.entries else None
        time_us = NOW_US + len(self.log.entries) + self.later_us
        entry = make_entry(
            new,
            index=last.index + 1 if last else 1,
            term=self.term,
            prev_crc=last.header.header_crc if last else 0,
            base_offset=self.next_offset,
            append_time_us=time_us,
        )
        self.log.entries.append(entry)
        self.next_offset = entry.header.next_offset
        return entry

    def commit(self, count: int | None = None) -> None:
        """Apply the next `count` proposed entries; None: all."""
        end = len(self.log.entries) if count is None else self.applied + count
        while self.applied < end:
            entry = self.log.entries[self.applied]
            self.applied += 1
            self.machine.apply(entry)  # type: ignore[attr-defined]

    def lose_leadership(self, to: int | None = 2, keep_tail: bool = False) -> None:
        """Let another broker lead in the next term; the uncommitted tail is truncated unless `keep` is set."""
        self._leads = False
        self.leader = to
        self.term += 1
        if not keep_tail:
            del self.log.entries[self.applied :]
            self.next_offset = self.log.entries[-1].header.next_offset if self.log.entries else 0
        self.machine.follow()  # type: ignore[attr-defined]

    def win(self) -> None:
        """Lead again in a new term: all entries in the log are committed first."""
        self.term += 1
        self.leader = 1
        self._leads = True
        self._start_leading()
