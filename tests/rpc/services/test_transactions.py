"""Transactional ids over the wire, on three brokers: who owns an id, what is open, and what becomes of it."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.fakes.raw_client import Raw
from tests.fakes.transactional_programs import WAIT_S, Program, made, refused
from tinymq.base.errors import (
    Fenced,
    InvalidName,
    InvalidRequest,
    NotFound,
    NotLeader,
    OutcomeUnknown,
    TransactionAborted,
    UnknownPartition,
)
from tinymq.broker.groups.groups import COORDINATOR_TOPIC, COORDINATORS
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import from_wire
from tinymq.testing.cluster import Cluster

pytest_plugins = ["tinymq.testing.fixture"]


def test_an_owner_registers_begins_and_commits_nothing(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        program = Program(tinymq_cluster, "first")
        owner = await program.register()
        assert (owner.producer_id > 0, owner.epoch, owner.coordinator < COORDINATORS) == (True, 0, True)
        begun = await program.begin()
        assert (begun.producer_id, begun.epoch, begun.number) == (owner.producer_id, 0, 1)
        info = await program.info()
        assert info is not None
        (transaction,) = info.transactions
        assert (transaction.number, transaction.state, transaction.epoch) == (1, "open", 0)
        assert await program.commit({})
        info = await program.info()
        assert info is not None
        assert (list(info.transactions), info.outcome_of, info.committed) == ([], begun, True)
        assert await program.commit({}), "a repeated commit is answered alike"

    asyncio.run(main())


def test_a_broker_that_does_not_lead_names_the_coordinator(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        program = Program(tinymq_cluster, "elsewhere")
        owner = await program.register()
        leader = await asyncio.to_thread(tinymq_cluster.wait_leader, COORDINATOR_TOPIC, owner.coordinator)
        other = next(broker_id for broker_id in tinymq_cluster.brokers if broker_id != leader)
        async with Raw(tinymq_cluster.address(other)) as raw:
            reply = await raw.transactions.RegisterOwner(pb.RegisterOwnerRequest(transactional_id="elsewhere"))
        error = from_wire(reply.error)
        assert isinstance(error, NotLeader)
        assert error.detail["leader_address"] == tinymq_cluster.address(leader)

    asyncio.run(main())


def test_a_later_owner_fences_the_earlier_one_and_ends_its_transaction(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        first, second = Program(tinymq_cluster, "taken"), Program(tinymq_cluster, "taken")
        await first.register()
        await first.begin()
        later = await second.register()
        assert (later.producer_id, later.epoch) == (first.owner.producer_id, 1)
        with refused(TransactionAborted):
            await first.commit({})
        with refused(Fenced):
            await first.begin()
        begun = await second.begin()
        assert (begun.epoch, begun.number) == (1, 2)
        with refused(OutcomeUnknown):
            first.now.number = 9
            first.now.epoch = 1
            await first.commit({})

    asyncio.run(main())


def test_the_time_of_a_transaction_is_up(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        program = Program(tinymq_cluster, "slow")
        await program.register()
        await program.begin(timeout_ms=60_000)
        await asyncio.to_thread(tinymq_cluster.clock.advance, seconds=61)
        found: list[Any] = []

        async def ended() -> bool:
            info = await program.info()
            assert info is not None
            found[:] = [list(info.transactions), info.committed]
            return not info.transactions

        async with asyncio.timeout(WAIT_S):
            while not await ended():
                await asyncio.sleep(0.01)
        assert found == [[], False]
        with refused(TransactionAborted):
            await program.commit({})

    asyncio.run(main())


def test_somebody_else_ends_an_open_transaction(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        topic_id = await made(tinymq_cluster, "ended")
        program = Program(tinymq_cluster, "hung")
        await program.register()
        await program.begin()
        await program.add(topic_id, 0, 1)
        await Program(tinymq_cluster, "hung").abort(owned=False)
        await program.abort(owned=False)
        with refused(TransactionAborted):
            await program.commit({})
        await program.abort()
        with refused(NotFound):
            await Program(tinymq_cluster, "never").abort(owned=False)

    asyncio.run(main())


def test_what_cannot_be_is_refused(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        topic_id = await made(tinymq_cluster, "odd")
        for name in ("", "a/b", "x" * 250):
            with refused(InvalidName):
                await Program(tinymq_cluster, name).register()
        program = Program(tinymq_cluster, "odd")
        with refused(Fenced):
            await program.begin()
        await program.register()
        for timeout_ms in (999, 15 * 60_000 + 1):
            with refused(InvalidRequest):
                await program.begin(timeout_ms)
        await program.begin()
        with refused(UnknownPartition):
            await program.add(topic_id, 2)
        with refused(UnknownPartition):
            await program.add(b"?" * 16, 0)
        with refused(InvalidName):
            await program.add(b"short", 0)
        with refused(InvalidRequest):
            await program.add(topic_id, 1, 1)
        with refused(TransactionAborted):  # of a partition that was never added
            await program.commit({(topic_id, 0): 1})
        with refused(InvalidRequest):
            await program.ask("CommitTransaction", pb.CommitTransactionRequest(transactional_id="odd"))
        with refused(InvalidRequest):
            await program.ask("BeginTransaction", pb.BeginTransactionRequest(transactional_id="odd"))
        many = [pb.TransactionPartition(topic_id=topic_id, partition=n) for n in range(1001)]
        with refused(InvalidRequest):
            await program.ask("AddPartitions", pb.AddPartitionsRequest(transactional_id="odd", partitions=many))
        with refused(InvalidRequest):
            await program.ask("ListTransactionalIds", pb.ListTransactionalIdsRequest(limit=1001))

    asyncio.run(main())


def test_brokers_list_what_they_coordinate(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        names = [f"listed-{n}" for n in range(12)]
        for name in names:
            await Program(tinymq_cluster, name).register()
        found: list[str] = []
        for broker_id in tinymq_cluster.brokers:
            async with Raw(tinymq_cluster.address(broker_id)) as raw:
                after, more = "", True
                while more:
                    request = pb.ListTransactionalIdsRequest(limit=2, after=after)
                    reply = await raw.transactions.ListTransactionalIds(request)
                    listed = [each.transactional_id for each in reply.ids]
                    assert len(listed) <= 2
                    assert listed == sorted(listed)
                    found += listed
                    after, more = (listed or [""])[-1], reply.more
        assert sorted(name for name in found if name.startswith("listed-")) == sorted(names)

    asyncio.run(main())


def test_a_coordinator_fails_between_the_calls(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        program = Program(tinymq_cluster, "failover")
        owner = await program.register()
        await program.begin()
        leader = await asyncio.to_thread(tinymq_cluster.wait_leader, COORDINATOR_TOPIC, owner.coordinator)
        await asyncio.to_thread(tinymq_cluster.kill, leader)
        program.address = tinymq_cluster.address(min(tinymq_cluster.brokers))
        assert await program.commit({})
        assert (await program.begin()).number == 2
        await asyncio.to_thread(tinymq_cluster.start, leader)

    asyncio.run(main())
