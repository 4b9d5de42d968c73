"""The calls between coordinators of transactions and the leaders of partitions: both ends, as messages between brokers.

A coordinator asks leaders what they hold and tells them its decisions; leaders ask the coordinator about transactions
that they have no decision of. A broker that does not answer is left out, and the caller asks again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError

from tinymq.base.errors import InvalidRequest, NotLeader, OutcomeUnknown, TinymqError
from tinymq.base.types import GroupId, PartitionId, TopicId
from tinymq.broker.coordinator.transaction_coordinator import StandingQuestion, TransactionCoordinator
from tinymq.broker.groups.groups import Peers
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.message_parts import pack_places, pack_ref, parse_ref
from tinymq.broker.transactions.rules import PARTITIONS_MAX, Standing
from tinymq.proto import transaction_pb2 as pb

METHOD = "transactions"
HELD_S = 2.0  # deadline for one leader's answer
END_S = 6.0  # the same for an end, which has to be committed

_STANDINGS: Mapping[Standing, pb.StandingReply.Standing.ValueType] = {
    Standing.UNRESOLVED: pb.StandingReply.UNRESOLVED,
    Standing.OPEN: pb.StandingReply.OPEN,
    Standing.PUBLISH: pb.StandingReply.PUBLISH,
    Standing.DISCARD: pb.StandingReply.DISCARD,
    Standing.LATER: pb.StandingReply.LATER,
}
Reply = TypeVar("Reply", pb.PartitionReply, pb.StandingReply, pb.StagedReply)
_STANDING_OF = {number: standing for standing, number in _STANDINGS.items()}


class LedPartition(Protocol):
    """A partition as its leader answers for it. The calls raise NotLeader or DeadlineExceeded unless the leader has
    applied the first entry of its own term, and a majority has confirmed since the call that it leads."""

    async def held(self, transaction: TransactionId, sets: Collection[int] | None = None) -> int:
        """How many staged entries of the transaction, or of these sets in it, are applied."""
        ...

    async def end(self, transaction: TransactionId, *, publish: bool, sets: Collection[int] | None = None) -> None:
        """Return once the end is applied, or once it is certain that nothing of the transaction is here. Raises
        OutcomeUnknown."""
        ...

    async def staged_batch(self, transaction: TransactionId) -> bytes:
        """The first batch of the transaction; b"" if none is stored. Raises BatchTooLarge, StorageError."""
        ...


class PeerTransactionCalls:
    """One per broker: it answers other brokers, and calls them (PartitionLeaders)."""

    def __init__(self, peers: Peers, partition_at: Callable[[PartitionId], LedPartition | None]) -> None:
        """`partition_at`: the replica of a partition that is open here."""
        self._peers = peers
        self._partition_at = partition_at
        self._coordinator: TransactionCoordinator | None = None
        peers.serve(METHOD, self.serve)

    def attach(self, coordinator: TransactionCoordinator) -> None:
        """Set this broker's coordinator, which makes its calls through this object."""
        self._coordinator = coordinator

    # ---- the coordinator's calls

    async def held(
        self, transaction: TransactionId, places: Collection[PartitionId], sets: Collection[int] | None = None
    ) -> Mapping[PartitionId, int]:
        """How many staged entries each partition has applied, of all writers or of some sets. Partitions that do not
        answer are missing."""

        def request(some: Sequence[PartitionId]) -> pb.TransactionRequest:
            held = pb.HeldRequest(transaction=pack_ref(transaction), topics=pack_places(some), writers=sets)
            return pb.TransactionRequest(held=held)

        answers = await self._ask_leaders(places, request, HELD_S)
        return {place: answer.held for place, answer in answers.items()}

    async def end(
        self,
        transaction: TransactionId,
        places: Collection[PartitionId],
        *,
        publish: bool,
        sets: Collection[int] | None = None,
    ) -> Collection[PartitionId]:
        """Publish the transaction's entries, or those of some sets alone, or discard them. Returns the partitions in
        which that is applied."""

        def request(some: Sequence[PartitionId]) -> pb.TransactionRequest:
            end = pb.EndRequest(
                transaction=pack_ref(transaction), publish=publish, topics=pack_places(some), writers=sets
            )
            return pb.TransactionRequest(end=end)

        return (await self._ask_leaders(places, request, END_S)).keys()

    async def staged(self, transaction: TransactionId, place: PartitionId) -> bytes | None:
        """The batch of a half message; b"": nothing of it is staged; None: its partition's leader does not show it."""
        leader = self._peers.leader_of(GroupId(TopicId(place.topic_id), place.partition))
        if leader is None:
            return None
        asked = pb.StagedRequest(transaction=pack_ref(transaction), topic_id=place.topic_id, partition=place.partition)
        body = pb.TransactionRequest(staged=asked).SerializeToString()
        try:
            reply = await self._request(leader[0], body, HELD_S, pb.StagedReply)
        except TinymqError:
            return None
        return None if reply.error_code else reply.batch

    async def _ask_leaders(
        self, places: Collection[PartitionId], request: Callable[[Sequence[PartitionId]], pb.TransactionRequest],
        timeout_s: float,
    ) -> dict[PartitionId, pb.PartitionAnswer]:  # fmt: skip
        """Ask the leader of each partition. Returns the answers without an error."""
        by_leader: dict[int, list[PartitionId]] = {}
        for place in sorted(places):
            leader = self._peers.leader_of(GroupId(TopicId(place.topic_id), place.partition))
            if leader is not None:
                by_leader.setdefault(leader[0], []).append(place)
        answers: dict[PartitionId, pb.PartitionAnswer] = {}

        async def ask(broker_id: int, some: Sequence[PartitionId]) -> None:
            body = request(some).SerializeToString()
            try:
                reply = await self._request(broker_id, body, timeout_s, pb.PartitionReply)
            except TinymqError:
                return  # the leader may have changed: the caller asks again
            answered = zip(some, reply.answers, strict=False)
            answers.update({place: answer for place, answer in answered if not answer.error_code})

        await asyncio.gather(*(ask(broker_id, some) for broker_id, some in by_leader.items()))
        return answers

    # ---- a leader's call

    async def standings(self, coordinator: GroupId, questions: Sequence[StandingQuestion]) -> list[Standing]:
        """Ask the coordinator that leads this partition of `__coordinator` for the outcome of transactions.

        Raises NotLeader (nobody is known to lead it), NotReady, Unavailable, DeadlineExceeded, OutcomeUnknown.
        """
        leader = self._peers.leader_of(coordinator)
        if leader is None:
            raise NotLeader(f"{coordinator} has no leader")
        asked = pb.StandingRequest(
            coordinator=coordinator.partition,
            questions=[
                pb.StandingQuestion(
                    transaction=pack_ref(each), topic_id=place.topic_id, partition=place.partition, end=end
                )
                for each, place, end in questions
            ],
        )
        body = pb.TransactionRequest(standing=asked).SerializeToString()
        reply = await self._request(leader[0], body, HELD_S, pb.StandingReply)
        standings = [_STANDING_OF.get(number, Standing.UNRESOLVED) for number in reply.standings]
        return standings + [Standing.UNRESOLVED] * (len(questions) - len(standings))

    async def _request(self, broker_id: int, body: bytes, timeout_s: float, kind: type[Reply]) -> Reply:
        """Raises TinymqError for no answer, OutcomeUnknown for one that does not parse."""
        reply = await self._peers.request(broker_id, METHOD, body, timeout_s)
        try:
            return kind.FromString(reply)
        except DecodeError:
            raise OutcomeUnknown(f"broker {broker_id} gave an answer about transactions that does not parse") from None

    # ---- answers

    async def serve(self, body: bytes) -> bytes:
        """Answer a TransactionRequest of another broker, or of this one. Raises InvalidRequest, and as the
        coordinator's `standing`."""
        try:
            request = pb.TransactionRequest.FromString(body)
        except DecodeError:
            raise InvalidRequest("a request about transactions that does not parse") from None
        match request.WhichOneof("request"):
            case "held":
                asked = request.held
                return await self._answer_each(asked.topics, self._held(parse_ref(asked.transaction), asked.writers))
            case "end":
                told = request.end
                return await self._answer_each(told.topics, self._end(told))
            case "standing":
                return await self._standing(request.standing)
            case "staged":
                return await self._staged(request.staged)
        raise InvalidRequest("an empty or unknown request about transactions")

    async def _answer_each(
        self, topics: Sequence[pb.TopicPartitions], answer: Callable[[LedPartition], Awaitable[pb.PartitionAnswer]]
    ) -> bytes:
        places = [PartitionId(topic.topic_id, partition) for topic in topics for partition in topic.partitions]
        _check_count(len(places))

        async def one(place: PartitionId) -> pb.PartitionAnswer:
            partition = self._partition_at(place)
            if partition is None:
                return pb.PartitionAnswer(error_code=NotLeader.code)
            try:
                return await answer(partition)
            except TinymqError as error:
                return pb.PartitionAnswer(error_code=error.code)

        answers = await asyncio.gather(*(one(place) for place in places))
        return pb.PartitionReply(answers=answers).SerializeToString()

    def _held(
        self, transaction: TransactionId, writers: Sequence[int]
    ) -> Callable[[LedPartition], Awaitable[pb.PartitionAnswer]]:
        sets = _some(writers)

        async def answer(partition: LedPartition) -> pb.PartitionAnswer:
            return pb.PartitionAnswer(held=await partition.held(transaction, sets))

        return answer

    def _end(self, told: pb.EndRequest) -> Callable[[LedPartition], Awaitable[pb.PartitionAnswer]]:
        transaction, sets = parse_ref(told.transaction), _some(told.writers)

        async def answer(partition: LedPartition) -> pb.PartitionAnswer:
            await partition.end(transaction, publish=told.publish, sets=sets)
            return pb.PartitionAnswer()

        return answer

    async def _staged(self, request: pb.StagedRequest) -> bytes:
        partition = self._partition_at(PartitionId(request.topic_id, request.partition))
        if partition is None:
            return pb.StagedReply(error_code=NotLeader.code).SerializeToString()
        try:
            batch = await partition.staged_batch(parse_ref(request.transaction))
        except TinymqError as error:
            return pb.StagedReply(error_code=error.code).SerializeToString()
        return pb.StagedReply(batch=batch).SerializeToString()

    async def _standing(self, request: pb.StandingRequest) -> bytes:
        _check_count(len(request.questions))
        assert self._coordinator is not None, "used before it was attached"
        questions = [
            StandingQuestion(parse_ref(each.transaction), PartitionId(each.topic_id, each.partition), each.end)
            for each in request.questions
        ]
        standings = await self._coordinator.standing(request.coordinator, questions)
        return pb.StandingReply(standings=[_STANDINGS[each] for each in standings]).SerializeToString()


def _some(writers: Sequence[int]) -> frozenset[int] | None:
    """The sets of a request that names some. None: it is about all writers."""
    return frozenset(writers) or None


def _check_count(count: int) -> None:
    if count > PARTITIONS_MAX:
        raise InvalidRequest(f"{count} partitions in a request about transactions", hint=f"at most {PARTITIONS_MAX}")
