"""The wait of a batch of a transaction: one answer, in order, and in time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.batches import checked, payload
from tests.fakes.manual_clock import ManualClock
from tinymq.base.errors import OutcomeUnknown, TinymqError, TransactionAborted, UnsupportedVersion
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.partition import Acks
from tinymq.broker.state.staged import StagedBatch
from tinymq.format.feature_level import TRANSACTIONS_LEVEL
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.services.staged_batches import StagingWait, parse_staged

SENT = checked(payload())


class Leader:
    """A partition whose log stores a batch when the test says so."""

    def __init__(self, level: int = TRANSACTIONS_LEVEL) -> None:
        self.transactions = self
        self.group = SimpleNamespace(feature_level=level, term=4)
        self.staging: list[tuple[StagedBatch, int, asyncio.Future[int]]] = []
        self.answers: list[Any] = []
        self.clock = ManualClock()
        self.deadlines = Deadlines(self.clock)

    def check_leading(self) -> None: ...

    async def stage(self, batch: StagedBatch, coordinator: int, *sent: Any) -> int:
        assert sent == SENT
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.staging.append((batch, coordinator, stored))
        return await stored

    def begin(self, number: int) -> None:
        transaction = pb.TransactionRef(producer_id=7, epoch=1, number=3)
        place = pb.BatchTransaction(transaction=transaction, coordinator=5, writer=2, number=number)
        staged = parse_staged(pb.ProduceBatch(transaction=place), SENT[0], Acks.QUORUM)
        partition: Any = self
        StagingWait(partition, staged, *SENT, self.answers.append).begin(self.deadlines, 1.0)

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def test_batches_are_judged_in_the_order_in_which_they_came_and_answered_once() -> None:
    async def main() -> None:
        leader = Leader()
        for number in range(3):
            leader.begin(number)
        await leader.settle()
        assert [(tuple(batch.transaction), batch.writer, batch.number) for batch, _, _ in leader.staging] == [
            ((7, 1, 3), 2, number) for number in range(3)
        ]
        assert {coordinator for _, coordinator, _ in leader.staging} == {5}
        leader.staging[1][2].set_exception(TransactionAborted("it ended"))
        leader.staging[0][2].set_result(9)
        await leader.settle()
        leader.clock.advance(2.0)
        await leader.settle()
        refusal, stored, late = leader.answers
        assert isinstance(refusal, TransactionAborted)
        assert (stored.base_offset, stored.leader_epoch, stored.duplicate) == (0, 4, False)
        assert isinstance(late, OutcomeUnknown)
        assert leader.staging[2][2].cancelled()
        assert len(leader.deadlines) == 0

    asyncio.run(main())


def test_below_the_feature_level_nothing_is_staged() -> None:
    async def main() -> None:
        leader = Leader(level=TRANSACTIONS_LEVEL - 1)
        with pytest.raises(UnsupportedVersion) as caught:
            leader.begin(0)
        assert isinstance(caught.value, TinymqError)
        assert caught.value.hint
        await leader.settle()
        assert (leader.staging, leader.answers) == ([], [])

    asyncio.run(main())
