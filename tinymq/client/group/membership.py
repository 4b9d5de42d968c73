"""A member of a stream group: its session with the group's coordinator, and what it owns.

Rules, each of which closes a way to hand a partition's records out twice (docs/groups.md):

- The member owns nothing once `rejoin_ms` has passed since it *sent* the last heartbeat that was answered.
- Each heartbeat has a rising number and the full list of what the member owns.
- A heartbeat names the newest epoch that was taken or dropped. An assignment is no heartbeat's answer.
- An assignment of an epoch that was taken or dropped before is not taken again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol
from zlib import crc32

from tinymq.base.errors import InvalidRequest, NotFound, OutcomeUnknown, TinymqError
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.leader_calls import ask_leader
from tinymq.client.group.fetched_records import TopicPartition
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

COORDINATOR_TOPIC = "__coordinator"
SESSION_BYTES = 16
HEARTBEATS = 3  # within rejoin_ms
RETRY_S = 0.1
WAIT_S = 5.0  # for another assignment, in one request
LEAVE_S = 2.0


class Owner(Protocol):
    """The consumer. All calls on the loop; none blocks."""

    def assigned(self, place: TopicPartition, topic_id: bytes, epoch: int) -> None:
        """Read a partition under that epoch."""
        ...

    def revoke(self, place: TopicPartition) -> None:
        """Let a partition go as soon as nothing of it is in hand, then call `Membership.let_go`."""
        ...

    def lost(self, places: Sequence[TopicPartition]) -> None:
        """Hand out nothing more of these partitions: they may be another member's by now."""
        ...

    def failed(self, error: Exception) -> None:
        """The membership ended."""
        ...


