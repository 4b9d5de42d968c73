"""The calls between coordinators of transactions and leaders of partitions: who is asked, and what is an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import pytest

from tinymq.base.errors import InvalidRequest, NotLeader, OutcomeUnknown, TinymqError
from tinymq.base.types import GroupId, PartitionId, TopicId
from tinymq.broker.coordinator.peer_transaction_calls import METHOD, PeerTransactionCalls
from tinymq.broker.coordinator.transaction_coordinator import StandingQuestion
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.message_parts import pack_places, pack_ref
from tinymq.broker.transactions.rules import PARTITIONS_MAX, Standing
from tinymq.proto import transaction_pb2 as pb

T = TransactionId(7, 1, 3)
TOPIC = TopicId(b"t" * 16)
A, B, C, D = (PartitionId(TOPIC, number) for number in range(4))
COORDINATOR = GroupId(TopicId(b"c" * 16), 5)


class Led:
    """A partition that is led, or fails."""

    def __init__(self, held: int = 0, error: TinymqError | None = None) -> None:
        self.count, self.error = held, error
        self.ended: list[tuple[TransactionId, bool, Collection[int] | None]] = []

    async def held(self, transaction: TransactionId, sets: Collection[int] | None = None) -> int:
        assert transaction == T
        if self.error is not None:
            raise self.error
        return self.count if sets is None else len(sets)

    async def end(self, transaction: TransactionId, *, publish: bool, sets: Collection[int] | None = None) -> None:
        if self.error is not None:
            raise self.error
        self.ended.append((transaction, publish, sets))


class Coordinator:
    """A coordinator with one answer to all questions."""

    def __init__(self, answer: Standing) -> None:
        self.answer = answer
        self.asked: list[tuple[int, Sequence[Any]]] = []

    async def standing(self, number: int, questions: Sequence[Any]) -> list[Standing]:
        self.asked.append((number, questions))
        return [self.answer] * len(questions)


class Cluster:
    """Brokers that call each other directly. `leaders`: of partitions, as every broker believes."""

    def __init__(self) -> None:
        self.leaders: dict[GroupId, int] = {}
        self.answers: dict[int, Callable[[bytes], Awaitable[bytes]]] = {}
        self.requests: list[int] = []

    def broker(self, number: int, partitions: dict[PartitionId, Led], coordinator: Any = None) -> PeerTransactionCalls:
        calls = PeerTransactionCalls(Peers(self, number), partitions.get)
        calls.attach(coordinator)
        for place in partitions:
            self.leaders[GroupId(TopicId(place.topic_id), place.partition)] = number
        return calls


class Peers:
    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster, self._number = cluster, number

    def leader_of(self, group_id: GroupId) -> tuple[int, int] | None:
        leader = self._cluster.leaders.get(group_id)
        return None if leader is None else (leader, 1)

    def serve(self, method: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        assert method == METHOD
        self._cluster.answers[self._number] = answer

    async def request(self, broker_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        self._cluster.requests.append(broker_id)
        if broker_id not in self._cluster.answers:
            raise OutcomeUnknown(f"broker {broker_id} gave no answer in time")
        return await self._cluster.answers[broker_id](body)


def test_each_leader_is_asked_once_for_all_its_partitions() -> None:
    cluster = Cluster()
    calls = cluster.broker(1, {A: Led(2)})
    cluster.broker(2, {B: Led(3), C: Led(0)})
    assert asyncio.run(calls.held(T, [C, B, A])) == {A: 2, B: 3, C: 0}
    assert sorted(cluster.requests) == [1, 2]


def test_leaders_that_do_not_answer_are_left_out() -> None:
    cluster = Cluster()
    calls = cluster.broker(1, {A: Led(2), B: Led(error=NotLeader("deposed"))})
    cluster.leaders[GroupId(TOPIC, 2)] = 9  # a broker that is gone
    assert asyncio.run(calls.held(T, [A, B, C, D])) == {A: 2}, "and nobody is known to lead D"
    cluster.leaders[GroupId(TOPIC, 3)] = 1  # it has no replica of D
    assert asyncio.run(calls.held(T, [A, D])) == {A: 2}


def test_an_answer_that_does_not_parse_is_none() -> None:
    cluster = Cluster()
    calls = cluster.broker(1, {})
    cluster.leaders |= {GroupId(TOPIC, 0): 2, COORDINATOR: 2}

    async def answer(body: bytes) -> bytes:
        return b"\xff"

    cluster.answers[2] = answer
    assert asyncio.run(calls.held(T, [A])) == {}
    assert not asyncio.run(calls.end(T, [A], publish=True))
    assert asyncio.run(calls.staged(T, A)) is None
    with pytest.raises(OutcomeUnknown, match="does not parse"):
        asyncio.run(calls.standings(COORDINATOR, [StandingQuestion(T, A, False)]))


@pytest.mark.parametrize("publish", [True, False])
def test_an_end_reaches_every_leader_and_is_confirmed_where_it_is_applied(publish: bool) -> None:
    cluster, led, failed = Cluster(), Led(), Led(error=OutcomeUnknown("deposed before it was committed"))
    calls = cluster.broker(1, {})
    cluster.broker(2, {A: led})
    cluster.broker(3, {B: failed})
    assert set(asyncio.run(calls.end(T, [A, B], publish=publish))) == {A}
    assert led.ended == [(T, publish, None)]


def test_leaders_are_told_of_which_sets_a_call_is() -> None:
    cluster, led = Cluster(), Led(9)
    calls = cluster.broker(1, {A: led})
    assert asyncio.run(calls.held(T, [A], [0, 300])) == {A: 2}
    asyncio.run(calls.end(T, [A], publish=True, sets=(0, 300)))
    assert led.ended == [(T, True, {0, 300})]


@pytest.mark.parametrize("standing", Standing)
def test_a_leader_learns_what_the_coordinator_says(standing: Standing) -> None:
    cluster, coordinator = Cluster(), Coordinator(standing)
    cluster.broker(2, {}, coordinator)
    calls = cluster.broker(1, {A: Led()})
    with pytest.raises(NotLeader):
        asyncio.run(calls.standings(COORDINATOR, [StandingQuestion(T, A)]))
    cluster.leaders[COORDINATOR] = 2
    assert asyncio.run(calls.standings(COORDINATOR, [StandingQuestion(T, A), StandingQuestion(T, B, end=True)])) == [
        standing,
        standing,
    ]
    assert coordinator.asked == [(5, [(T, A, False), (T, B, True)])]


def test_an_answer_that_says_less_or_something_unknown_ends_nothing() -> None:
    cluster = Cluster()
    calls = cluster.broker(1, {})
    cluster.leaders[COORDINATOR] = 2

    async def newer(body: bytes) -> bytes:
        return pb.StandingReply(standings=[77]).SerializeToString()  # type: ignore[list-item]

    cluster.answers[2] = newer
    assert (
        asyncio.run(calls.standings(COORDINATOR, [StandingQuestion(T, A), StandingQuestion(T, B, end=True)]))
        == [Standing.UNRESOLVED] * 2
    )


def too_many() -> list[PartitionId]:
    return [PartitionId(TOPIC, number) for number in range(PARTITIONS_MAX + 1)]


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xff",
        b"",
        pb.TransactionRequest(
            held=pb.HeldRequest(transaction=pack_ref(T), topics=pack_places(too_many()))
        ).SerializeToString(),
        pb.TransactionRequest(
            standing=pb.StandingRequest(questions=[pb.StandingQuestion()] * (PARTITIONS_MAX + 1))
        ).SerializeToString(),
    ],
)
def test_a_request_that_does_not_parse_or_asks_too_much_is_refused(body: bytes) -> None:
    calls = Cluster().broker(1, {A: Led()})
    with pytest.raises(InvalidRequest):
        asyncio.run(calls.serve(body))
