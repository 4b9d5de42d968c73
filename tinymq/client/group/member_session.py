"""A member's session with the coordinator of its stream group. member_state.py decides, and this module sends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import itemgetter
from typing import Protocol

from tinymq.base.clock import Clock
from tinymq.base.errors import Denied, InvalidRequest, NotFound, TinymqError
from tinymq.client.consume.records import Message
from tinymq.client.group.fetched_records import TopicPartition
from tinymq.client.group.member_state import Assigned, MemberState, Ownership
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

SESSION_BYTES = 16
HEARTBEATS = 3  # within rejoin_ms
RETRY_S = 0.1
WAIT_S = 5.0  # for another assignment, in one request
LEAVE_S = 2.0
LOOK_S = 0.02  # the shortest pause between two checks whether the session's time is over

_SECOND = itemgetter(1)


class MemberOwner(Protocol):
    """The consumer. All calls on the loop; none blocks."""

    def assigned(self, place: TopicPartition, grant: Ownership) -> None:
        """Read a partition under that grant."""
        ...

    def revoke(self, place: TopicPartition, grant: Ownership) -> None:
        """Let a partition go as soon as nothing of it is in hand, then call `MemberSession.let_go`."""
        ...

    def lost(self, places: Sequence[TopicPartition]) -> None:
        """Hand out nothing more of these partitions: they may be another member's by now."""
        ...

    def failed(self, error: Exception) -> None:
        """The membership ended."""
        ...


class SessionCoordinator(Protocol):
    """The part of CoordinatorCalls that a session uses."""

    async def heartbeat(self, request: pb.HeartbeatRequest, timeout_s: float) -> pb.HeartbeatReply: ...
    async def assignment(self, request: pb.AwaitAssignmentRequest, timeout_s: float) -> pb.AwaitAssignmentReply: ...


@dataclass(frozen=True, slots=True)
class MemberId:
    """Who joins which group."""

    group: str
    group_id: int
    session: bytes  # of this life of the consumer
    instance_id: str | None = None
    client_id: str = ""
    rack: str = ""

    @property
    def name(self) -> str:
        """The member's name in its group."""
        return self.instance_id or self.session.hex()


