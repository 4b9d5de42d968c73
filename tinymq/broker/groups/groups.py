"""Makes and deletes groups: a record in the registry, and a cursor in every partition of the group's topics.

    no record → MAKING → (a cursor is in every partition) → READY → DELETING → (no partition has one) → no record

Each step is a change of the record at the version that the last step left, so several brokers may go on with the same
group. The broker that takes a call carries it out. If it fails on the way, the leader of the metadata finishes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Protocol

import structlog

from tinymq.base.clock import Clock
from tinymq.base.errors import (
    AlreadyExists,
    DeadlineExceeded,
    InvalidConfig,
    NotReady,
    TinymqError,
    TopicExists,
    UnknownGroup,
    UnknownTopic,
    VersionConflict,
    WrongKind,
)
from tinymq.base.group_config import GroupKind, is_pattern
from tinymq.base.topic_config import SEGMENT_BYTES_MIN, TopicConfig
from tinymq.base.types import GroupId
from tinymq.broker.groups.alteration import Alteration, agreed_settings, altered
from tinymq.broker.groups.cursor_keeper import METHOD, CursorKeeper
from tinymq.broker.groups.dead_letter_topic import check_dead_letters
from tinymq.broker.groups.definition import RECORD_KIND, GroupDefinition, GroupPhase, check_group
from tinymq.broker.groups.group_list import GroupList
from tinymq.proto import group_pb2 as wire
from tinymq.registry.service import RegistryService

COORDINATOR_TOPIC = "__coordinator"
COORDINATORS = 16  # its partitions, for good: another number would give groups to other partitions
COORDINATOR_REPLICAS = 3
COORDINATOR_CONFIG = TopicConfig(segment_bytes=SEGMENT_BYTES_MIN, retention_ms=None)
LOOK_S = 0.05  # pause between two rounds of requests to the leaders
REQUEST_S = 6.0  # deadline for one leader's answer
REFRESH_S = 2.0
FINISH_EVERY_S = 5.0  # how often the metadata's leader looks for groups that are half made or half deleted
FINISH_S = 30.0

logger = structlog.get_logger("tinymq.broker")


class Peers(Protocol):
    """The part of the Raft host that reaches other brokers (tinymq.raft.Host)."""

    def leader_of(self, group_id: GroupId) -> tuple[int, int] | None: ...
    async def request(self, broker_id: int, method: str, body: bytes, timeout_s: float) -> bytes: ...
    def serve(self, method: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None: ...


class Errand(Enum):
    """A request to the leaders of a group's partitions. The values are past tense, for error texts."""

    MAKE = "made"
    DROP = "deleted"
    COUNT = "counted"  # count the records that workers hold


