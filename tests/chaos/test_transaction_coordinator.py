"""What a coordinator of transactions answers, step by step: deposed, not yet ready, late, and after a loss."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.transaction_lives import TOPIC, TransactionLife, TransactionWorld
from tinymq.base.errors import (
    DeadlineExceeded,
    Fenced,
    InvalidRequest,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    QuotaExceeded,
    TransactionAborted,
    UnknownPartition,
)
from tinymq.base.topic_config import Storage, TopicConfig
from tinymq.base.types import PartitionId
from tinymq.broker.coordinator.transaction_coordinator import StandingQuestion, TransactionCoordinator
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions import rules
from tinymq.broker.transactions.rules import DECIDED_MAX, PARTITIONS_MAX, Standing
from tinymq.broker.transactions.transactional_id import TransactionalId
from tinymq_chaos.sim.virtual.event_loop import VirtualLoop, run_virtually

ID = "billing-1"
A, B = PartitionId(TOPIC, 0), PartitionId(TOPIC, 1)
MINUTE_US = 60_000_000


class Partitions:
    """The leaders of partitions, which hold and confirm what a test says."""

    def __init__(self) -> None:
        self.holding: dict[PartitionId, int] = {}
        self.confirming: set[PartitionId] = {A, B}
        self.ended: list[tuple[TransactionId, PartitionId, bool]] = []

    async def held(
        self, transaction: TransactionId, places: Collection[PartitionId], sets: Collection[int] | None = None
    ) -> Mapping[PartitionId, int]:
        return {place: self.holding[place] for place in places if place in self.holding}

    async def end(
        self, transaction: TransactionId, places: Collection[PartitionId], *, publish: bool,
        sets: Collection[int] | None = None,
    ) -> Collection[PartitionId]:  # fmt: skip
        self.ended += [(transaction, place, publish) for place in sorted(places)]
        return [place for place in places if place in self.confirming]


class Story:
    """Three brokers, of which broker 1 leads, and no owners."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.world = TransactionWorld(TransactionLife(1), loop)
        self.partitions = Partitions()
        for coordinator in self.world.coordinators.values():
            coordinator._held._leaders = coordinator._ends._leaders = self.partitions

    @property
    def at(self) -> TransactionCoordinator:
        """The coordinator on broker 1."""
        return self.world.coordinators[1]

    @property
    def state(self) -> TransactionalId:
        return self.world.rafts[0].machine.transactional_ids.states[ID]

    async def begin(self, *places: PartitionId) -> TransactionId:
        owner = await self.at.register(ID)
        transaction = await self.at.begin(ID, owner, MINUTE_US)
        await self.at.add(ID, transaction, places)
        return transaction

    async def sleep(self, seconds: float) -> None:
        await self.world.clock.sleep(seconds)


