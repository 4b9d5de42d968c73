"""A partition's leader copies batches without offsets, so that segments can go which retention has reached."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.partition.test_transactions import OTHER, Bench, T, run, turns
from tests.fakes.batches import checked, payload
from tinymq.base.errors import CorruptData, OffsetOutOfRange, QuotaExceeded
from tinymq.base.topic_config import OnFull, TopicConfig
from tinymq.broker.delayed.bounds import Due
from tinymq.broker.partition.partition import Acks
from tinymq.broker.partition.staged.copies import SegmentBounds, StoredBatch, due_copies
from tinymq.broker.state.staged import StagedBatch
from tinymq.format.entry import Entry, Kind
from tinymq.format.feature_level import COPIES_LEVEL
from tinymq.format.transactional import SCATTERED_VERSION, PublishedItems, unpack_copied

MIB = 1 << 20


# ---- the rule ------------------------------------------------------------------------------------------------------


def stored(*places: tuple[int, int]) -> list[StoredBatch]:
    return [StoredBatch(index, size, StagedBatch(T, 0, number)) for number, (index, size) in enumerate(places)]


def copied(bytes_pinned: int, batches: list[StoredBatch], fixed: tuple[int, ...] = ()) -> list[int]:
    """The indexes of what is copied, if the pinned segments take so much and the entries `fixed` cannot be copied."""
    pinned = [SegmentBounds(1, 50, bytes_pinned // 2), SegmentBounds(51, 99, bytes_pinned - bytes_pinned // 2)]
    return [copy.entry_index for copy in due_copies(pinned, batches, lambda batch: batch.entry_index not in fixed)]


def test_batches_are_copied_when_their_segments_take_more_than_twice_their_bytes() -> None:
    batches = stored((70, 300), (10, 200))
    assert copied(1000, batches) == []
    assert copied(1001, batches) == [10, 70]
    assert copied(1001, batches, fixed=(10,)) == [70]
    assert copied(1001, batches, fixed=(10, 70)) == []


def test_one_check_copies_a_bounded_part_the_oldest_first_and_at_least_one() -> None:
    assert copied(90 * MIB, stored((30, 2 * MIB), (20, 2 * MIB), (10, MIB), (40, 100))) == [10, 20]
    assert copied(90 * MIB, stored((30, 9 * MIB), (31, 100))) == [30]


# ---- transactions --------------------------------------------------------------------------------------------------


def pin(b: Bench, last_index: int, size: int = MIB, first_index: int = 1) -> None:
    """Say that retention has reached one segment, with these entries."""
    b.group.log.closed_below = lambda offset: [(first_index, last_index, size)]  # type: ignore[method-assign]


async def retain(b: Bench) -> list[Entry]:
    """Check retention, and return what the leader has appended then."""
    before = len(b.group.log.entries)
    b.partition.retain()
    await turns()
    return b.group.log.entries[before:]


def test_a_copy_takes_the_place_of_its_batch_when_it_is_applied() -> None:
    async def scenario(b: Bench) -> None:
        sizes: list[int] = []
        b.partition.copier.on_copied = sizes.append
        first, other, second = await b.stage(0, 3), await b.stage(0, 2, OTHER), await b.stage(1, 1)
        pin(b, other)
        copies = await retain(b)
        assert [(e.header.kind, e.header.version, e.header.record_count) for e in copies] == [(Kind.STAGED, 3, 0)] * 2
        heads = [unpack_copied(entry.payload) for entry in copies]
        assert [(head.producer_id, head.batch_number, head.replaced_index) for head, _ in heads] == [
            (7, 0, first), (8, 0, other),
        ]  # fmt: skip
        assert [batch for _, batch in heads] == [payload(3), payload(2)]
        assert sizes == [len(payload(3)), len(payload(2))]
        assert b.partition.state.lowest_kept_index == first
        assert await retain(b) == [], "they are copied once"
        b.group.commit()
        assert b.partition.state.lowest_kept_index == second
        assert await retain(b) == [], "nothing of the transactions is there any more"
        await b.end(T)
        assert [item.entry_index for item in PublishedItems(b.group.log.entries[-1].payload)] == [
            copies[0].index, second,
        ]  # fmt: skip
        assert b.group.log.entries[-1].header.version == SCATTERED_VERSION
        await b.end(OTHER)
        assert b.partition.high_watermark == 6

    run(scenario)


def test_an_end_behind_a_copy_names_the_copy() -> None:
    async def scenario(b: Bench) -> None:
        first = await b.stage(0, 3)
        pin(b, first)
        (copy,) = await retain(b)
        await b.end(T)
        assert [item.entry_index for item in PublishedItems(b.group.log.entries[-1].payload)] == [copy.index]
        assert b.partition.state.lowest_kept_index == copy.index
        assert await retain(b) == [], "it has its offsets now"

    run(scenario)


def test_nothing_is_copied_behind_the_end_of_its_transaction() -> None:
    async def scenario(b: Bench) -> None:
        first = await b.stage(0, 3)
        pin(b, first)
        read = b.group.log.read
        ending: list[asyncio.Task[None]] = []

        async def late(index: int, bytes_max: int) -> list[Entry]:
            ending.append(asyncio.ensure_future(b.partition.transactions.end(T, publish=True)))
            await turns()
            return await read(index, bytes_max)

        b.group.log.read = late  # type: ignore[method-assign]
        assert [entry.header.kind for entry in await retain(b)] == [Kind.PUBLISH]
        assert await retain(b) == []
        b.group.commit()
        await ending[0]
        assert b.partition.high_watermark == 3

    run(scenario)


def test_a_read_that_fails_is_tried_again() -> None:
    async def scenario(b: Bench) -> None:
        first = await b.stage(0, 3)
        pin(b, first)
        read = b.group.log.read

        async def fail(index: int, bytes_max: int) -> list[Entry]:
            raise CorruptData("a bad disk")

        b.group.log.read = fail  # type: ignore[method-assign]
        assert await retain(b) == []
        b.group.log.read = read  # type: ignore[method-assign]
        assert len(await retain(b)) == 1

    run(scenario)


def test_a_copy_takes_no_room_in_a_bounded_topic() -> None:
    async def scenario(b: Bench) -> None:
        first = await b.stage(0, 3)
        pin(b, first)
        assert len(await retain(b)) == 1
        before = b.partition.transactions.waiting_now
        b.group.commit()
        assert b.partition.transactions.waiting_now == before == (1, 3, len(payload(3)))
        with pytest.raises(QuotaExceeded):
            b.produce()
        await b.end()
        assert b.partition.high_watermark - b.partition.log_start == 3

    run(scenario, TopicConfig(max_records=3, on_full=OnFull.REJECT))


def test_below_its_level_nothing_is_copied_that_a_transaction_keeps_anyway() -> None:
    async def scenario(b: Bench) -> None:
        b.group.feature_level = COPIES_LEVEL - 1
        first = await b.stage(0, 3)
        delay(b)
        pin(b, first + 1)
        assert await retain(b) == []
        b.group.feature_level = COPIES_LEVEL
        assert [entry.header.version for entry in await retain(b)] == [3, 1]

    run(scenario)


def test_nothing_is_copied_that_published_batches_keep_anyway() -> None:
    async def scenario(b: Bench) -> None:
        first = await b.stage(0, 3)
        other = await b.stage(0, 2, OTHER)
        await b.end(T)
        pin(b, other)
        assert await retain(b) == []
        b.group.log.closed_below = lambda offset: [  # type: ignore[method-assign]
            (first - 1, first - 1, MIB), (first, other, MIB),
        ]  # fmt: skip
        assert await retain(b) == []

    run(scenario)


def test_delayed_batches_and_transactions_are_weighed_together() -> None:
    async def scenario(b: Bench) -> None:
        first = await b.stage(0, 1, value=b"x" * 1000)  # type: ignore[arg-type]
        delay(b)
        both = b.group.log.entries[-1].index
        pin(b, both, 2 * sum(entry.size for entry in b.group.log.entries[first - 1 :]))
        assert await retain(b) == []
        pin(b, both, 2 * sum(entry.size for entry in b.group.log.entries[first - 1 :]) + 1)
        assert [entry.header.version for entry in await retain(b)] == [3, 1]

    run(scenario)


def delay(b: Bench) -> None:
    """Store a delayed batch."""
    b.partition.produce(
        *checked(payload(1)), Acks.QUORUM, 60.0, lambda outcome: None, due=Due(delay_us=3_600_000_000)
    )  # fmt: skip
    b.group.commit()


def test_a_follower_copies_nothing() -> None:
    async def scenario(b: Bench) -> None:
        first = await b.stage(0, 3)
        pin(b, first)
        b.partition.follow()
        assert await retain(b) == []

    run(scenario)


def test_the_batch_of_a_half_message_is_shown_from_where_it_lies_now() -> None:
    async def scenario(b: Bench) -> None:
        first = await b.stage(0, 3)
        pin(b, first)
        (copy,) = await retain(b)
        read, asked = b.group.log.read, list[int]()

        async def gone_at_first(index: int, bytes_max: int) -> list[Entry]:
            asked.append(index)
            if len(asked) == 1:
                b.group.commit()
                raise OffsetOutOfRange("its segment is gone")
            return await read(index, bytes_max)

        b.group.log.read = gone_at_first  # type: ignore[method-assign]
        assert await b.partition.transactions.staged_batch(T) == payload(3)
        assert asked == [first, copy.index]
        b.group.log.read = gone  # type: ignore[method-assign]
        with pytest.raises(OffsetOutOfRange):
            await b.partition.transactions.staged_batch(T)

    run(scenario)


async def gone(index: int, bytes_max: int) -> list[Entry]:
    raise OffsetOutOfRange("its segment is gone")
