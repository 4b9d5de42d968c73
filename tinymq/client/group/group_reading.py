"""A member's work on the partitions that its group assigns to it: open their cursors, read, commit, and let go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass

from tinymq.base.errors import (
    Fenced,
    InvalidRequest,
    NotFound,
    TinymqError,
    UnknownTopic,
    WrongKind,
)
from tinymq.client.cluster.background_tasks import Background
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.coordinator_calls import CoordinatorCalls
from tinymq.client.common.start_positions import KnownOffset, OffsetQuestion, Place
from tinymq.client.consume import cursors
from tinymq.client.consume.cursors import REQUEST_ID_BYTES, ChannelId, GroupRef
from tinymq.client.group.fetched_records import TopicPartition
from tinymq.client.group.member_session import SESSION_BYTES, MemberId, MemberSession
from tinymq.client.group.member_state import Ownership
from tinymq.client.group.partition_tasks import PartitionTasks
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

EARLIEST = KnownOffset(0)
OPEN_RETRY_S = 0.2
UNKNOWN_OFFSET = 1 << 63  # behind every record
PROBE_S = 2.0  # how often a commit is sent that moves nothing: it tells of a seek from outside

Tell = Callable[[str, Sequence[TopicPartition]], None]


@dataclass(slots=True)
class MemberCursor:
    """A group's cursor in a partition that this member reads."""

    id: ChannelId
    grant: Ownership
    generation: int
    committed: int
    probed_s: float

    @property
    def epoch(self) -> int:
        return self.grant.epoch