def story(tell: Callable[[Story], Awaitable[None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        told = Story(loop)
        world = told.world
        world.loses = False
        for coordinator in world.coordinators.values():
            coordinator.start()
        world.elect(1)
        await told.sleep(1.0)
        await tell(told)
        for coordinator in world.coordinators.values():
            await coordinator.stop()

    run_virtually(main)


# ---- who may answer ----------------------------------------------------------------------------------------------


def test_a_coordinator_that_was_replaced_answers_no_partition() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin(A)
        assert await told.at.standing(0, [StandingQuestion(transaction, A), StandingQuestion(transaction, B)]) == [
            Standing.OPEN,
            Standing.DISCARD,
        ]
        told.world.ruler = 2  # a majority follows broker 2, and broker 1 does not know it
        with pytest.raises(DeadlineExceeded):
            await told.at.standing(0, [StandingQuestion(transaction, A)])
        with pytest.raises(DeadlineExceeded):
            await told.at.states(0)

    story(tell)


def test_a_partition_has_an_open_transaction_ended_and_no_committed_one() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin(A)
        questions = [StandingQuestion(transaction, A, end=True), StandingQuestion(transaction, B)]
        assert await told.at.standing(0, questions) == [Standing.DISCARD, Standing.DISCARD]
        with pytest.raises(TransactionAborted):
            await told.at.commit(ID, transaction, {A: 0}, 1.0)

    story(tell)


def test_a_coordinator_answers_once_it_has_applied_its_first_entry() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin(A)
        told.world.elect(2)
        with pytest.raises(NotLeader):
            await told.world.coordinators[2].standing(0, [StandingQuestion(transaction, A)])
        await told.sleep(1.0)
        assert await told.world.coordinators[2].standing(0, [StandingQuestion(transaction, A)]) == [Standing.OPEN]

    story(tell)


def test_an_owner_is_told_of_a_commit_when_it_is_replicated() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin(A)
        told.partitions.holding = {A: 1}
        told.world.ruler = 2

        async def depose() -> None:
            await told.sleep(1.0)
            told.world.rafts[0].step_down(2)

        told.world.serve(depose())
        with pytest.raises(OutcomeUnknown):
            await told.at.commit(ID, transaction, {A: 1}, 1.0)
        assert told.partitions.ended == []

    story(tell)


# ---- decisions ---------------------------------------------------------------------------------------------------


def test_a_commit_is_decided_then_told_to_all_partitions_and_over_when_they_confirm() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin(A, B)
        told.partitions.holding, told.partitions.confirming = {A: 2, B: 1}, {A}
        await told.at.commit(ID, transaction, {A: 2, B: 1}, 1.0)
        assert not await told.at.wait_over(ID, transaction, 0.5)
        assert {(each, True) for each in (A, B)} == {(place, publish) for _, place, publish in told.partitions.ended}
        assert told.state.transactions[1].unconfirmed == {B}
        told.partitions.confirming = {B}
        assert await told.at.wait_over(ID, transaction, 0.5)
        await told.at.commit(ID, transaction, {A: 2, B: 1}, 1.0)  # it is answered as before
        with pytest.raises(InvalidRequest):
            await told.at.abort(ID, transaction)

    story(tell)


def test_a_commit_is_visible_when_all_partitions_say_so_before_that_is_noted() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin(A, B)
        assert not await told.at.wait_over(ID, transaction, 0.1)
        told.partitions.holding = {A: 1, B: 1}
        await told.at.commit(ID, transaction, {A: 1, B: 1}, 1.0)
        assert await told.at.wait_over(ID, transaction, 0.5)
        assert told.state.transactions[1].unconfirmed == {A, B}, "the entry that notes it is on its way"
        await told.sleep(1.0)
        assert told.state.transactions == {}

    story(tell)


def test_a_partition_that_lost_a_batch_aborts_the_transaction() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin(A)
        told.partitions.holding = {A: 1}
        with pytest.raises(TransactionAborted):
            await told.at.commit(ID, transaction, {A: 2}, 1.0)
        await told.at.abort(ID, transaction)
        assert told.partitions.ended == [(transaction, A, False)]

    story(tell)


def test_a_leader_that_does_not_answer_leaves_the_transaction_open() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin(A)
        with pytest.raises(DeadlineExceeded):
            await told.at.commit(ID, transaction, {A: 1}, 1.0)
        assert told.state.open is not None
        told.partitions.holding = {A: 1}
        await told.at.commit(ID, transaction, {A: 1}, 1.0)

    story(tell)


def test_a_transaction_is_aborted_when_its_time_is_up_and_its_owner_is_told() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin(A)
        await told.sleep(59.0)
        assert told.state.open is not None
        await told.sleep(2.0)
        assert told.partitions.ended == [(transaction, A, False)]
        with pytest.raises(TransactionAborted):
            await told.at.commit(ID, transaction, {A: 1}, 1.0)

    story(tell)


def test_a_registration_fences_the_owner_before() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin(A)
        owner = await told.at.register(ID)
        assert (owner.producer_id, owner.epoch) == (transaction.producer_id, 1)
        with pytest.raises(Fenced):
            await told.at.begin(ID, owner._replace(epoch=0), MINUTE_US)
        with pytest.raises(TransactionAborted):
            await told.at.add(ID, transaction, [B])

    story(tell)


def test_an_id_expires_when_nobody_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "EXPIRY_US", 300_000_000)  # a week has millions of ticks

    async def tell(told: Story) -> None:
        transaction = await told.begin(A)
        await told.at.abort(ID, transaction)
        await told.sleep(290.0)
        assert ID in await told.at.states(0)
        await told.sleep(80.0)
        assert ID not in await told.at.states(0)
        with pytest.raises(OutcomeUnknown):
            await told.at.commit(ID, transaction, {A: 1}, 1.0)
        assert (await told.at.register(ID)).producer_id != transaction.producer_id

    story(tell)


# ---- topics ------------------------------------------------------------------------------------------------------


def test_a_partition_that_was_deleted_aborts_what_is_open_and_confirms_what_is_decided() -> None:
    async def tell(told: Story) -> None:
        first = await told.begin(A, B)
        told.partitions.holding, told.partitions.confirming = {A: 1, B: 1}, {A}
        await told.at.commit(ID, first, {A: 1, B: 1}, 1.0)
        second = await told.at.begin(ID, (await told.at.register(ID)), MINUTE_US)
        await told.at.add(ID, second, [B])
        assert not await told.at.wait_over(ID, first, 1.0)
        told.world.registry.topic.queues.pop(1)
        told.partitions.holding = {}
        assert await told.at.wait_over(ID, first, 1.0)
        with pytest.raises(TransactionAborted):
            await told.at.commit(ID, second, {B: 1}, 1.0)

    story(tell)


@pytest.mark.parametrize(
    "config", [TopicConfig(sync_interval_ms=100), TopicConfig(storage=Storage.MEMORY, max_bytes=1 << 30)]
)
def test_a_topic_that_a_power_cut_could_tear_is_refused(config: TopicConfig) -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin(A)
        told.world.registry.topic.config = config
        with pytest.raises(InvalidRequest):
            await told.at.add(ID, transaction, [B])
        assert told.state.transactions[1].unconfirmed == {A}

    story(tell)


def test_what_an_owner_may_ask_is_bounded() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin(A)
        owner = await told.at.register(ID)
        for timeout_us in (0, 999_999, 15 * MINUTE_US + 1):
            with pytest.raises(InvalidRequest):
                await told.at.begin(ID, owner, timeout_us)
        with pytest.raises(UnknownPartition):
            await told.at.add(ID, transaction, [PartitionId(TOPIC, 77)])
        queue: Any = told.world.registry.topic.queues
        queue += [type(queue[0])(partition=number) for number in range(3, PARTITIONS_MAX + 1)]
        transaction = await told.at.begin(ID, owner, MINUTE_US)
        with pytest.raises(InvalidRequest):
            await told.at.add(ID, transaction, [PartitionId(TOPIC, number) for number in range(PARTITIONS_MAX + 1)])
        told.partitions.confirming = set()
        for _ in range(DECIDED_MAX - 1):
            await told.at.add(ID, transaction, [A])
            await told.at.abort(ID, transaction)
            transaction = await told.at.begin(ID, owner, MINUTE_US)
        await told.at.add(ID, transaction, [A])
        with pytest.raises(QuotaExceeded):
            await told.at.begin(ID, owner, MINUTE_US)

    story(tell)


# ---- after a loss --------------------------------------------------------------------------------------------------


def test_after_an_accepted_loss_nothing_from_before_is_ended_and_ids_get_other_producer_ids() -> None:
    async def tell(told: Story) -> None:
        transaction = await told.begin(A)
        raft = told.world.rafts[0]
        told.world.registry.taken = 500
        raft.membership = replace(raft.membership, recovery_epoch=1 << 32)
        with pytest.raises(NotReady):
            await told.at.register(ID)
        await told.sleep(1.0)
        assert await told.at.standing(0, [StandingQuestion(transaction, A)]) == [Standing.UNRESOLVED]
        told.world.registry.taken = 100  # this broker's block is from before the loss
        with pytest.raises(Fenced):
            await told.at.commit(ID, transaction, {A: 1}, 1.0)
        assert (await told.at.register(ID)).producer_id > 500
        await told.sleep(100.0)
        assert told.partitions.ended == []

    story(tell)