class Membership:
    """One session, from `start` to `leave`."""

    def __init__(
        self, cluster: Cluster, owner: Owner, group: str, group_id: int, rejoin_s: float, instance_id: str | None
    ) -> None:
        self.session = cluster.rng.randbytes(SESSION_BYTES)
        self.owned: dict[TopicPartition, tuple[bytes, int]] = {}  # (topic id, epoch)
        self._cluster = cluster
        self._owner = owner
        self._group = group
        self._group_id = group_id
        self._rejoin_s = rejoin_s
        self._static = instance_id is not None
        self._member = instance_id or self.session.hex()
        self._until_s = 0.0  # the member owns nothing from then on
        self._number = 0
        self._taken = 0
        self._digest = 0
        self._fenced_at = 0
        self._revoking: set[TopicPartition] = set()
        self._beat = asyncio.Event()  # a heartbeat is due now
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for work in (self._beats(), self._assignments(), self._watch()):
            self._tasks.append(asyncio.create_task(self._guarded(work)))

    @property
    def alive(self) -> bool:
        """Whether the member may hand out records now. Callable from any thread."""
        return self._cluster.clock.monotonic() < self._until_s

    def let_go(self, place: TopicPartition, *, fenced_at: int = 0) -> None:
        """Own a partition no more, and tell the coordinator at once."""
        self.owned.pop(place, None)
        self._revoking.discard(place)
        self._fenced_at = max(self._fenced_at, fenced_at)
        self._beat.set()

    async def leave(self, *, stay: bool) -> None:
        """End the session. `stay`: only stop, so that the coordinator waits for a member with this instance id."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._until_s = 0.0
        if not stay:
            try:
                await self._heartbeat(LEAVE_S, leave=True)
            except TinymqError as error:  # its silence will end the session
                LOG.debug("group %s not left: %s", self._group, error)

    async def _guarded(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except TinymqError as error:
            self._drop(list(self.owned))
            self._owner.failed(error)

    # ---- heartbeats -------------------------------------------------------------------------------------------

    async def _beats(self) -> None:
        while True:
            self._beat.clear()
            try:
                await self._heartbeat(self._rejoin_s, leave=False)
            except (NotFound, InvalidRequest):  # the group was deleted
                raise
            except TinymqError as error:
                LOG.debug("group %s: no heartbeat: %s", self._group, error)
                await self._cluster.clock.sleep(RETRY_S)
                continue
            pause = asyncio.ensure_future(self._cluster.clock.sleep(self._rejoin_s / HEARTBEATS))
            due = asyncio.ensure_future(self._beat.wait())
            try:
                await asyncio.wait([pause, due], return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
                due.cancel()

    async def _heartbeat(self, timeout_s: float, *, leave: bool) -> None:
        sent_s = self._cluster.clock.monotonic()
        self._number += 1
        request = pb.HeartbeatRequest(
            group=self._group,
            group_id=self._group_id,
            member=self._member,
            session=self.session,
            number=self._number,
            owned=[
                pb.OwnedPartition(topic_id=topic_id, partition=place.partition, epoch=epoch)
                for place, (topic_id, epoch) in self.owned.items()
            ],
            taken=self._taken,
            fenced_at=self._fenced_at,
            leave=leave,
            static=self._static,
            client_id=self._cluster.config.client_id or "",
        )
        reply = await self._ask(request, timeout_s)
        # From when it was sent, not from when it was answered. An answer that comes late extends nothing: by then
        # everything was dropped, and it stays dropped.
        self._until_s = max(self._until_s, sent_s + self._rejoin_s) if not leave else 0.0
        lost = {(place.topic_id, place.partition) for place in reply.lost}
        self._drop([p for p, (topic_id, _) in self.owned.items() if (topic_id, p.partition) in lost])

    async def _watch(self) -> None:
        """Drop everything when the time is over."""
        while True:
            left_s = self._until_s - self._cluster.clock.monotonic()
            if left_s <= 0 and self.owned:
                self._drop(list(self.owned))
            await self._cluster.clock.sleep(max(0.02, min(left_s, self._rejoin_s / 10)))

    def _drop(self, places: Sequence[TopicPartition]) -> None:
        if places:
            for place in places:
                self.owned.pop(place, None)
                self._revoking.discard(place)
            self._beat.set()
            self._owner.lost(places)

    # ---- assignments ------------------------------------------------------------------------------------------

    async def _assignments(self) -> None:
        while True:
            request = pb.AwaitAssignmentRequest(
                group=self._group,
                group_id=self._group_id,
                member=self._member,
                session=self.session,
                digest=self._digest,
                wait_ms=int(min(WAIT_S, self._cluster.attempt_s / 2) * 1000),
            )
            try:
                reply = await self._ask(request, WAIT_S + self._cluster.attempt_s)
            except (NotFound, InvalidRequest):
                raise
            except TinymqError as error:
                LOG.debug("group %s: no assignment: %s", self._group, error)
                await self._cluster.clock.sleep(RETRY_S)
                continue
            if not reply.member:  # the next heartbeat joins
                await self._cluster.clock.sleep(RETRY_S)
            elif reply.digest != self._digest:
                self._digest = reply.digest
                self._take(reply.owned)

    def _take(self, assignment: Sequence[pb.OwnedPartition]) -> None:
        """Take a new assignment: all that the coordinator has committed for this member."""
        before = self._taken
        self._taken = max([before, *(owned.epoch for owned in assignment)])
        listed = {(owned.topic_id, owned.partition, owned.epoch) for owned in assignment}
        self._drop([p for p, (topic, epoch) in self.owned.items() if (topic, p.partition, epoch) not in listed])
        fresh: list[pb.OwnedPartition] = []
        for owned in assignment:
            place = TopicPartition(owned.topic, owned.partition)
            if owned.revoking:
                if place in self.owned and place not in self._revoking:
                    self._revoking.add(place)
                    self._owner.revoke(place)
            elif place not in self.owned and owned.epoch > before and owned.topic:
                fresh.append(owned)
        if fresh and self.alive:  # otherwise they are dropped, and the coordinator assigns them again
            for owned in fresh:
                place = TopicPartition(owned.topic, owned.partition)
                self.owned[place] = owned.topic_id, owned.epoch
                self._owner.assigned(place, owned.topic_id, owned.epoch)
        self._beat.set()

    async def _ask(self, request: pb.HeartbeatRequest | pb.AwaitAssignmentRequest, timeout_s: float) -> Any:
        left: Callable[[], float] = self._cluster.countdown(timeout_s)
        topic = await self._cluster.topic(COORDINATOR_TOPIC, timeout_s)
        number = topic.numbers[crc32(self._group.encode()) % len(topic.numbers)]
        try:
            return await ask_leader(self._cluster, topic, number, request, timeout_s=max(0.05, left()), changes=False)
        except NotFound as error:
            if COORDINATOR_TOPIC in error.message:
                raise OutcomeUnknown(error.message) from None
            raise
