"""What a partition's leader does with acks that transactions stage, with a group that commits when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.broker.partition.test_staged_offsets import command
from tests.broker.partition.test_transactions import COORDINATOR, OTHER, Bench, T, run, turns
from tests.broker.values import makes, moves, seeks
from tinymq.base.errors import (
    InvalidRequest,
    LeaseLost,
    NotReady,
    OutcomeUnknown,
    TransactionAborted,
    UnsupportedVersion,
)
from tinymq.base.topic_config import TopicConfig
from tinymq.broker.groups.lease_values import Era, Grant, QueueSettings, SettlementResult
from tinymq.broker.groups.queue_leases import QueueLeases
from tinymq.broker.state.queue_group import REJECTED, Failure, QueueGroup
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.rules import Standing
from tinymq.broker.work.applied_state import AppliedState
from tinymq.broker.work.commands import command_of
from tinymq.broker.work.transactional_jobs import RETRY_S, AcksPlace, TransactionalJobs
from tinymq.format.entry import Kind
from tinymq.format.feature_level import TRANSACTIONS_LEVEL
from tinymq.proto import partition_pb2 as pb

A, B = b"a" * 16, b"b" * 16
SETTINGS = QueueSettings(leased_max=4, deliveries_max=3)


class Led:
    """The leader's memory of a group with ten records."""

    def __init__(self, b: Bench, settings: QueueSettings = SETTINGS) -> None:
        self.b = b
        applied = AppliedState(b.partition, "g")
        self.leases = QueueLeases(b.group.term, applied, 0, settings, b.clock.monotonic())
        self.jobs = TransactionalJobs(b.partition, "g", 7, self.leases, applied, b.clock)

    @property
    def group(self) -> QueueGroup:
        return self.b.partition.state.queue_groups.by_name["g"]

    @property
    def position(self) -> int:
        return self.b.partition.state.cursors["g"].position

    async def commit(self) -> None:
        """Have everything that is proposed applied."""
        while proposals := self.leases.take_proposals():
            await command(self.b, *(command_of(proposal, "g", 7) for proposal in proposals))
            for proposal in proposals:
                self.leases.applied(proposal)
        self.jobs.follow()

    async def take(self, session: bytes = A, most: int = 1) -> list[Grant]:
        for _ in range(2):  # the first call proposes the mark
            if session not in self.leases.sessions:
                self.leases.attach(session, 1, [], 0.0)
            await self.commit()
            grants = self.leases.grant(session, most, 10, 0, 0.0)
            if grants:
                break
        return grants

    async def begin(self, *grants: Grant, session: bytes = A, transaction: TransactionId = T) -> asyncio.Task[None]:
        place = AcksPlace(transaction, COORDINATOR, 0)
        task = asyncio.ensure_future(self.jobs.stage(session, grants, place))
        await turns()
        return task

    async def stage(self, *grants: Grant, session: bytes = A, transaction: TransactionId = T) -> None:
        task = await self.begin(*grants, session=session, transaction=transaction)
        self.b.group.commit()
        try:
            await task
        finally:
            self.jobs.follow()

    async def end(self, transaction: TransactionId = T, *, publish: bool = True) -> None:
        await self.b.end(transaction, publish=publish)
        self.jobs.follow()

    async def free(self, session: bytes = B) -> list[int]:
        """The records that a worker gets now."""
        return [grant.offset for grant in await self.take(session, 10)]


def led(scenario: Callable[[Led], Awaitable[None]], settings: QueueSettings = SETTINGS) -> None:
    async def main(b: Bench) -> None:
        b.produce(10)
        b.group.commit()
        await command(b, makes(7, kind=pb.QUEUE))
        await scenario(Led(b, settings))

    run(main)


# ---- when they count


def test_an_ack_counts_with_its_transaction() -> None:
    async def scenario(at: Led) -> None:
        grants = await at.take(A, 2)
        task = await at.begin(*grants)
        assert at.b.asked == [(T, COORDINATOR)], "as before the first batch"
        assert (task.done(), at.leases.leases) == (False, {}), "it is not on a majority of disks yet"
        at.b.group.commit()
        await task
        await at.stage(*grants)  # a repeat
        assert (await at.b.partition.transactions.held(T), at.jobs.taken) == (1, 2)
        await at.end()
        assert (at.position, at.jobs.taken, at.b.kinds()[-1]) == (2, 0, Kind.COMMAND)

    led(scenario)


