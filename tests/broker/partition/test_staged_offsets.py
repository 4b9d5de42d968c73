"""What a partition's leader does with offsets that transactions stage, with a group that commits when the test says."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.partition.test_transactions import COORDINATOR, OTHER, Bench, T, run, turns
from tests.broker.values import commits, makes, opens
from tinymq.base.errors import (
    Fenced,
    InvalidRequest,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    QuotaExceeded,
    TransactionAborted,
    UnsupportedVersion,
)
from tinymq.base.topic_config import TopicConfig
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.state.transactional import staged_offsets
from tinymq.broker.transactions.led_transactions import SETTLE_S, SentOffset
from tinymq.broker.transactions.rules import Standing
from tinymq.format.entry import Kind
from tinymq.format.feature_level import TRANSACTIONS_LEVEL
from tinymq.proto import partition_pb2 as pb

EPOCH = 7 << 32


def sent(offset: int, number: int = 0, transaction: TransactionId = T, epoch: int = EPOCH) -> SentOffset:
    commit = commits(offset, "g", epoch, 1).commit
    commit.kind, commit.group_id = pb.STREAM, 7
    return SentOffset(transaction, COORDINATOR, number, commit)


def opening(epoch: int = EPOCH) -> pb.Command:
    command = opens("g", epoch)
    command.open.kind, command.open.group_id, command.open.session = pb.STREAM, 7, b"s%d" % epoch
    return command


async def command(b: Bench, *commands: pb.Command) -> CommandOutcome:
    answers: list[object] = []
    b.partition.command(commands, 60.0, answers.append)
    await turns()
    b.group.commit()
    await turns()
    (outcomes,) = answers
    assert isinstance(outcomes, list)
    last = outcomes[-1]
    assert isinstance(last, CommandOutcome)
    return last


async def begin(b: Bench) -> None:
    """Ten records, and a group of which a member has opened the partition."""
    b.produce(10)
    b.group.commit()
    await command(b, makes(7), opening())


async def stage(b: Bench, offset: SentOffset) -> None:
    task = asyncio.ensure_future(b.partition.transactions.stage_offset(offset))
    await turns()
    b.group.commit()
    await task


def position(b: Bench) -> int:
    return b.partition.state.cursors["g"].position


def test_an_offset_counts_with_its_transaction() -> None:
    async def scenario(b: Bench) -> None:
        await begin(b)
        task = asyncio.ensure_future(b.partition.transactions.stage_offset(sent(4)))
        await turns()
        assert b.asked == [(T, COORDINATOR)], "as before the first batch"
        assert not task.done(), "it is not on a majority of disks yet"
        b.group.commit()
        await task
        assert (position(b), await b.partition.transactions.held(T)) == (0, 1)
        await stage(b, sent(4))
        await stage(b, sent(6, 1))
        assert await b.partition.transactions.held(T) == 2
        await b.end()
        assert (position(b), b.kinds()[-1], await b.partition.transactions.held(T)) == (6, Kind.COMMAND, 0)
        await b.end()
        assert b.asked == [(T, COORDINATOR)]

    run(scenario)


def test_offsets_and_batches_of_one_transaction_have_one_end() -> None:
    async def scenario(b: Bench) -> None:
        await begin(b)
        await stage(b, sent(4))
        await b.stage(0, 3)
        assert await b.partition.transactions.held(T) == 2
        await b.end()
        assert (position(b), b.partition.high_watermark, b.kinds()[-1]) == (4, 13, Kind.PUBLISH)
        await stage(b, sent(7, 0, OTHER))
        await b.stage(0, 3, OTHER)
        await b.end(OTHER, publish=False)
        assert (position(b), b.partition.high_watermark, b.kinds()[-1]) == (4, 13, Kind.DISCARD)

    run(scenario)


def test_a_member_that_loses_the_partition_meanwhile_is_fenced() -> None:
    async def scenario(b: Bench) -> None:
        await begin(b)
        answers: list[object] = []
        b.partition.command([opening(EPOCH + 1)], 60.0, answers.append)
        await turns()
        task = asyncio.ensure_future(b.partition.transactions.stage_offset(sent(4)))
        await turns()
        b.group.commit()
        with pytest.raises(Fenced):
            await task
        assert await b.partition.transactions.held(T) == 0
        with pytest.raises(Fenced):
            await stage(b, sent(4))

    run(scenario)


@pytest.mark.parametrize("epoch", [EPOCH + 1, EPOCH], ids=["another member", "the member that has staged it"])
def test_a_new_owner_ends_what_is_open_before_it_reads(epoch: int) -> None:
    async def scenario(b: Bench) -> None:
        await begin(b)
        assert not await b.partition.transactions.settle_offsets("g")
        await stage(b, sent(4))
        await command(b, opening(epoch))
        settled = asyncio.ensure_future(b.partition.transactions.settle_offsets("g"))
        await turns()
        assert not settled.done(), "the DISCARD is not committed yet"
        b.group.commit()
        assert await settled
        assert (position(b), b.kinds()[-1]) == (0, Kind.DISCARD)

    run(scenario)


def test_a_new_owner_waits_for_what_is_decided() -> None:
    async def scenario(b: Bench) -> None:
        await begin(b)
        await stage(b, sent(4))
        await command(b, opening(EPOCH + 1))
        b.standing = Standing.LATER
        settled = asyncio.ensure_future(b.partition.transactions.settle_offsets("g"))
        await turns()
        b.group.commit()
        await turns()
        assert not settled.done()
        b.standing = Standing.PUBLISH
        b.clock.advance(0.1)
        await turns()
        b.group.commit()
        assert await settled
        assert position(b) == 4

    run(scenario)


def test_a_new_owner_does_not_wait_for_ever() -> None:
    async def scenario(b: Bench) -> None:
        await begin(b)
        await stage(b, sent(4))
        b.standing = Standing.UNRESOLVED
        settled = asyncio.ensure_future(b.partition.transactions.settle_offsets("g"))
        for _ in range(3):
            await turns()
            b.clock.advance(SETTLE_S)
        with pytest.raises(NotReady):
            await settled

    run(scenario)


def test_a_coordinator_without_a_leader_is_not_taken_for_the_partitions_own() -> None:
    """The member asks this leader again, instead of looking for another one."""

    async def refuse(transaction: TransactionId, coordinator: int, *, end: bool = False) -> Standing:
        raise NotLeader("the coordinator has no leader")

    async def scenario(b: Bench) -> None:
        await begin(b)
        await stage(b, sent(4))
        b.partition.transactions._leading()._ask = refuse
        with pytest.raises(NotReady):
            await b.partition.transactions.settle_offsets("g")

    run(scenario)


def test_offsets_of_a_transaction_that_has_ended_are_refused() -> None:
    async def scenario(b: Bench) -> None:
        await begin(b)
        b.standing = Standing.DISCARD
        with pytest.raises(TransactionAborted):
            await stage(b, sent(4))

    run(scenario)


def test_an_offset_that_goes_with_its_leader_is_of_unknown_outcome() -> None:
    async def scenario(b: Bench) -> None:
        await begin(b)
        task = asyncio.ensure_future(b.partition.transactions.stage_offset(sent(4)))
        await turns()
        b.partition.follow()
        with pytest.raises(OutcomeUnknown):
            await task

    run(scenario)


def test_what_cannot_be_staged() -> None:
    async def scenario(b: Bench) -> None:
        b.partition.configure(TopicConfig(sync_interval_ms=100))
        with pytest.raises(InvalidRequest):
            await stage(b, sent(4))
        b.group.feature_level = TRANSACTIONS_LEVEL - 1
        with pytest.raises(UnsupportedVersion):
            await stage(b, sent(4))

    run(scenario)


def test_too_many_are_refused_before_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(b: Bench) -> None:
        await begin(b)
        await stage(b, sent(4))
        monkeypatch.setattr(staged_offsets, "OFFSETS_MAX", 1)
        before = len(b.group.log.entries)
        with pytest.raises(QuotaExceeded):
            await stage(b, sent(4, 0, OTHER))
        assert len(b.group.log.entries) == before

    run(scenario)