class GroupReading:
    """The partitions of one member, and the group's cursors in them."""

    def __init__(
        self,
        cluster: Cluster,
        tasks: PartitionTasks,
        group: str,
        ref: GroupRef,
        *,
        commit_interval_s: float,
        auto_commit: bool,
        rejoin_s: float,
        instance_id: str | None,
        tell: Tell,
        failed: Callable[[Exception], None],
        spawn: Callable[[Coroutine[object, object, None]], None],
    ) -> None:
        """`tell` calls the application's callback of that name. `spawn` runs a task until the consumer ends."""
        self.tasks = tasks
        self.cursors: dict[TopicPartition, MemberCursor] = {}
        # Without `auto_commit`: partitions that left with uncommitted records, and the offset behind the last one.
        self.given_up: dict[TopicPartition, int] = {}
        self.ended = False  # the consumer is closed
        self._cluster = cluster
        self._group = group
        self._ref = ref
        self._commit_interval_s = commit_interval_s
        self._auto_commit = auto_commit
        self._timeout_s = cluster.config.request_timeout_ms / 1000
        self._tell = tell
        self._failed = failed
        self._spawn = spawn
        me = MemberId(
            group,
            ref.group_id,
            session=cluster.rng.randbytes(SESSION_BYTES),
            instance_id=instance_id,
            client_id=cluster.config.client_id or "",
            rack=cluster.config.rack,
        )
        self.membership = MemberSession(
            me, CoordinatorCalls(cluster, group), self, cluster.clock, rejoin_s=rejoin_s, attempt_s=cluster.attempt_s
        )

    @classmethod
    async def join(
        cls,
        cluster: Cluster,
        tasks: PartitionTasks,
        group: str,
        topics: Sequence[str],
        start: Place,
        *,
        commit_interval_s: float,
        auto_commit: bool,
        instance_id: str | None,
        tell: Tell,
        background: Background,
        failed: Callable[[Exception], None],
    ) -> GroupReading:
        """Join a group, which is made if there is none, and begins at `start`. Raises WrongKind, AlreadyExists."""
        # Imported here: a program without a group needs no admin calls.
        from tinymq.client.admin.broker_calls import BrokerCalls
        from tinymq.client.admin.groups import KIND_NUMBERS, GroupCalls

        timeout_s = cluster.config.request_timeout_ms / 1000
        calls = GroupCalls(cluster, BrokerCalls(cluster))
        made = await calls.create(group, topics, "stream", start, {}, exist_ok=True, timeout_s=timeout_s)
        reading = cls(
            cluster,
            tasks,
            group,
            GroupRef(KIND_NUMBERS["stream"], made.group_id),
            commit_interval_s=commit_interval_s,
            auto_commit=auto_commit,
            rejoin_s=int(made.settings["rejoin_ms"]) / 1000,
            instance_id=instance_id,
            tell=tell,
            failed=failed,
            spawn=background.spawn,
        )
        reading.start()
        return reading

    def start(self) -> None:
        """Join the group."""
        self.membership.start()
        if self._auto_commit:
            self._spawn(self._commit_every())

    async def seek(self, place: TopicPartition, target: KnownOffset | OffsetQuestion) -> int:
        """Move the group's cursor, and return its position. Raises InvalidRequest, Fenced, OffsetOutOfRange."""
        cursor = self.cursors.get(place)
        if cursor is None:
            hint = "see assignment()"
            raise InvalidRequest(f"{place.topic}/{place.partition} is not read by this consumer", hint=hint)
        command = cursors.seeking(cursor.epoch, target, self._cluster.rng.randbytes(REQUEST_ID_BYTES))
        outcome = await cursors.change(self._cluster, cursor.id, command, self._timeout_s)
        cursor.generation, cursor.committed = outcome.generation, int(outcome.position)
        return cursor.committed

    def partition_gone(self, place: TopicPartition) -> None:
        """The topic or the partition was deleted."""
        cursor = self.cursors.get(place)
        if cursor is not None:
            self.lost([place])
            self.membership.let_go(place, cursor.grant)

    # ---- called by the membership -----------------------------------------------------------------------------

    def assigned(self, place: TopicPartition, grant: Ownership) -> None:
        self._spawn(self._begin(place, grant))

    def revoke(self, place: TopicPartition, grant: Ownership) -> None:
        if place not in self.cursors:  # it is not open yet, and will not be
            self.membership.let_go(place, grant)
            return
        # Kept until the taker asks again, if something of it is in hand; the coordinator waits for `revoke_ms`.
        position = self.tasks.records.release(place)
        if position is not None:
            self._spawn(self._let_go(place, position))

    def lost(self, places: Sequence[TopicPartition]) -> None:
        # A partition whose cursor is not open yet was never announced to the application.
        known = [place for place in places if self.cursors.pop(place, None) is not None]
        for place in known:
            self._note_given_up(place, UNKNOWN_OFFSET)  # some of its records may be in the taker's hand
        for place in places:
            self.tasks.stop(place)
        self.tasks.records.drop(places)
        for place in known:  # a program without `on_lost` should not wonder why nothing comes
            LOG.warning("group %s: lost %s/%d: it was deleted, or is another member's", self._group, *place)
        self._tell("lost", known)

    def closed(self) -> None:
        """Give everything back: the consumer ends."""
        self.ended = True
        places, self.cursors = list(self.cursors), {}
        self._tell("revoked", places)

    def failed(self, error: Exception) -> None:
        self._failed(error)

    async def _begin(self, place: TopicPartition, grant: Ownership) -> None:
        """Open the cursor under a new epoch, which fences the owner before, and read on from it."""
        membership = self.membership
        try:
            topic = await self._cluster.topic(place.topic, self._timeout_s)
            if topic.topic_id != grant.topic_id:  # deleted, and made again: the epoch is for the one before
                await self._cluster.refresh([place.topic], timeout_s=self._timeout_s)
                topic = await self._cluster.topic(place.topic, self._timeout_s)
            if topic.topic_id != grant.topic_id:
                raise UnknownTopic(f"{place.topic!r} is another topic than the one that was assigned")
            at = ChannelId(topic, place.partition, self._group, self._ref)
            command = cursors.opening(grant.epoch, EARLIEST)
            command.open.session = membership.me.session
            outcome = await cursors.change(self._cluster, at, command, self._timeout_s)
        except TinymqError as error:
            LOG.info("group %s: %s/%d not opened: %s", self._group, place.topic, place.partition, error)
            await self._cluster.clock.sleep(OPEN_RETRY_S)
            membership.let_go(place, grant, fenced_at=int(error.detail.get("epoch", 0)))
            return
        if not membership.owns(place, grant):
            return  # lost meanwhile
        now_s = self._cluster.clock.monotonic()
        self.cursors[place] = MemberCursor(at, grant, outcome.generation, int(outcome.position), now_s)
        self.tasks.start(place, topic, int(outcome.position))
        self._tell("assigned", [place])

    async def _let_go(self, place: TopicPartition, position: int) -> None:
        """Commit what is done of a partition, and confirm that it is let go."""
        cursor = self.cursors.pop(place, None)
        if cursor is None:
            return  # lost meanwhile
        self.tasks.stop(place)
        self._tell("revoked", [place])
        if position > cursor.committed:
            self._note_given_up(place, position)
        if self._auto_commit and position > cursor.committed:
            try:
                await self._commit_one(cursor, position, self._cluster.attempt_s)
            except TinymqError as error:  # its records are delivered again
                LOG.info("group %s: %s/%d not committed: %s", self._group, place.topic, place.partition, error)
        self.membership.let_go(place, cursor.grant)

    async def give_up(self, places: Iterable[TopicPartition]) -> None:
        """Let partitions go that are leaving, because nothing of them is in hand any more."""
        for place in list(places):
            if place in self.tasks.records.leaving:  # it may be lost while the one before is committed
                await self._let_go(place, self.tasks.records.leave(place))

    def _note_given_up(self, place: TopicPartition, position: int) -> None:
        if not self._auto_commit:
            self.given_up[place] = position

    # ---- commits ----------------------------------------------------------------------------------------------

    async def _commit_every(self) -> None:
        while True:
            await self._cluster.clock.sleep(self._commit_interval_s)
            await self.commit_done(self._cluster.attempt_s)

    async def commit_done(self, timeout_s: float, *, strict: bool = False) -> None:
        """Commit what is done, in all partitions. `strict`: raise the first error."""
        positions = self.tasks.records.positions()
        now_s = self._cluster.clock.monotonic()
        due = [
            (place, cursor, positions[place])
            for place, cursor in self.cursors.items()
            if place in positions and (positions[place] > cursor.committed or now_s - cursor.probed_s >= PROBE_S)
        ]
        errors = await asyncio.gather(*(self._commit_place(*each, timeout_s) for each in due))
        for error in errors:
            if strict and error is not None:
                raise error

    async def _commit_place(
        self, place: TopicPartition, cursor: MemberCursor, position: int, timeout_s: float
    ) -> TinymqError | None:
        try:
            await self._commit_one(cursor, max(position, cursor.committed), timeout_s)
        except Fenced as error:
            if self.cursors.get(place) is cursor:
                await self.reopen(place, cursor, self._cluster.attempt_s)
            return error
        except (NotFound, WrongKind) as error:  # the group, the topic or the partition was deleted
            if self.cursors.get(place) is cursor:
                self.lost([place])
                self.membership.let_go(place, cursor.grant)
            return error
        except TinymqError as error:  # the next commit includes it
            LOG.info("group %s: %s/%d not committed: %s", self._group, place.topic, place.partition, error)
            return error
        return None

    async def _commit_one(self, cursor: MemberCursor, offset: int, timeout_s: float) -> None:
        commit = pb.ChannelCommit(epoch=cursor.epoch, generation=cursor.generation, offset=offset)
        outcome = await cursors.change(self._cluster, cursor.id, pb.ChannelCommand(commit=commit), timeout_s)
        cursor.committed = max(cursor.committed, int(outcome.position))
        cursor.probed_s = self._cluster.clock.monotonic()

    async def reopen(self, place: TopicPartition, cursor: MemberCursor, timeout_s: float) -> TinymqError | None:
        """Read on from the group's own offset, after somebody moved it or a transaction was rolled back. Gives the
        partition up if another member owns it.

        Returns the error if that offset cannot be found out.
        """
        membership = self.membership
        command = cursors.opening(cursor.epoch, EARLIEST)
        command.open.session = membership.me.session
        try:
            outcome = await cursors.change(self._cluster, cursor.id, command, timeout_s)
        except Fenced as error:
            if self.cursors.get(place) is cursor:
                self.lost([place])
            membership.let_go(place, cursor.grant, fenced_at=int(error.detail.get("epoch", 0)))
            return None
        except TinymqError as error:
            return error
        if self.cursors.get(place) is cursor:
            cursor.generation, cursor.committed = outcome.generation, int(outcome.position)
            self.tasks.start(place, cursor.id.topic, cursor.committed)
        return None
