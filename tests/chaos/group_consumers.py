"""Consumers of a random life: the membership that ships, on a network that delays, doubles and loses calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.broker.values import commits, opens
from tinymq.base.errors import DeadlineExceeded, NotLeader, OutcomeUnknown, TinymqError
from tinymq.base.types import PartitionId
from tinymq.broker.coordinator.coordinator import Coordinator
from tinymq.broker.coordinator.rules import MemberHeartbeat
from tinymq.broker.members.group_members import Member
from tinymq.client.group.fetched_records import TopicPartition
from tinymq.client.group.member_session import MemberId, MemberSession
from tinymq.client.group.member_state import Ownership
from tinymq.proto import partition_pb2 as stored
from tinymq.proto import tinymq_pb2 as pb
from tinymq_chaos.sim.virtual.event_loop import SimProcess, VirtualClock

if TYPE_CHECKING:
    from tests.chaos.group_lives import World

NAME = "g"
REJOIN_S = 3.0
ATTEMPT_S = 1.0


class Consumer:
    """Reads what its membership gives it, and commits: the shortest owner of a MemberSession."""

    def __init__(self, world: World, name: str, instance_id: str | None) -> None:
        self.name, self.world = name, world
        self.process = SimProcess(name)
        self.clock = VirtualClock(world.loop, self.process, start_s=world.rng.uniform(0, 100))
        self.reading: dict[TopicPartition, tuple[Ownership, int]] = {}  # (grant, position)
        self.leaving: dict[TopicPartition, Ownership] = {}
        self.opens: list[asyncio.Future[None]] = []
        self.told: list[str] = []
        self.error: Exception | None = None
        session = world.rng.randbytes(16)
        self.me = MemberId(NAME, world.group.group_id, session, instance_id)
        self.calls = Calls(world, self)
        self.membership = MemberSession(self.me, self.calls, self, self.clock, rejoin_s=REJOIN_S, attempt_s=ATTEMPT_S)

    def start(self) -> None:
        self.process.do(self.membership.start)
        self.process.spawn(self.work())

    def assigned(self, place: TopicPartition, grant: Ownership) -> None:
        self.opens.append(asyncio.ensure_future(self.open(place, grant)))

    def revoke(self, place: TopicPartition, grant: Ownership) -> None:
        if place in self.reading:
            self.leaving[place] = grant
        else:
            self.membership.let_go(place, grant)

    def lost(self, places: Sequence[TopicPartition]) -> None:
        self.told.append(f"lost {sorted(p.partition for p in places)}")
        for place in places:
            self.reading.pop(place, None)
            self.leaving.pop(place, None)

    def failed(self, error: Exception) -> None:
        self.error = error

    async def open(self, place: TopicPartition, grant: Ownership) -> None:
        try:
            outcome = await self.world.at_partition(place.partition, self.opening(grant))
        except TinymqError as error:
            await self.clock.sleep(0.2)
            self.membership.let_go(place, grant, fenced_at=int(error.detail.get("epoch", 0)))
            return
        if self.membership.owns(place, grant):
            self.reading[place] = grant, outcome.position
            self.world.opened(self, place, grant)

    def opening(self, grant: Ownership) -> stored.Command:
        command = opens(NAME, epoch=grant.epoch)
        command.open.kind, command.open.group_id = stored.STREAM, self.me.group_id
        command.open.session = self.me.session
        return command

    async def work(self) -> None:
        """Hand out one record after another, and commit now and then."""
        rng = self.world.rng
        while self.error is None:
            await self.clock.sleep(rng.uniform(0.02, 0.2))
            for place in list(self.leaving):
                await self.let_go(place)
            if not self.membership.alive or not self.reading:
                continue
            place = rng.choice(sorted(self.reading))
            grant, position = self.reading[place]
            self.world.handed_out(self, place, grant)
            if self.world.life.slow_handlers and rng.random() < 0.1:
                await self.clock.sleep(rng.uniform(0.5, 6.0))
            if self.reading.get(place) == (grant, position):
                self.world.handled[place.partition].add(position)
                self.reading[place] = grant, position + 1
                if rng.random() < 0.4:
                    with suppress(TinymqError):
                        await self.commit(place, grant, position + 1)

    async def let_go(self, place: TopicPartition) -> None:
        grant = self.leaving.pop(place, None)
        if grant is None:
            return  # lost while the one before was committed
        _, position = self.reading.pop(place)
        self.told.append(f"revoked {place.partition}")
        with suppress(TinymqError):
            await self.commit(place, grant, position)
        self.membership.let_go(place, grant)

    async def commit(self, place: TopicPartition, grant: Ownership, position: int) -> None:
        command = commits(position, NAME, grant.epoch, self.world.generations[place.partition])
        command.commit.kind, command.commit.group_id = stored.STREAM, self.me.group_id
        await self.world.at_partition(place.partition, command, by=self)


class Calls:
    """A member's calls to the coordinator, through a network that delays, doubles and loses them."""

    def __init__(self, world: World, consumer: Consumer) -> None:
        self.world, self.consumer = world, consumer
        self.broker = 0  # that answered last
        self.cut_until_s = 0.0  # until then the member reaches no other broker

    async def heartbeat(self, request: pb.HeartbeatRequest, timeout_s: float) -> pb.HeartbeatReply:
        beat = MemberHeartbeat(
            name=request.member,
            member=Member(request.session, request.client_id, request.static),
            number=request.number,
            owned={PartitionId(each.topic_id, each.partition): each.epoch for each in request.owned},
            taken=request.taken,
            fenced_at=request.fenced_at,
            joined=request.joined,
            leave=request.leave,
        )

        async def ask(at: Coordinator) -> pb.HeartbeatReply:
            lost, term = await at.heartbeat(request.group, request.group_id, beat)
            owned = [pb.OwnedPartition(topic_id=place.topic_id, partition=place.partition) for place in lost]
            return pb.HeartbeatReply(lost=owned, term=term)

        return await self.at_leader(ask, timeout_s)

    async def assignment(self, request: pb.AwaitAssignmentRequest, timeout_s: float) -> pb.AwaitAssignmentReply:
        async def ask(at: Coordinator) -> pb.AwaitAssignmentReply:
            found = await at.assignment(
                request.group, request.group_id, request.member, request.session, request.digest, ATTEMPT_S / 2
            )
            if found is None:
                return pb.AwaitAssignmentReply()
            owned = [
                pb.OwnedPartition(
                    topic_id=place.topic_id,
                    partition=place.partition,
                    epoch=at.epoch,
                    revoking=at.revoking,
                    topic="orders",
                )
                for place, at in found.owned.items()
            ]
            return pb.AwaitAssignmentReply(member=True, owned=owned, digest=found.digest, term=found.term)

        return await self.at_leader(ask, timeout_s)

    async def at_leader(self, ask: Callable[[Coordinator], Awaitable[Any]], timeout_s: float) -> Any:
        clock, until_s = self.consumer.clock, self.consumer.clock.monotonic() + timeout_s
        while True:
            broker = self.broker or self.world.believed_leader()
            try:
                answer = await self.world.call(lambda to=broker: ask(self.world.coordinators[to]), ATTEMPT_S)
                self.broker = broker
                return answer
            except (NotLeader, DeadlineExceeded, OutcomeUnknown) as error:
                if self.world.loop.time() >= self.cut_until_s:
                    self.broker = 0
                if clock.monotonic() + 0.1 >= until_s:
                    raise OutcomeUnknown(f"no answer: {error.message}") from None
                await clock.sleep(0.1)