class Groups:
    """The groups of the cluster, for the services of one broker."""

    def __init__(
        self, registry: RegistryService, known: GroupList, keeper: CursorKeeper, peers: Peers, clock: Clock,
        *, finishes: Callable[[], bool], voters: Callable[[], Collection[int]],
    ) -> None:  # fmt: skip
        """`finishes` says whether this broker leads the metadata, and so finishes what failed brokers began. `voters`
        are those of the metadata group."""
        self.known = known
        self._registry = registry
        self._keeper = keeper
        self._peers = peers
        self._clock = clock
        self._finishes = finishes
        self._voters = voters
        self._driven: set[str] = set()  # groups that a call on this broker makes or deletes now
        self._tasks: list[asyncio.Task[None]] = []
        peers.serve(METHOD, keeper.serve)

    def start(self) -> list[asyncio.Task[None]]:
        """Follow the registry from now on, and keep cursors."""
        self.known.start()
        finishing = asyncio.get_running_loop().create_task(self._finish_all())
        self._tasks = [self._keeper.start(), finishing]
        return self._tasks

    async def stop(self) -> None:
        await self._keeper.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def group_changed(self, group: GroupId) -> None:
        """Note that the leader of a Raft group may have changed."""
        self._keeper.group_changed(group)

    async def refresh(self) -> None:
        """Bring the local list up to date with every change before this call. Raises NotReady."""
        try:
            await self._registry.refresh(REFRESH_S)
        except TinymqError as error:
            raise NotReady(f"the registry's leader does not answer: {error.message}") from error

    async def get(self, name: str) -> GroupDefinition:
        """A group, as of a moment during this call. Raises UnknownGroup, NotReady."""
        await self.refresh()
        group = self.known.get(name)
        if group is None:
            raise UnknownGroup(f"no group {name[:300]!r}")
        return group

    async def create(self, wanted: GroupDefinition, timeout_s: float, *, exist_ok: bool) -> GroupDefinition:
        """Make a group. Returns when its cursor is in every partition of its topics.

        With `exist_ok`, an existing group of that name and kind is accepted; its topics and settings do not change.
        Raises InvalidName, InvalidRequest, InvalidConfig, UnknownTopic, AlreadyExists, WrongKind; NotReady while a
        group of that name is being deleted; DeadlineExceeded while the group is still being made: repeat the call.
        """
        check_group(wanted)
        deadline_s = self._clock.monotonic() + timeout_s
        if wanted.kind is GroupKind.STREAM:
            await self.make_coordinators(timeout_s)
        made = False  # by this call, which may have no command id
        while True:
            await self.refresh()
            present = self.known.get(wanted.name)
            if present is not None:
                _check_same(present, wanted, exist_ok or made)
                return await self._complete(present, deadline_s)
            check_dead_letters(wanted, self._registry.get_all_topics())
            for topic in wanted.topics:
                if not is_pattern(topic) and self._registry.get_topic(topic) is None:
                    raise UnknownTopic(f"no topic {topic!r}")
            try:
                await self._registry.put_record(RECORD_KIND, wanted.name, wanted.pack(), 0, timeout_s)
            except VersionConflict:  # another call made it in this moment
                continue
            made = True
            logger.info("group_making", group=wanted.name, kind=wanted.kind.value, topics=wanted.topics)

    async def alter(self, name: str, change: Alteration, timeout_s: float, *, dry_run: bool = False) -> GroupDefinition:
        """Change settings of a group, pause it, or resume it. Returns when every leader of its partitions that can be
        reached follows the change.

        Raises UnknownGroup, WrongKind; InvalidConfig, also for a setting on which leases depend while a record is
        leased; NotReady while the group is made or deleted; DeadlineExceeded if a leader did not say whether it has
        leases.
        """
        deadline_s = self._clock.monotonic() + timeout_s
        while True:
            group = await self.get(name)
            if group.phase is not GroupPhase.READY:
                raise NotReady(f"group {name!r} is {group.phase.name.lower()}", hint="try again when that is done")
            after = altered(group, change)
            if after == group:
                return group
            check_dead_letters(after, self._registry.get_all_topics())
            agreed = agreed_settings(group, after)
            if agreed and (leased := await self.everywhere(group, deadline_s, Errand.COUNT)):
                hint = f"tinymq group pause {name}, and try again once its workers have settled what they have"
                raise InvalidConfig(f"{leased} records are leased: {', '.join(agreed)} cannot change now", hint=hint)
            if dry_run:
                return after
            try:
                record = await self._registry.put_record(RECORD_KIND, name, after.pack(), group.version, timeout_s)
            except VersionConflict:  # another call changed it in this moment
                continue
            logger.info("group_altered", group=name, settings=change.settings, paused=after.paused)
            after = replace(after, version=record.version)
            with suppress(DeadlineExceeded):  # the change is made: the other leaders follow when their registry has it
                await self.everywhere(after, deadline_s, Errand.COUNT)
            return after

    async def delete(self, name: str, timeout_s: float) -> int:
        """Delete a group. Returns when no partition has a cursor of it.

        Returns how many burials of the group ended unfinished: their records stay in their topics, and do not become
        dead letters. Raises UnknownGroup; DeadlineExceeded while the deletion goes on, and the name is still taken.
        """
        deadline_s = self._clock.monotonic() + timeout_s
        group = await self.get(name)
        return await self._remove(group, deadline_s)

    async def make_coordinators(self, timeout_s: float) -> None:
        """Make the topic that stores the members of stream groups, and transactions, at first use. Raises NotReady."""
        if self._registry.get_topic(COORDINATOR_TOPIC) is not None:
            return
        # As many replicas as the metadata has, up to three: the topic survives what the metadata survives.
        factor = max(1, min(COORDINATOR_REPLICAS, len(self._voters())))
        registered = len(self._registry.get_all_brokers())
        if registered < factor:
            raise NotReady(f"{registered} of {factor} brokers are registered that {COORDINATOR_TOPIC} needs")
        try:
            await self._registry.register_topic(
                COORDINATOR_TOPIC, COORDINATORS, factor, COORDINATOR_CONFIG, timeout_s=timeout_s
            )
        except TopicExists:
            await self.refresh()

    # ---- the steps ------------------------------------------------------------------------------------------

    async def _complete(self, group: GroupDefinition, deadline_s: float) -> GroupDefinition:
        """Bring a group from MAKING to READY."""
        if group.phase is GroupPhase.READY:
            return group
        self._driven.add(group.name)
        try:
            await self.everywhere(group, deadline_s, Errand.MAKE)
            ready = replace(group, phase=GroupPhase.READY)
            record = await self._registry.put_record(RECORD_KIND, group.name, ready.pack(), group.version)
            logger.info("group_ready", group=group.name, group_id=group.group_id)
            return replace(ready, version=record.version)
        except VersionConflict:
            now = await self.get(group.name)  # another broker was quicker, or somebody deletes the group
            if now.group_id != group.group_id or now.phase is not GroupPhase.READY:
                raise UnknownGroup(f"group {group.name!r} was deleted while it was made") from None
            return now
        except AlreadyExists:
            # In some partition a channel has the name. Drop the cursors that were made elsewhere.
            await self._remove(group, max(deadline_s, self._clock.monotonic() + REQUEST_S))
            raise
        finally:
            self._driven.discard(group.name)

    async def _remove(self, group: GroupDefinition, deadline_s: float) -> int:
        """Delete a group in any phase, its record last. Returns how many of its burials ended unfinished."""
        self._driven.add(group.name)
        try:
            while group.phase is not GroupPhase.DELETING:
                deleting = replace(group, phase=GroupPhase.DELETING)
                try:
                    record = await self._registry.put_record(RECORD_KIND, group.name, deleting.pack(), group.version)
                    group = replace(deleting, version=record.version)
                except VersionConflict:
                    now = await self.get(group.name)
                    if now.group_id != group.group_id:
                        raise UnknownGroup(f"group {group.name!r} was deleted, and made again") from None
                    group = now
            burials = await self.everywhere(group, deadline_s, Errand.DROP)
            try:
                await self._registry.remove_record(RECORD_KIND, group.name, group.version)
                logger.info("group_deleted", group=group.name, group_id=group.group_id)
            except VersionConflict:
                pass  # another broker has removed it
            return burials
        finally:
            self._driven.discard(group.name)

    async def everywhere(self, group: GroupDefinition, deadline_s: float, errand: Errand) -> int:
        """Wait until the leader of every partition of the group's topics has done the errand.

        Returns the sum of the leaders' answers: how many burials ended, or how many records are leased. Raises
        AlreadyExists where a channel has the name.
        """
        confirmed: dict[GroupId, int] = {}  # the number in its leader's answer, by partition
        reasons: dict[str, str] = {}
        first = True
        while True:
            if not first:
                # Take the newest topics: deleted ones need no confirmation any more, and added ones need one.
                await self.refresh()
            first = False
            missing = [place for place in self._places(group) if place not in confirmed]
            if not missing:
                return sum(confirmed.values())
            if self._clock.monotonic() >= deadline_s:
                open_ = f"{len(missing)} partitions have not answered: {'; '.join(sorted(set(reasons.values())))}"
                raise DeadlineExceeded(f"group {group.name!r} is still being {errand.value}: {open_}")
            reasons = await self._ask_leaders(group, missing, confirmed, errand)
            if reasons:
                await self._clock.sleep(LOOK_S)

    async def _ask_leaders(
        self, group: GroupDefinition, missing: list[GroupId], confirmed: dict[GroupId, int], errand: Errand
    ) -> dict[str, str]:
        """Ask the leaders of `missing`, and note their answers in `confirmed`. Returns why the others failed."""
        by_leader: dict[int, list[GroupId]] = {}
        reasons: dict[str, str] = {}
        taken: list[str] = []  # errors of partitions in which a channel has the group's name
        for place in missing:
            leader = self._peers.leader_of(place)
            if leader is None:
                reasons[str(place)] = f"{place} has no leader"
            else:
                by_leader.setdefault(leader[0], []).append(place)

        async def ask(broker_id: int, places: list[GroupId]) -> None:
            request = wire.CursorRequest(
                group=group.name,
                group_id=group.group_id,
                kind=group.cursor_kind,
                drop=errand is Errand.DROP,
                count=errand is Errand.COUNT,
                version=group.version,
                start_us=group.start_us,
                places=[wire.Place(topic_id=place.topic_id, partition=place.partition) for place in places],
            )
            try:
                body = await self._peers.request(broker_id, METHOD, request.SerializeToString(), REQUEST_S)
            except TinymqError as error:
                reasons[f"broker {broker_id}"] = f"broker {broker_id}: {error.message}"
                return
            for place, outcome in zip(places, wire.CursorReply.FromString(body).outcomes, strict=False):
                # AlreadyExists is final: while a channel has the name, the group cannot be made.
                if not outcome.error_code:
                    confirmed[place] = outcome.burials + outcome.leased
                elif outcome.error_code == AlreadyExists.code:
                    taken.append(outcome.error_message)
                else:
                    reasons[str(place)] = f"{place}: {outcome.error_message}"

        await asyncio.gather(*(ask(broker_id, places) for broker_id, places in by_leader.items()))
        if taken:
            raise AlreadyExists(taken[0], hint="choose another name, or delete the channel")
        return reasons

    def _places(self, group: GroupDefinition) -> list[GroupId]:
        topics = [topic for topic in self._registry.get_all_topics() if group.reads(topic.name)]
        return [queue.group for topic in topics for queue in topic.queues]

    async def _finish_all(self) -> None:
        """Finish creations and deletions whose broker has failed. Only the metadata's leader does this."""
        while True:
            before = {(group.name, group.version) for group in self.known.all()}
            await self._clock.sleep(FINISH_EVERY_S)
            for group in self.known.all() if self._finishes() else ():
                # Give the broker that makes it now one interval's time.
                unfinished = group.phase is not GroupPhase.READY and (group.name, group.version) in before
                if not unfinished or group.name in self._driven:
                    continue
                deadline_s = self._clock.monotonic() + FINISH_S
                try:
                    if group.phase is GroupPhase.DELETING:
                        await self._remove(group, deadline_s)
                    else:
                        await self._complete(group, deadline_s)
                except TinymqError as error:
                    logger.info("group_unfinished", group=group.name, error=error.code, reason=str(error))


def _check_same(present: GroupDefinition, wanted: GroupDefinition, exist_ok: bool) -> None:
    """Raises unless `present` is the group that the caller wants, or that an earlier attempt of the same call made."""
    if present.phase is GroupPhase.DELETING:
        raise NotReady(f"group {present.name!r} is being deleted", hint="try again when that is done")
    if present.command_id and present.command_id == wanted.command_id:
        return
    if not exist_ok:
        raise AlreadyExists(f"there is a group {present.name!r}")
    if present.kind is not wanted.kind:
        raise WrongKind(f"{present.name!r} is a {present.kind.value} group, not a {wanted.kind.value} group")
    if not set(wanted.topics) <= set(present.topics):
        hint = "name one of its topics, or another group; its progress would be lost if you deleted it"
        raise AlreadyExists(f"group {present.name!r} reads {', '.join(present.topics)}", hint=hint)
