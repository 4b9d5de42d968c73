"""A model of Raft for coordinators: brokers with one committed log, of which one leads, and one may not know that it
was deposed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinymq.base.errors import DeadlineExceeded, NotLeader
from tinymq.base.types import GroupId, Position, TopicId
from tinymq.broker.members.coordinator_replica import CoordinatorReplica
from tinymq.format.entry import Entry, NewEntry, make_entry
from tinymq.format.feature_level import KNOWN_LEVEL
from tinymq.raft import Membership

if TYPE_CHECKING:
    from tests.chaos.coordinator_world import CoordinatorWorld

COORDINATOR = GroupId(TopicId(b"c" * 16), 0)


class NoLog:
    def remove_before(self, index: int) -> None: ...


class Raft:
    """One broker's replica of the coordinator's partition (the part of tinymq.raft.Group that a coordinator uses)."""

    def __init__(self, world: CoordinatorWorld, number: int) -> None:
        self.number, self.id, self.log, self.failure = number, COORDINATOR, NoLog(), None
        self.world = world
        self.feature_level = KNOWN_LEVEL
        self.membership = Membership(COORDINATOR, 1, ())
        self.machine = CoordinatorReplica(f"__coordinator/0@{number}", lambda broker: f"broker-{broker}")
        self.machine.attach(self)
        self.leader: int | None = None
        self.term = 0
        self.applied = 0
        self.tail: list[Entry] = []  # appended here as the leader, and not committed

    @property
    def rules(self) -> bool:
        """Whether a majority follows this broker."""
        return self.world.ruler == self.number

    def propose(self, new: NewEntry, *, raises_level: bool = False) -> Position:
        if self.leader != self.number:
            raise NotLeader("not led here", leader=self.leader)
        entry = self.entry(new)
        self.tail.append(entry)
        self.world.later(self.world.delay(), lambda: self.commit(entry))
        return Position(entry.index, entry.term, 0, 0)

    def entry(self, new: NewEntry) -> Entry:
        before = self.world.log[: self.applied] + self.tail
        prev_crc = before[-1].header.header_crc if before else 0
        return make_entry(
            new,
            index=len(before) + 1,
            term=self.term,
            prev_crc=prev_crc,
            base_offset=0,
            append_time_us=self.append_time_now_us(),
        )

    def append_time_now_us(self) -> int:
        return 1 + int(self.world.clock.monotonic() * 1e6)

    def commit(self, entry: Entry) -> None:
        if not self.rules or entry not in self.tail:
            return
        upto = self.tail.index(entry) + 1
        self.world.log += self.tail[:upto]
        del self.tail[:upto]
        self.apply()
        for other in self.world.rafts:
            self.world.later(self.world.rng.choice((0.01, 0.05, 1.0)), other.follow_up)

    def follow_up(self) -> None:
        """Learn what is committed, unless this broker still believes that it leads."""
        if self.leader != self.number or self.machine.leading:
            self.apply()

    def apply(self) -> None:
        while self.applied < len(self.world.log):
            self.applied += 1
            self.machine.apply(self.world.log[self.applied - 1])

    async def read_index(self, timeout_s: float) -> int:
        if self.leader != self.number:
            raise NotLeader("not led here", leader=self.leader)
        await self.world.clock.sleep(self.world.delay())
        if not self.rules:
            await self.world.clock.sleep(timeout_s)
            raise DeadlineExceeded("no majority confirmed")
        return self.applied

    def step_down(self, leader: int | None = None) -> None:
        if self.leader == self.number:
            self.tail.clear()
            self.machine.follow()
        self.leader = leader
