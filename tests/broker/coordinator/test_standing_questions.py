"""The questions of leaders about transactions travel together, and each is answered by what was asked after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tinymq.base.errors import InvalidRequest, NotLeader, NotReady
from tinymq.base.types import GroupId, PartitionId
from tinymq.broker.coordinator.standing_questions import StandingQuestions
from tinymq.broker.coordinator.transaction_coordinator import StandingQuestion
from tinymq.broker.coordinator.unfinished import Unfinished, UnfinishedWatch
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.rules import PARTITIONS_MAX, Standing
from tinymq.broker.transactions.sink_application import SetsTransaction
from tinymq.broker.transactions.transactional_id import Phase, Transaction, TransactionalId

A, B = PartitionId(b"t" * 16, 0), PartitionId(b"t" * 16, 1)
COORDINATORS = SimpleNamespace(topic_id=b"c" * 16, queues=[SimpleNamespace()] * 4)


def transaction(number: int) -> TransactionId:
    return TransactionId(7, 0, number)


class Coordinators:
    """All coordinators. A request is answered when the test says so."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, Sequence[StandingQuestion], asyncio.Future[None]]] = []
        self.topic: Any = COORDINATORS
        self.questions = StandingQuestions(self, self._ask)  # type: ignore[arg-type]

    def get_topic(self, name: str) -> Any:
        return self.topic

    async def _ask(self, coordinator: GroupId, questions: Sequence[StandingQuestion]) -> list[Standing]:
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.requests.append((coordinator.partition, questions, answered))
        await answered
        return [Standing.OPEN if each.number % 2 else Standing.DISCARD for each, _, _ in questions]

    def ask(self, number: int, place: PartitionId = A, coordinator: int = 2) -> asyncio.Task[Standing]:
        return asyncio.ensure_future(self.questions.ask(place, transaction(number), coordinator))


def run(test: Callable[[Coordinators], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(Coordinators())

    asyncio.run(main())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_what_is_asked_meanwhile_goes_together_with_the_next_request() -> None:
    async def main(c: Coordinators) -> None:
        first = c.ask(1)
        await settle()
        second, third, elsewhere = c.ask(2), c.ask(3, B), c.ask(5, B, coordinator=3)
        await settle()
        assert [(number, len(questions)) for number, questions, _ in c.requests] == [(2, 1), (3, 1)]
        for _, _, answered in c.requests:
            answered.set_result(None)
        await settle()
        assert (await first, await elsewhere) == (Standing.OPEN, Standing.OPEN)
        number, questions, answered = c.requests[2]
        assert (number, questions) == (2, [(transaction(2), A, False), (transaction(3), B, False)])
        answered.set_result(None)
        assert (await second, await third) == (Standing.DISCARD, Standing.OPEN)

    run(main)


def test_an_error_is_that_of_one_request() -> None:
    async def main(c: Coordinators) -> None:
        first = c.ask(1)
        await settle()
        second = c.ask(1)
        c.requests[0][2].set_exception(NotLeader("no leader"))
        with pytest.raises(NotLeader):
            await first
        await settle()
        c.requests[1][2].set_result(None)
        assert await second is Standing.OPEN

    run(main)


def test_a_request_is_bounded() -> None:
    async def main(c: Coordinators) -> None:
        asked = [c.ask(number) for number in range(PARTITIONS_MAX + 2)]
        await settle()
        for _ in range(2):
            c.requests[-1][2].set_result(None)
            await settle()
        assert [len(questions) for _, questions, _ in c.requests] == [PARTITIONS_MAX, 2]
        assert all(task.done() for task in asked)

    run(main)


def test_there_is_no_such_coordinator() -> None:
    async def main(c: Coordinators) -> None:
        with pytest.raises(InvalidRequest):
            await c.ask(1, coordinator=4)
        c.topic = None
        with pytest.raises(NotReady):
            await c.ask(1)
        assert c.requests == []

    run(main)


def test_a_stop_leaves_nobody_waiting() -> None:
    async def main(c: Coordinators) -> None:
        sent = c.ask(1)
        await settle()
        waiting = c.ask(2)
        await settle()
        await c.questions.stop()
        for task in (sent, waiting):
            with pytest.raises(asyncio.CancelledError):
                await task

    run(main)


def test_the_oldest_of_what_is_not_over() -> None:
    open_ = Transaction(3, 0, until_us=90_000_000, unconfirmed=frozenset({A}))
    decided = Transaction(2, 0, until_us=0, phase=Phase.COMMITTED, unconfirmed=frozenset({A}))
    both = TransactionalId(7, number=3, used_us=30_000_000, transactions={2: decided, 3: open_})
    watch = UnfinishedWatch()
    watch.look([both], [], now_us=40_000_000, now_s=100.0)
    assert watch.seen == Unfinished(open=1, decided=1, open_s=10.0, decided_s=0.0)
    watch.look([both], [], now_us=45_000_000, now_s=105.0)
    assert watch.seen == Unfinished(open=1, decided=1, open_s=15.0, decided_s=5.0)
    assert watch.seen.beside(Unfinished(1, 0, 20.0, 0.0)) == Unfinished(2, 1, 20.0, 5.0)
    watch.look([], [], now_us=46_000_000, now_s=106.0)
    assert watch.seen == Unfinished()


def test_sets_that_partitions_have_not_published_are_not_over() -> None:
    """Open ones wait for their driver, for a day if need be."""
    open_ = SetsTransaction(8, 2, "run", timeout_us=60, until_us=0, unconfirmed=frozenset({A}))
    decided = replace(open_, producer_id=7, version=1, phase=Phase.COMMITTED)
    watch = UnfinishedWatch()
    for now_s in (100.0, 190.0):
        watch.look([], [open_, decided], now_us=0, now_s=now_s)
    assert watch.seen == Unfinished(decided=1, decided_s=90.0)