def test_what_is_rolled_back_is_granted_again_uncharged() -> None:
    async def scenario(at: Led) -> None:
        grants = await at.take(A, 2)
        await at.stage(*grants)
        assert await at.free() == [2, 3], "the window has four records"
        await at.end(publish=False)
        (again, *_) = await at.take(A, 1)
        assert (again.offset, again.delivery, at.b.kinds()[-1]) == (0, 1, Kind.DISCARD)

    led(scenario)


def test_it_counts_in_the_window() -> None:
    async def scenario(at: Led) -> None:
        await at.stage(*(await at.take(A, 3)))
        assert await at.free() == [3]
        await at.end()
        assert await at.free() == [4, 5, 6]

    led(scenario)


def test_it_holds_its_key() -> None:
    async def scenario(at: Led) -> None:
        assert at.leases.keys is not None
        at.leases.keys.learn(0, [1] * 9 + [2])
        (grant, other) = await at.take(A, 10)
        assert (grant.offset, other.offset) == (0, 9)
        await at.stage(grant)
        assert await at.free() == []
        await at.end(publish=False)
        assert await at.free() == [0]
        (again,) = [lease.grant for offset, lease in at.leases.leases.items() if offset == 0]
        await at.stage(again, session=B, transaction=OTHER)
        at.b.standing = Standing.OPEN
        await at.end(OTHER)
        assert await at.free() == [1]

    led(scenario, QueueSettings(keyed=True))


def test_a_dead_record_that_a_rollback_gives_back_is_buried() -> None:
    async def scenario(at: Led) -> None:
        (grant,) = await at.take()
        await at.stage(grant)
        at.group.failures[0] = Failure(1 | REJECTED, returns=0, not_before_us=0)
        assert at.leases.take_dead() == []
        await at.end(publish=False)
        assert [offset for offset, _ in at.leases.take_dead()] == [0]

    led(scenario)


# ---- what is refused


def test_only_who_holds_the_record_may_ack_it() -> None:
    async def scenario(at: Led) -> None:
        (older,) = await at.take(A)
        at.leases.take_back(0)
        (newer,) = await at.take(B)
        for grants, session in (([older], A), ([newer], A), ([newer], b"c" * 16)):
            with pytest.raises(LeaseLost):
                await at.stage(*grants, session=session)
        before = len(at.b.group.log.entries)
        with pytest.raises(LeaseLost):
            await at.stage(newer, older._replace(offset=1, era=Era(0, 9)), session=B)
        assert len(at.b.group.log.entries) == before, "all or none"
        await at.stage(newer, session=B)

    led(scenario)


def test_an_older_grant_counts_while_nobody_has_a_newer_one() -> None:
    async def scenario(at: Led) -> None:
        (grant,) = await at.take(A)
        at.leases.take_back(0)
        await at.stage(grant)
        assert await at.free() == [1, 2, 3]

    led(scenario)


def test_nothing_else_is_said_of_a_staged_record() -> None:
    async def scenario(at: Led) -> None:
        (grant,) = await at.take()
        task = await at.begin(grant)
        assert at.leases.ack(A, 1, grant, 0.0) is SettlementResult.LATER, "its command is not applied yet"
        with pytest.raises(NotReady):
            await at.stage(grant, transaction=OTHER)
        at.b.group.commit()
        await task
        at.jobs.follow()
        assert at.leases.ack(A, 1, grant, 0.0) is SettlementResult.LOST
        assert at.leases.nack(A, 1, grant, 0, 0.0) is SettlementResult.LOST
        assert at.leases.extend(A, 1, grant, False, 0.0) is SettlementResult.LOST
        assert not at.leases.confirm(A, grant, 0.0)
        with pytest.raises(LeaseLost):
            await at.stage(grant, transaction=OTHER)
        await at.end()
        assert at.leases.ack(A, 1, grant, 0.0) is SettlementResult.DONE

    led(scenario)