class MemberSession:
    """One session, from `start` to `leave`."""

    def __init__(
        self,
        me: MemberId,
        coordinator: SessionCoordinator,
        owner: MemberOwner,
        clock: Clock,
        *,
        rejoin_s: float,
        attempt_s: float,
    ) -> None:
        """`attempt_s`: how long one call at one broker may take."""
        self.me = me
        self._state = MemberState(rejoin_s)
        self._coordinator = coordinator
        self._owner = owner
        self._clock = clock
        self._rejoin_s = rejoin_s
        self._attempt_s = attempt_s
        self._beat = asyncio.Event()  # a heartbeat is due now
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for work in (self._beats(), self._assignments(), self._watch()):
            self._tasks.append(asyncio.create_task(self._guarded(work)))

    @property
    def alive(self) -> bool:
        """Whether the member may hand out records now. Callable from any thread."""
        return self._state.alive(self._clock.monotonic())

    def while_alive(self, messages: Iterator[Message]) -> Iterator[Message]:
        """Hand these messages out as long as the member may, by what it knows now. Then ask again.

        The time is compared before each message is drawn, all of it by C code: a line of Python for each message costs
        as much as the message. A message is not drawn unless it is handed out.
        """
        in_time = takewhile(self._state.until_s.__gt__, iter(self._clock.monotonic, None))
        return map(_SECOND, zip(in_time, messages, strict=False))

    def owns(self, place: TopicPartition, grant: Ownership) -> bool:
        """Whether the member still has a partition by that grant."""
        return self._state.owned.get(place) == grant

    def let_go(self, place: TopicPartition, grant: Ownership, *, fenced_at: int = 0) -> None:
        """Own a partition no more by that grant, and tell the coordinator at once."""
        self._state.let_go(place, grant, fenced_at=fenced_at)
        self._beat.set()

    async def leave(self, *, stay: bool) -> None:
        """End the session. `stay`: only stop, so that the coordinator waits for a member with this instance id."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._state.end()
        if not stay:
            try:
                await self._heartbeat(LEAVE_S, leave=True)
            except TinymqError as error:  # its silence will end the session
                LOG.debug("group %s not left: %s", self.me.group, error)
            self._state.end()

    async def _guarded(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except TinymqError as error:
            self._lose(self._state.drop(list(self._state.owned)))
            self._state.end()
            self._owner.failed(error)

    # ---- heartbeats -------------------------------------------------------------------------------------------

    async def _beats(self) -> None:
        while True:
            self._beat.clear()
            try:
                await self._heartbeat(self._rejoin_s, leave=False)
            except (NotFound, InvalidRequest, Denied):  # the group was deleted, or another session has the instance id
                raise
            except TinymqError as error:
                LOG.debug("group %s: no heartbeat: %s", self.me.group, error)
                await self._clock.sleep(RETRY_S)
                continue
            pause = asyncio.ensure_future(self._clock.sleep(self._rejoin_s / HEARTBEATS))
            due = asyncio.ensure_future(self._beat.wait())
            try:
                await asyncio.wait([pause, due], return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
                due.cancel()

    async def _heartbeat(self, timeout_s: float, *, leave: bool) -> None:
        beat = self._state.beat(self._clock.monotonic())
        request = pb.HeartbeatRequest(
            group=self.me.group,
            group_id=self.me.group_id,
            member=self.me.name,
            session=self.me.session,
            number=beat.number,
            owned=[
                pb.OwnedPartition(topic_id=grant.topic_id, partition=place.partition, epoch=grant.epoch)
                for place, grant in beat.owned.items()
            ],
            taken=beat.taken,
            fenced_at=beat.fenced_at,
            joined=beat.joined,
            leave=leave,
            static=self.me.instance_id is not None,
            client_id=self.me.client_id,
            rack=self.me.rack,
        )
        reply = await self._coordinator.heartbeat(request, timeout_s)
        lost = {(place.topic_id, place.partition) for place in reply.lost}
        self._lose(self._state.answered(beat, lost, reply.term, self._clock.monotonic()))

    async def _watch(self) -> None:
        """Drop everything when the time is over."""
        while True:
            now_s = self._clock.monotonic()
            self._lose(self._state.expired(now_s))
            await self._clock.sleep(max(LOOK_S, min(self._state.until_s - now_s, self._rejoin_s / 10)))

    def _lose(self, places: Sequence[TopicPartition]) -> None:
        if places:
            self._beat.set()
            self._owner.lost(places)

    # ---- assignments ------------------------------------------------------------------------------------------

    async def _assignments(self) -> None:
        while True:
            request = pb.AwaitAssignmentRequest(
                group=self.me.group,
                group_id=self.me.group_id,
                member=self.me.name,
                session=self.me.session,
                digest=self._state.digest,
                wait_ms=int(min(WAIT_S, self._attempt_s / 2) * 1000),
            )
            try:
                reply = await self._coordinator.assignment(request, WAIT_S + self._attempt_s)
            except (NotFound, InvalidRequest, Denied):
                raise
            except TinymqError as error:
                LOG.debug("group %s: no assignment: %s", self.me.group, error)
                await self._clock.sleep(RETRY_S)
                continue
            # Without a member, the next heartbeat joins.
            taken = reply.member and (reply.digest == self._state.digest or self._take(reply))
            if not taken:
                await self._clock.sleep(RETRY_S)

    def _take(self, reply: pb.AwaitAssignmentReply) -> bool:
        """Take a new assignment. False: it comes from a coordinator that was replaced."""
        assignment = [
            Assigned(TopicPartition(each.topic, each.partition), Ownership(each.topic_id, each.epoch), each.revoking)
            for each in reply.owned
        ]
        step = self._state.assigned(assignment, reply.term, reply.digest, self._clock.monotonic())
        self._lose(step.lost)
        for place, grant in step.revoke:
            self._owner.revoke(place, grant)
        for place, grant in step.take:
            self._owner.assigned(place, grant)
        self._beat.set()
        return not step.ignored
