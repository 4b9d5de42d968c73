"""What a partition's leader does with batches of transactions, with a group that commits when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.broker.values import moves
from tests.fakes.batches import TIME_US, checked, payload
from tests.fakes.manual_clock import ManualClock
from tests.fakes.raft_group import FakeGroup
from tinymq.base.config import Limits
from tinymq.base.errors import (
    BatchTooLarge,
    Closed,
    DeadlineExceeded,
    InvalidRequest,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    QuotaExceeded,
    TinymqError,
    TransactionAborted,
    UnsupportedVersion,
)
from tinymq.base.topic_config import OnFull, Storage, TopicConfig
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.partition import Acks, Partition, Produced
from tinymq.broker.state.staged import StagedBatch, Totals, TransactionId
from tinymq.broker.transactions.led_transactions import ASK_EVERY_S
from tinymq.broker.transactions.rules import Standing
from tinymq.format.entry import Kind, crc32c
from tinymq.format.feature_level import TRANSACTIONS_LEVEL
from tinymq.format.transactional import PublishedItems, unpack_transactional

T, OTHER = TransactionId(7, 2, 1), TransactionId(8, 0, 5)
COORDINATOR = 3


class Bench:
    """A partition, its group, and a coordinator that answers at once."""

    def __init__(self, config: TopicConfig | None = None, limits: Limits | None = None) -> None:
        self.clock = ManualClock()
        self.totals = Totals()
        self.standing: Standing | None = Standing.OPEN  # None: the coordinator does not answer
        self.asked: list[tuple[TransactionId, int]] = []
        self.produced: list[Produced | TinymqError] = []
        self.partition = Partition(
            "t/0", Deadlines(self.clock), lambda call: call(), lambda _: None, limits=limits,
            staged_totals=self.totals, ask_coordinator=self._ask,
        )  # fmt: skip
        self.partition.configure(config or TopicConfig())
        self.group = FakeGroup(self.partition)
        self.partition.attach(self.group)

    async def _ask(self, transaction: TransactionId, coordinator: int, *, end: bool = False) -> Standing:
        self.asked.append((transaction, coordinator))
        if end and self.standing is Standing.OPEN:
            self.standing = Standing.DISCARD
        if self.standing is None:
            await asyncio.Event().wait()
        assert self.standing is not None
        return self.standing

    async def send(
        self, number: int = 0, count: int = 1, transaction: TransactionId = T, *, writer: int = 0, value: bytes = b"v",
        **header: int,
    ) -> asyncio.Task[int]:  # fmt: skip
        """Begin to stage a batch."""
        batch = StagedBatch(transaction, writer, number)
        data = checked(payload(count, value=value, **header))  # type: ignore[arg-type]
        task = asyncio.ensure_future(self.partition.transactions.stage(batch, COORDINATOR, *data))
        await turns()
        return task

    async def stage(self, number: int = 0, count: int = 1, transaction: TransactionId = T, **how: int) -> int:
        """Store a batch, and return the index of its entry."""
        task = await self.send(number, count, transaction, **how)  # type: ignore[arg-type]
        self.group.commit()
        return await task

    async def end(self, transaction: TransactionId = T, *, publish: bool = True) -> None:
        """Carry out a decision."""
        task = asyncio.ensure_future(self.partition.transactions.end(transaction, publish=publish))
        await turns()
        self.group.commit()
        await task

    def produce(self, count: int = 1) -> None:
        self.partition.produce(*checked(payload(count)), Acks.QUORUM, 60.0, self.produced.append)

    def kinds(self) -> list[Kind]:
        return [Kind(entry.header.kind) for entry in self.group.log.entries]


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(
    scenario: Callable[[Bench], Awaitable[None]], config: TopicConfig | None = None, limits: Limits | None = None
) -> None:
    async def main() -> None:
        bench = Bench(config, limits)
        await scenario(bench)
        bench.partition.close(Closed("over"))
        await turns()

    asyncio.run(main())


# ---- staging -------------------------------------------------------------------------------------------------------


def test_a_batch_is_stored_without_offsets_and_answered_when_it_is_committed() -> None:
    async def scenario(b: Bench) -> None:
        task = await b.send(0, 3)
        assert b.asked == [(T, COORDINATOR)]
        assert not task.done()
        b.group.commit()
        entry = b.group.log.entries[-1]
        assert await task == entry.index
        assert (entry.header.kind, entry.header.version, entry.header.record_count) == (Kind.STAGED, 2, 0)
        head, batch = unpack_transactional(entry.payload)
        assert (head.producer_id, head.number, head.epoch, head.coordinator, head.writer, head.batch_number) == (
            7, 1, 2, COORDINATOR, 0, 0,
        )  # fmt: skip
        assert batch == payload(3)
        assert b.partition.high_watermark == 0
        assert await b.partition.transactions.held(T) == 1
        assert await b.stage(0, 3) == entry.index, "a duplicate has the place of the first copy"
        assert await b.stage(1) == entry.index + 1
        assert b.asked == [(T, COORDINATOR)]

    run(scenario)


def test_published_records_get_dense_offsets_in_the_order_of_their_entries() -> None:
    async def scenario(b: Bench) -> None:
        first = await b.stage(0, 3)
        b.produce(2)
        other = await b.stage(0, 4, OTHER)
        second = await b.stage(1, 1, time_us=TIME_US + 50)
        await b.end(T)
        entry = b.group.log.entries[-1]
        assert (entry.header.kind, entry.header.base_offset, entry.header.record_count) == (Kind.PUBLISH, 2, 4)
        assert entry.header.max_timestamp_us == TIME_US + 50
        items = PublishedItems(entry.payload)
        items.check(entry.index, 1, 4)
        assert [(i.entry_index, i.first, i.record_count, i.length, i.batch_crc) for i in items] == [
            (first, 0, 3, len(payload(3)), crc32c(payload(3))),
            (second, 3, 1, len(payload(1)), crc32c(payload(1, time_us=TIME_US + 50))),
        ]
        assert b.partition.high_watermark == 6
        b.produce()
        b.group.commit()
        assert b.produced[-1].base_offset == 6  # type: ignore[union-attr]
        await b.end(OTHER)
        assert [i.entry_index for i in PublishedItems(b.group.log.entries[-1].payload)] == [other]
        assert b.partition.high_watermark == 11
        assert b.partition.state.record_bytes == sum(len(payload(count)) for count in (3, 2, 4, 1, 1))

    run(scenario)


def test_a_discarded_transaction_leaves_nothing() -> None:
    async def scenario(b: Bench) -> None:
        await b.stage(0, 3)
        assert (b.totals.batches, b.totals.bytes) == (1, len(payload(3)))
        await b.end(publish=False)
        assert b.kinds()[-1] is Kind.DISCARD
        assert (b.partition.high_watermark, b.partition.state.record_bytes) == (0, 0)
        assert (b.totals.batches, b.totals.bytes) == (0, 0)
        assert b.partition.state.lowest_kept_index is None
        await b.end()
        assert b.kinds()[-1] is Kind.DISCARD, "it has ended: nothing is appended"

    run(scenario)


def test_readers_are_woken_when_a_transaction_is_published() -> None:
    async def scenario(b: Bench) -> None:
        await b.stage()
        seen: list[int] = []
        b.partition.watch(lambda: seen.append(b.partition.high_watermark))
        await b.end()
        assert seen[-1] == 1

    run(scenario)


@pytest.mark.parametrize("standing", [Standing.DISCARD, Standing.PUBLISH, Standing.LATER, Standing.UNRESOLVED])
def test_a_batch_of_a_transaction_that_is_not_open_is_refused(standing: Standing) -> None:
    async def scenario(b: Bench) -> None:
        b.standing = standing
        with pytest.raises(TransactionAborted):
            await b.stage()
        assert b.kinds() == [Kind.NOOP]

    run(scenario)


def test_a_partition_without_a_coordinator_takes_no_batch() -> None:
    async def scenario(b: Bench) -> None:
        partition = Partition("t/0", Deadlines(b.clock), lambda call: call(), lambda _: None)
        partition.attach(FakeGroup(partition))
        with pytest.raises(NotReady):
            await partition.transactions.stage(StagedBatch(T, 0, 0), 0, *checked(payload()))

    run(scenario)


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config", [TopicConfig(storage=Storage.MEMORY, max_bytes=1 << 20), TopicConfig(sync_interval_ms=5)]
)
def test_topics_that_may_lose_records_are_refused(config: TopicConfig) -> None:
    async def scenario(b: Bench) -> None:
        with pytest.raises(InvalidRequest):
            await b.stage()

    run(scenario, config)


def test_producer_numbers_and_older_clusters_are_refused() -> None:
    async def scenario(b: Bench) -> None:
        with pytest.raises(InvalidRequest):
            await b.stage(producer=9, sequence=0)
        b.group.feature_level = TRANSACTIONS_LEVEL - 1
        with pytest.raises(UnsupportedVersion):
            await b.stage()
        assert b.kinds() == [Kind.NOOP]

    run(scenario)


def test_a_bounded_topic_gives_staged_records_their_room() -> None:
    async def scenario(b: Bench) -> None:
        await b.stage(0, 6)
        with pytest.raises(QuotaExceeded):
            b.produce(5)
        with pytest.raises(QuotaExceeded):
            await b.stage(1, 5)
        with pytest.raises(BatchTooLarge):
            await b.stage(1, 11)
        b.produce(4)
        await b.end()
        assert b.partition.high_watermark == 10
        with pytest.raises(QuotaExceeded):
            b.produce(1)

    run(scenario, TopicConfig(max_records=10, on_full=OnFull.REJECT))


def test_older_records_make_room_for_staged_ones() -> None:
    async def scenario(b: Bench) -> None:
        b.produce(8)
        await b.stage(0, 6)
        assert b.partition.log_start == 4
        await b.end()
        assert (b.partition.log_start, b.partition.high_watermark) == (4, 14)
        b.produce(1)
        b.group.commit()
        assert b.partition.high_watermark - b.partition.log_start <= 10

    run(scenario, TopicConfig(max_records=10, on_full=OnFull.DROP_OLDEST))


def test_uncommitted_ends_and_batches_count_for_the_room() -> None:
    async def scenario(b: Bench) -> None:
        first = await b.send(0, 6)
        with pytest.raises(QuotaExceeded):
            b.produce(5)
        end = asyncio.ensure_future(b.partition.transactions.end(T, publish=True))
        await turns()
        with pytest.raises(QuotaExceeded):
            b.produce(5)
        b.produce(4)
        b.group.commit()
        await asyncio.gather(first, end)
        assert b.partition.high_watermark == 10

    run(scenario, TopicConfig(max_records=10, on_full=OnFull.REJECT))


def test_a_discard_gives_the_room_back() -> None:
    async def scenario(b: Bench) -> None:
        await b.stage(0, 10)
        end = asyncio.ensure_future(b.partition.transactions.end(T, publish=False))
        await turns()
        b.produce(10)
        b.group.commit()
        await end
        assert b.partition.high_watermark == 10

    run(scenario, TopicConfig(max_records=10, on_full=OnFull.REJECT))


def test_staged_batches_are_bounded() -> None:
    async def scenario(b: Bench) -> None:
        for number in range(3):
            await b.stage(number)
        with pytest.raises(QuotaExceeded):
            await b.stage(3)
        with pytest.raises(QuotaExceeded):
            await b.stage(0, transaction=OTHER)
        await b.end(publish=False)
        await b.stage(0, transaction=OTHER)
        b.totals.change(10, 0)
        with pytest.raises(QuotaExceeded):
            await b.stage(1, transaction=OTHER)

    run(scenario, limits=Limits(staged_batches_max=3, broker_staged_batches_max=10))


def test_staged_bytes_are_bounded() -> None:
    size = len(payload(1))

    async def scenario(b: Bench) -> None:
        await b.stage(0)
        await b.stage(1)
        with pytest.raises(QuotaExceeded):
            await b.stage(2)
        b.totals.change(0, 2 * size)
        await b.end()
        with pytest.raises(QuotaExceeded):
            await b.stage(0, transaction=OTHER, count=2)

    run(scenario, limits=Limits(staged_bytes_max=2 * size, broker_staged_bytes_max=3 * size))


def test_a_transaction_has_no_more_batches_than_one_publish_entry_can_name() -> None:
    """24 bytes, and 36 for each batch: two fit into 96 bytes, and a third would make the entry too large."""

    async def scenario(b: Bench) -> None:
        await b.stage(0)
        second = await b.send(1)
        with pytest.raises(BatchTooLarge):
            await b.stage(2)
        await second
        await b.end()
        assert len(PublishedItems(b.group.log.entries[-1].payload)) == 2

    limits = Limits(uncommitted_bytes_max=24 + 36 * 2 + 35, batch_bytes_max=100, fetch_bytes_max=100)
    run(scenario, limits=limits)


# ---- leaders -------------------------------------------------------------------------------------------------------


def test_a_batch_whose_leader_is_replaced_has_an_unknown_outcome() -> None:
    async def scenario(b: Bench) -> None:
        task = await b.send()
        b.group.lose_leadership()
        with pytest.raises(OutcomeUnknown):
            await task
        for call in (b.stage(), b.partition.transactions.held(T), b.partition.transactions.end(T, publish=True)):
            with pytest.raises(NotLeader):
                await call

    run(scenario)


def test_a_batch_that_waits_for_the_coordinator_is_refused_when_the_leadership_ends() -> None:
    async def scenario(b: Bench) -> None:
        b.standing = None
        task = await b.send()
        b.group.lose_leadership()
        with pytest.raises(NotLeader):
            await task

    run(scenario)


def test_the_next_leader_goes_on_with_what_is_staged() -> None:
    async def scenario(b: Bench) -> None:
        index = await b.stage(0, 2)
        b.group.lose_leadership()
        b.group.win()
        assert await b.partition.transactions.held(T) == 1
        assert await b.stage(0, 2) == index
        await b.stage(1)
        assert len(b.asked) == 1, "what is staged shows that the transaction is open"
        await b.end()
        assert b.partition.high_watermark == 3

    run(scenario)


def test_a_leader_asks_about_what_nobody_ends() -> None:
    async def scenario(b: Bench) -> None:
        await b.stage(0, 2)
        b.group.lose_leadership()
        b.group.win()
        await turns()
        b.standing = Standing.PUBLISH
        b.clock.advance(ASK_EVERY_S)
        await turns()
        b.group.commit()
        assert b.asked == [(T, COORDINATOR)] * 2
        assert b.partition.high_watermark == 2

    run(scenario)


def test_a_leader_that_a_majority_does_not_confirm_neither_counts_nor_ends() -> None:
    async def scenario(b: Bench) -> None:
        await b.stage()
        b.group.proves = False
        for call in (b.partition.transactions.held(T), b.partition.transactions.end(T, publish=True)):
            with pytest.raises(DeadlineExceeded):
                await call
        assert Kind.PUBLISH not in b.kinds()

    run(scenario)


def test_a_deleted_partition_refuses_everything_and_counts_nothing() -> None:
    async def scenario(b: Bench) -> None:
        await b.stage()
        task = await b.send(1)
        b.partition.close(Closed("the topic was deleted"))
        assert (b.totals.batches, b.totals.bytes) == (0, 0)
        with pytest.raises(OutcomeUnknown):
            await task
        with pytest.raises(Closed):
            await b.stage(2)

    run(scenario)


# ---- what the log keeps --------------------------------------------------------------------------------------------


def test_segments_stay_while_a_transaction_needs_them() -> None:
    async def scenario(b: Bench) -> None:
        kept: list[int | None] = []
        b.group.log.remove_before_offset = lambda offset, keep_from=None: kept.append(keep_from)  # type: ignore[method-assign]
        b.produce(5)
        first = await b.stage(0, 3)
        b.produce(1)
        b.group.commit()
        b.partition.retain()
        await b.end()
        b.partition.retain()
        trim(b, 8)
        b.partition.retain()
        trim(b, 9)
        b.partition.retain()
        assert kept == [first, first, first, None]

    run(scenario)


def test_a_start_in_front_of_undecided_records_moves_as_without_them() -> None:
    async def scenario(b: Bench) -> None:
        b.produce(5)
        await b.stage(0, 3)
        trim(b, 5)
        assert (b.partition.log_start, b.partition.high_watermark) == (5, 5)
        await b.end()
        assert (b.partition.log_start, b.partition.high_watermark) == (5, 8)
        assert b.partition.state.kept_bytes == len(payload(3))

    run(scenario)


def trim(b: Bench, offset: int) -> None:
    b.partition.command([moves(offset)], 60.0, lambda _: None)
    b.group.commit()
