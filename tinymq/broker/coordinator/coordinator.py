"""The coordinator of stream groups, on the broker that leads their partition of `__coordinator`.

In memory it keeps only what members repeat: the time and the sequence number of each member's newest heartbeat. It
answers members from applied state, which is committed. Before it answers a heartbeat, a majority confirms that this
broker still leads. A deposed coordinator therefore answers no heartbeat, and its members stop by themselves.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import structlog

from tinymq.base.clock import Clock, within
from tinymq.base.errors import DeadlineExceeded, NotLeader, TinymqError, UnknownGroup, WrongKind
from tinymq.base.group_config import GroupKind
from tinymq.base.meter import Meter
from tinymq.base.types import PartitionId
from tinymq.broker.coordinator import rules
from tinymq.broker.coordinator.assignors import ASSIGNORS, among
from tinymq.broker.coordinator.led_replicas import LedReplicas, Replicas, confirm
from tinymq.broker.coordinator.rules import MemberHeartbeat
from tinymq.broker.coordinator.sessions import GroupSessions
from tinymq.broker.groups.definition import RECORD_KIND, GroupDefinition, GroupPhase
from tinymq.broker.groups.groups import COORDINATOR_TOPIC, Groups
from tinymq.broker.members.coordinator_replica import CoordinatorReplica
from tinymq.broker.members.group_members import Members, MembersDelta, Owned
from tinymq.registry.service import RegistryService

logger = structlog.get_logger("tinymq.broker")


class Assignment(NamedTuple):
    """The partitions that a member owns now."""

    owned: Mapping[PartitionId, Owned]
    digest: int
    term: int  # of the coordinator's leadership


class Coordinator:
    """One per broker, for the partitions of `__coordinator` that it leads."""

    def __init__(
        self, registry: RegistryService, groups: Groups, replicas: Replicas, clock: Clock, meter: Meter
    ) -> None:
        self._registry = registry
        self._groups = groups
        self._replicas = replicas
        self._clock = clock
        self._meter = meter
        self._since: dict[str, float] = {}  # monotonic seconds at which a replica here began to lead, by replica name
        self._known: dict[str, GroupSessions] = {}  # by group name; only groups whose partition this broker leads
        self._led = LedReplicas(replicas, self._advance_all, clock)

    def start(self) -> asyncio.Task[None]:
        self._registry.watch(lambda effects: self._all_due())
        self._registry.watch_records(RECORD_KIND, self._all_due)
        return self._led.start()

    async def stop(self) -> None:
        await self._led.stop()

    def on_role(self, replica: CoordinatorReplica) -> None:
        """Note that a replica began to lead, or stopped."""
        if replica.leading:
            self._since[replica.name] = self._clock.monotonic()
        for name in replica.groups:
            known = self._known.pop(name, None)
            if known is not None:
                known.wake()

    def on_change(self, replica: CoordinatorReplica, name: str) -> None:
        """Wake the members that wait for a group's assignment, because a change of the group is applied."""
        known = self._known.get(name)
        if known is not None and replica.leading:
            known.due = True
            known.wake()

    # ---- what members ask -------------------------------------------------------------------------------------

    async def heartbeat(self, name: str, group_id: int, beat: MemberHeartbeat) -> tuple[list[PartitionId], int]:
        """Take a member's heartbeat, which lists the partitions that the member reads.

        Returns the listed partitions that the member does not own (any more), and the coordinator's term. Raises
        NotLeader, UnknownGroup, WrongKind, Fenced (a later session has the member's instance id), QuotaExceeded (too
        many members), DeadlineExceeded.
        """
        replica, group = await self._find(name, group_id)
        known = self.sessions(replica, name)
        state = _state_of(replica, group)
        newest = known.hear(beat, state, self._clock.monotonic())
        if beat.leave:
            await self._decide(replica, group, lambda newer: rules.closed(newer, beat.name, beat.member.session))
            return [], replica.group.term  # the member gave its partitions back: it lost none
        if newest:
            await self._decide(replica, group, lambda newer: rules.heard(newer, beat))
        await confirm(replica)
        state = _state_of(replica, group)
        return rules.lost(state, beat.name, beat.member.session, beat.owned), replica.group.term

    async def assignment(
        self, name: str, group_id: int, member: str, session: bytes, digest: int, wait_s: float
    ) -> Assignment | None:
        """Return the member's partitions as soon as their digest differs from `digest`, or after `wait_s` seconds.

        Returns None if the member is not in the group: it has to send a heartbeat first. Raises as `heartbeat`.
        """
        replica, _ = await self._find(name, group_id)
        until_s = self._clock.monotonic() + wait_s
        while True:
            replica.check_leading()
            known = self.sessions(replica, name)
            state = replica.groups.get(name)
            present = state.members.get(member) if state is not None else None
            if state is None or present is None or present.session != session:
                return None
            mine = state.of(member)
            now = digest_of(mine)
            left_s = until_s - self._clock.monotonic()
            if now != digest or left_s <= 0:
                return Assignment(mine, now, replica.group.term)
            late = DeadlineExceeded("no other assignment came")
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            known.waiting[waiting] = None
            try:
                await within(self._clock, waiting, left_s, late)
            except DeadlineExceeded:
                pass
            finally:
                known.waiting.pop(waiting, None)

    async def members(self, name: str, group_id: int) -> Members:
        """The state of a group, as of a moment during this call."""
        replica, group = await self._find(name, group_id)
        await confirm(replica)
        return _state_of(replica, group)

    def led(self) -> Iterator[tuple[str, int]]:
        """The stream groups that are coordinated here, by name, and how many members each has."""
        topic, replicas = self._registry.get_topic(COORDINATOR_TOPIC), self._replicas()
        if topic is None or not topic.queues:
            return
        for group in self._groups.known.all():
            if group.kind is GroupKind.STREAM and group.phase is GroupPhase.READY:
                replica = replicas.get((topic.topic_id, coordinator_of(group.name, len(topic.queues))))
                if replica is not None and replica.leading:
                    yield group.name, len(_state_of(replica, group).members)

    # ---- decisions --------------------------------------------------------------------------------------------

    async def _find(self, name: str, group_id: int) -> tuple[CoordinatorReplica, GroupDefinition]:
        """Find this broker's replica of the group's partition, which has to lead, and the group."""
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

    def sessions(self, replica: CoordinatorReplica, name: str) -> GroupSessions:
        """The sessions of a group. A member in the applied state counts as heard when this replica began to lead."""
        known = self._known.get(name)
        if known is None:
            since_s = self._since.get(replica.name, self._clock.monotonic())
            known = self._known[name] = GroupSessions(since_s)
        return known

    async def _decide(
        self, replica: CoordinatorReplica, group: GroupDefinition, decide: Callable[[Members], MembersDelta]
    ) -> MembersDelta:
        """Commit the change that `decide` returns for the applied state, and return that change.

        Decisions on one group run one after the other.
        """
        known = self.sessions(replica, group.name)
        async with known.deciding:
            replica.check_leading()
            state = _state_of(replica, group)
            change = decide(state)
            if change:
                await replica.commit(group.name, state, change)
            return change

    def _all_due(self) -> None:
        for known in self._known.values():
            known.due = True

    async def _advance_all(self, replica: CoordinatorReplica) -> None:
        for name in list(replica.groups):
            if not replica.leading:
                return
            try:
                await self._advance(replica, name)
            except TinymqError as error:
                self.sessions(replica, name).due = True
                logger.info("group_waits", group=name, error=error.code, reason=str(error))

    async def _advance(self, replica: CoordinatorReplica, name: str) -> None:
        """End silent sessions, free partitions that their owners did not let go in time, and advance the assignment."""
        group, state = self._groups.known.get(name), replica.groups.get(name)
        if state is None:
            return
        if group is None or group.group_id > state.group_id or group.phase is not GroupPhase.READY:
            await self._forget(replica, name, state)
            return
        known, config = self.sessions(replica, name), group.config()
        rejoin_s, static_return_s = config["rejoin_ms"] / 1000, config["static_return_ms"] / 1000

        def gone(newer: Members) -> list[str]:
            return rules.expired(newer, known.silences(self._clock.monotonic()), rejoin_s, static_return_s)

        if gone(state):
            # The decision checks again: a heartbeat may have arrived while it waited for its turn.
            await self._decide(replica, group, lambda newer: rules.left(newer, gone(newer)))
            logger.info("members_gone", group=name, members=sorted(state.members.keys() - replica.groups[name].members))
        known.forget(replica.groups[name].members, self._clock.monotonic(), rejoin_s)
        late = known.late(replica.groups[name], self._clock.monotonic(), config["revoke_ms"] / 1000)
        if late:
            await self._decide(replica, group, lambda newer: rules.freed(newer, late))
        if known.due:
            known.due = False
            places = await self._places(group, replica.groups[name])
            assign = among(ASSIGNORS[config["assignor"]], config["max_members"])
            step = await self._decide(replica, group, lambda newer: rules.rebalanced(newer, places, assign))
            if step:
                self._meter.rebalanced(name)

    async def _forget(self, replica: CoordinatorReplica, name: str, state: Members) -> None:
        """Drop the state of a group that was deleted, once the registry's leader says so."""
        await self._groups.refresh()
        group = self._groups.known.get(name)
        if (group is None or group.group_id > state.group_id) and replica.groups.get(name) is state:
            await replica.commit(name, state, MembersDelta(), remove=True)
            self._known.pop(name, None)

    async def _places(self, group: GroupDefinition, state: Members) -> Sequence[PartitionId]:
        """The partitions that the group reads. Only the registry's leader can say that a partition was deleted."""
        places = self._known_places(group)
        if state.owned.keys() - set(places):
            await self._groups.refresh()
            places = self._known_places(group)
        return places

    def _known_places(self, group: GroupDefinition) -> list[PartitionId]:
        topics: list[Any] = [topic for topic in self._registry.get_all_topics() if group.reads(topic.name)]
        return [PartitionId(topic.topic_id, queue.partition) for topic in topics for queue in topic.queues]


def _state_of(replica: CoordinatorReplica, group: GroupDefinition) -> Members:
    """The applied state of a group."""
    state = replica.groups.get(group.name)
    # An earlier group of this name may have left its state behind.
    return state if state is not None and state.group_id >= group.group_id else Members(group.group_id)


def coordinator_of(group: str, partitions: int) -> int:
    """The number of the partition of `__coordinator` that stores a group's members."""
    return zlib.crc32(group.encode()) % partitions


def digest_of(owned: Mapping[PartitionId, Owned]) -> int:
    """A checksum of an assignment, never 0. Two different assignments have the same one with a chance of 1 in 2^32."""
    lines = [
        f"{place.topic_id.hex()} {place.partition} {at.epoch} {at.revoking}" for place, at in sorted(owned.items())
    ]
    return zlib.crc32("\n".join(lines).encode()) | 1 << 32
