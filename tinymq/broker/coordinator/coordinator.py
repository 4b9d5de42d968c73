"""The coordinator of stream groups, on the broker that leads their partition of `__coordinator`.

It keeps in memory only what members repeat: who was heard when, and the number of the newest list. Everything that it
tells a member is applied, and so committed, state. A heartbeat is answered after a majority has confirmed, since the
heartbeat arrived, that this broker leads. A coordinator that was replaced therefore answers none, and its members stop
by themselves.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from tinymq.base.clock import Clock, within
from tinymq.base.errors import DeadlineExceeded, NotLeader, QuotaExceeded, TinymqError, UnknownGroup, WrongKind
from tinymq.base.group_config import GroupKind
from tinymq.broker.coordinator import rules
from tinymq.broker.coordinator.assignors import ASSIGNORS
from tinymq.broker.groups.definition import Group, GroupPhase
from tinymq.broker.groups.groups import COORDINATOR_TOPIC, Groups
from tinymq.broker.members.coordinator_replica import CoordinatorReplica
from tinymq.broker.members.group_members import Change, Member, Members, Owned, Place
from tinymq.registry.service import RegistryService

TICK_S = 0.1
CONFIRM_S = 2.0  # for a majority to confirm the leadership
MEMBERS_MAX = 1000  # of one group
DECISIONS_MAX = 5  # tries of one decision, each on a newer state

logger = structlog.get_logger("tinymq.broker")


@dataclass(slots=True)
class Session:
    """What this coordinator has heard of a member."""

    heard_s: float
    session: bytes = b""
    number: int = 0  # of the newest list


@dataclass(slots=True)
class GroupSessions:
    """What is known of one group beside its state, and gone with the leadership."""

    sessions: dict[str, Session] = field(default_factory=dict)
    asked_s: dict[Place, tuple[int, float]] = field(default_factory=dict)  # since when an owner is asked, by epoch
    deciding: asyncio.Lock = field(default_factory=asyncio.Lock)
    due: bool = True  # the assignment may not be what it should be
    waiting: set[asyncio.Future[None]] = field(default_factory=set)  # of members, for a change

    def wake(self) -> None:
        """Tell all that wait for a change."""
        waiting, self.waiting = self.waiting, set()
        for each in waiting:
            if not each.done():
                each.set_result(None)


@dataclass(frozen=True, slots=True)
class Heard:
    """One heartbeat of a member."""

    name: str
    member: Member
    number: int
    owned: Mapping[Place, int]  # epochs
    taken: int
    fenced_at: int = 0
    leave: bool = False


class Coordinator:
    """One per broker, for the partitions of `__coordinator` that it leads."""

    def __init__(
        self, registry: RegistryService, groups: Groups,
        replicas: Callable[[], Mapping[tuple[bytes, int], CoordinatorReplica]], clock: Clock,
    ) -> None:  # fmt: skip
        self._registry = registry
        self._groups = groups
        self._replicas = replicas
        self._clock = clock
        self._since: dict[str, float] = {}  # since when a replica leads, by its name
        self._known: dict[str, GroupSessions] = {}  # by group; of the groups of replicas that lead
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        self._registry.watch(lambda effects: self._all_due())
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self._task

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def on_role(self, replica: CoordinatorReplica) -> None:
        """A replica began to lead, or stopped."""
        if replica.leading:
            self._since[replica.name] = self._clock.monotonic()
        for name in replica.groups:
            known = self._known.pop(name, None)
            if known is not None:
                known.wake()

    def on_change(self, replica: CoordinatorReplica, name: str) -> None:
        """A change of a group is applied: tell the members that wait."""
        known = self._known.get(name)
        if known is not None and replica.leading:
            known.due = True
            known.wake()

    # ---- what members ask -------------------------------------------------------------------------------------

    async def heartbeat(self, name: str, group_id: int, heard: Heard) -> list[Place]:
        """Take a member's list, and return the partitions of it that are not the member's.

        Raises NotLeader, UnknownGroup, WrongKind, QuotaExceeded (too many members), DeadlineExceeded.
        """
        replica, group = await self._find(name, group_id)
        known = self._sessions(replica, name)
        session = known.sessions.get(heard.name)
        if session is not None and session.session == heard.member.session and heard.number < session.number:
            return []  # a later list has come already: this one says nothing any more
        known.sessions[heard.name] = Session(self._clock.monotonic(), heard.member.session, heard.number)
        if heard.leave:
            await self._decide(replica, group, lambda state: rules.left(state, [heard.name]))
            known.sessions.pop(heard.name, None)
            return []  # the member gave its partitions back: it lost none

        def list_heard(state: Members) -> Change:
            if heard.name not in state.members and len(state.members) >= MEMBERS_MAX:
                raise QuotaExceeded(f"group {name!r} has {MEMBERS_MAX} members")
            return rules.heard(state, heard.name, heard.member, heard.owned, heard.taken, heard.fenced_at)

        await self._decide(replica, group, list_heard)
        # Confirmed after the arrival: a leader that was replaced meanwhile must not extend anybody's time.
        await replica.group.read_index(CONFIRM_S)
        replica.check_leading()
        state = replica.groups.get(name, Members(group.group_id))
        return rules.lost(state, heard.name, heard.member.session, heard.owned)

    async def assignment(
        self, name: str, group_id: int, member: str, session: bytes, digest: int, wait_s: float
    ) -> tuple[dict[Place, Owned], int] | None:
        """The member's partitions and their digest, as soon as the digest is not `digest`, else after `wait_s`.

        None: the member is not in the group, and has to be heard first.
        """
        replica, _ = await self._find(name, group_id)
        until_s = self._clock.monotonic() + wait_s
        while True:
            replica.check_leading()
            known = self._sessions(replica, name)
            state = replica.groups.get(name)
            present = state.members.get(member) if state is not None else None
            if state is None or present is None or present.session != session:
                return None
            mine = state.of(member)
            now = digest_of(mine)
            left_s = until_s - self._clock.monotonic()
            if now != digest or left_s <= 0:
                return mine, now
            late = DeadlineExceeded("no other assignment came")
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            known.waiting.add(waiting)
            try:
                await within(self._clock, waiting, left_s, late)
            except DeadlineExceeded:
                pass
            finally:
                known.waiting.discard(waiting)

    async def members(self, name: str, group_id: int) -> Members:
        """The state of a group, as of a moment during this call."""
        replica, group = await self._find(name, group_id)
        await replica.group.read_index(CONFIRM_S)
        return replica.groups.get(name, Members(group.group_id))

    # ---- decisions --------------------------------------------------------------------------------------------

    async def _find(self, name: str, group_id: int) -> tuple[CoordinatorReplica, Group]:
        """The replica here that leads the group's partition, and the group."""
        topic = self._registry.get_topic(COORDINATOR_TOPIC)
        if topic is None:
            raise NotLeader(f"the topic {COORDINATOR_TOPIC} is not made yet")
        number = coordinator_of(name, len(topic.queues))
        replica = self._replicas().get((topic.topic_id, number))
        if replica is None:
            raise NotLeader(f"{COORDINATOR_TOPIC}/{number}: no replica is open here")
        replica.check_leading()
        group = self._groups.known.get(name)
        if group is None or group.group_id != group_id or group.phase is not GroupPhase.READY:
            group = await self._groups.get(name)
        if group.kind is not GroupKind.STREAM:
            raise WrongKind(f"{name!r} is a {group.kind.value} group")
        if group.group_id != group_id or group.phase is not GroupPhase.READY:
            raise UnknownGroup(f"group {name!r} of id {group_id} was deleted, or is not ready")
        return replica, group

    def _sessions(self, replica: CoordinatorReplica, name: str) -> GroupSessions:
        """What was heard of a group. The members of its state count as heard when this replica began to lead."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = GroupSessions()
            state = replica.groups.get(name)
            since_s = self._since.get(replica.name, self._clock.monotonic())
            for member in state.members if state is not None else ():
                known.sessions[member] = Session(since_s)
        return known

    async def _decide(self, replica: CoordinatorReplica, group: Group, decide: Callable[[Members], Change]) -> None:
        """Commit the change that `decide` returns for the applied state. One decision of a group at a time."""
        known = self._sessions(replica, group.name)
        async with known.deciding:
            replica.check_leading()
            state = replica.groups.get(group.name)
            if state is None or state.group_id < group.group_id:
                state = Members(group.group_id)  # an earlier group of this name left its state behind
            change = decide(state)
            if change:
                await replica.commit(group.name, state, change)

    def _all_due(self) -> None:
        for known in self._known.values():
            known.due = True

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(TICK_S)
            for replica in list(self._replicas().values()):
                for name in list(replica.groups) if replica.leading else ():
                    try:
                        await self._look(replica, name)
                    except TinymqError as error:
                        logger.info("group_waits", group=name, error=error.code, reason=str(error))

    async def _look(self, replica: CoordinatorReplica, name: str) -> None:
        """End sessions, take back what was not let go, and move on with the assignment."""
        group = self._groups.known.get(name)
        state = replica.groups[name]
        if group is None or group.group_id > state.group_id or group.phase is not GroupPhase.READY:
            await self._forget(replica, name, state)
            return
        known, config, now_s = self._sessions(replica, name), group.config(), self._clock.monotonic()

        def silent_s(member: str) -> float:
            session = known.sessions.setdefault(member, Session(now_s))
            return now_s - session.heard_s

        gone = rules.expired(state, silent_s, config["rejoin_ms"] / 1000, config["static_return_ms"] / 1000)
        if gone:
            logger.info("members_gone", group=name, members=gone)
            await self._decide(replica, group, lambda newer: rules.left(newer, gone))
            for member in gone:
                known.sessions.pop(member, None)
        late = self._late(known, replica.groups[name], now_s, config["revoke_ms"] / 1000)
        if late:
            await self._decide(replica, group, lambda newer: rules.freed(newer, late))
        if known.due:
            known.due = False
            places, assign = self._places(group), ASSIGNORS[config["assignor"]]
            await self._decide(replica, group, lambda newer: rules.rebalanced(newer, places, assign))

    @staticmethod
    def _late(known: GroupSessions, state: Members, now_s: float, revoke_s: float) -> list[Place]:
        """The partitions whose owners were asked to let go `revoke_s` ago."""
        asked = {place: at.epoch for place, at in state.owned.items() if at.revoking}
        known.asked_s = {
            place: before if (before := known.asked_s.get(place, (0, 0.0)))[0] == epoch else (epoch, now_s)
            for place, epoch in asked.items()
        }
        return [place for place, (_, since_s) in known.asked_s.items() if now_s - since_s >= revoke_s]

    async def _forget(self, replica: CoordinatorReplica, name: str, state: Members) -> None:
        """Drop the state of a group that was deleted, once the registry's leader says so."""
        await self._groups.refresh()
        group = self._groups.known.get(name)
        if (group is None or group.group_id > state.group_id) and replica.groups.get(name) is state:
            await replica.commit(name, state, Change(), remove=True)
            self._known.pop(name, None)

    def _places(self, group: Group) -> Sequence[Place]:
        topics: list[Any] = [topic for topic in self._registry.get_all_topics() if group.reads(topic.name)]
        return [Place(topic.topic_id, queue.partition) for topic in topics for queue in topic.queues]


def coordinator_of(group: str, partitions: int) -> int:
    """The partition of `__coordinator` that has a group's members."""
    return zlib.crc32(group.encode()) % partitions


def digest_of(owned: Mapping[Place, Owned]) -> int:
    """A number that differs, but for one in 2^32, where two assignments differ. Never 0."""
    lines = [
        f"{place.topic_id.hex()} {place.partition} {at.epoch} {at.revoking}" for place, at in sorted(owned.items())
    ]
    return zlib.crc32("\n".join(lines).encode()) | 1 << 32