def test_a_worker_that_has_not_attached_to_a_new_leader_waits() -> None:
    async def scenario(at: Led) -> None:
        (grant,) = await at.take()
        new = Led(at.b)
        with pytest.raises(NotReady):
            await new.stage(grant)
        new.leases.end_wait(at.b.clock.monotonic() + SETTINGS.rejoin_s)
        with pytest.raises(LeaseLost):
            await new.stage(grant)

    led(scenario)


def test_acks_that_a_seek_overtakes_are_refused_and_the_records_are_free() -> None:
    async def scenario(at: Led) -> None:
        (grant,) = await at.take()
        answers: list[object] = []
        seek = seeks(0, channel="g")
        seek.seek.kind, seek.seek.group_id = pb.QUEUE, 7
        at.b.partition.command([seek], 60.0, answers.append)
        await turns()
        with pytest.raises(InvalidRequest, match="moved"):
            await at.stage(grant)
        assert await at.b.partition.transactions.held(T) == 0
        at.leases.begin_era(0)
        assert await at.free() == [0, 1, 2, 3]

    led(scenario)


def test_acks_of_a_transaction_that_has_ended_are_refused() -> None:
    async def scenario(at: Led) -> None:
        (grant,) = await at.take()
        at.b.standing = Standing.DISCARD
        with pytest.raises(TransactionAborted):
            await at.stage(grant)
        assert 0 in at.leases.leases, "the worker still has it"

    led(scenario)


def test_acks_that_go_with_their_leader_are_of_unknown_outcome() -> None:
    async def scenario(at: Led) -> None:
        (grant,) = await at.take()
        task = await at.begin(grant)
        at.b.partition.follow()
        with pytest.raises(OutcomeUnknown):
            await task

    led(scenario)


def test_what_cannot_be_staged() -> None:
    async def scenario(at: Led) -> None:
        (grant,) = await at.take()
        at.b.partition.configure(TopicConfig(sync_interval_ms=100))
        with pytest.raises(InvalidRequest):
            await at.stage(grant)
        at.b.group.feature_level = TRANSACTIONS_LEVEL - 1
        with pytest.raises(UnsupportedVersion):
            await at.stage(grant)

    led(scenario)


# ---- workers that are gone


def test_the_transaction_of_a_session_that_has_ended_is_rolled_back() -> None:
    async def scenario(at: Led) -> None:
        await at.stage(*(await at.take()))
        at.jobs.tick()
        await turns()
        assert at.b.asked == [(T, COORDINATOR)], "its worker is there"
        at.leases.end_session(A)
        await at.commit()
        at.b.standing = None  # the coordinator does not answer at once
        at.jobs.tick()
        at.jobs.tick()
        await turns()
        assert at.b.asked == [(T, COORDINATOR)] * 2

    led(scenario)


def test_a_record_of_a_worker_that_is_gone_is_free_at_once() -> None:
    async def scenario(at: Led) -> None:
        await at.stage(*(await at.take()))
        at.leases.end_session(A)
        await at.commit()
        new = Led(at.b)  # of a leader that does not know the worker
        new.jobs.tick()
        await turns()
        at.b.group.commit()
        await turns()
        new.jobs.follow()
        assert (await new.free())[0] == 0
        assert at.b.kinds().count(Kind.DISCARD) == 1

    led(scenario)


def test_a_coordinator_that_does_not_decide_is_asked_again() -> None:
    async def scenario(at: Led) -> None:
        await at.stage(*(await at.take()))
        at.leases.end_session(A)
        await at.commit()
        at.b.standing = Standing.UNRESOLVED
        at.jobs.tick()
        for _ in range(3):
            await turns()
            at.b.clock.advance(3.0)
        await turns()
        asked = len(at.b.asked)
        at.jobs._retry_s = at.b.clock.monotonic() + RETRY_S
        at.jobs.tick()
        await turns()
        assert len(at.b.asked) == asked
        at.b.clock.advance(RETRY_S)
        at.b.standing = Standing.PUBLISH
        at.jobs.tick()
        await turns()
        at.b.group.commit()
        await turns()
        assert at.position == 1

    led(scenario)


def test_a_removed_record_ends_no_transaction() -> None:
    async def scenario(at: Led) -> None:
        await at.stage(*(await at.take(A, 2)))
        await command(at.b, moves(5))
        await at.end()
        assert (at.jobs.taken, at.group.staged) == (0, {})
        assert (await at.free())[0] == 5

    led(scenario)
