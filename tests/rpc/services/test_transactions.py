"""Transactional ids over the wire, on three brokers: who owns an id, what is open, and what becomes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from tests.fakes.raw_client import Raw
from tinymq.base.errors import (
    Fenced,
    InvalidName,
    InvalidRequest,
    NotFound,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    TinymqError,
    TransactionAborted,
    UnknownPartition,
)
from tinymq.broker.groups.groups import COORDINATOR_TOPIC, COORDINATORS
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import from_wire
from tinymq.testing.cluster import Cluster

pytest_plugins = ["tinymq.testing.fixture"]

WAIT_S = 60.0
REPEATS = 3  # after the leader of an id's coordinator has changed


class Program:
    """A program with a transactional id, which follows the coordinator. Any broker is asked first."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.owner = pb.RegisterOwnerReply()
        self.now = pb.TransactionRef()
        self.address = cluster.address(min(cluster.brokers))

    async def ask(self, method: str, request: Any) -> Any:
        """The answer of the coordinator. Raises its error, and OutcomeUnknown if it comes again and again."""
        unknown = 0
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    async with Raw(self.address) as raw:
                        reply = await getattr(raw.transactions, method)(request, timeout=WAIT_S)
                    error = from_wire(reply.error) if reply.HasField("error") else None
                except grpc.aio.AioRpcError as failure:
                    error = OutcomeUnknown(f"no broker there: {failure.code()}")
                unknown += isinstance(error, OutcomeUnknown)
                if not isinstance(error, NotLeader | NotReady | OutcomeUnknown) or unknown > REPEATS:
                    break
                known = [self.cluster.address(broker_id) for broker_id in self.cluster.brokers]
                leader = error.detail.get("leader_address")
                self.address = leader if leader in known else known[0]
                await asyncio.sleep(0.01)
        if error is not None:
            raise error
        return reply

    async def register(self) -> pb.RegisterOwnerReply:
        self.owner = await self.ask("RegisterOwner", pb.RegisterOwnerRequest(transactional_id=self.name))
        return self.owner

    async def begin(self, timeout_ms: int = 60_000) -> pb.TransactionRef:
        request = pb.BeginTransactionRequest(
            transactional_id=self.name, producer_id=self.owner.producer_id, epoch=self.owner.epoch,
            timeout_ms=timeout_ms,
        )  # fmt: skip
        self.now = (await self.ask("BeginTransaction", request)).transaction
        return self.now

    async def add(self, topic_id: bytes, *partitions: int) -> None:
        request = pb.AddPartitionsRequest(
            transactional_id=self.name, transaction=self.now,
            partitions=[pb.TransactionPartition(topic_id=topic_id, partition=n) for n in partitions],
        )  # fmt: skip
        await self.ask("AddPartitions", request)

    async def commit(self, counts: dict[tuple[bytes, int], int], *, visible: bool = True) -> bool:
        request = pb.CommitTransactionRequest(
            transactional_id=self.name, transaction=self.now, visible=visible, timeout_ms=10_000,
            partitions=[
                pb.TransactionPartition(topic_id=topic_id, partition=partition, batches=count)
                for (topic_id, partition), count in counts.items()
            ],
        )  # fmt: skip
        return bool((await self.ask("CommitTransaction", request)).visible)

    async def abort(self, *, owned: bool = True) -> None:
        request = pb.AbortTransactionRequest(transactional_id=self.name, transaction=self.now if owned else None)
        await self.ask("AbortTransaction", request)

    async def info(self) -> pb.TransactionalIdInfo | None:
        request = pb.ListTransactionalIdsRequest(transactional_id=self.name)
        ids = (await self.ask("ListTransactionalIds", request)).ids
        return ids[0] if ids else None


async def made(cluster: Cluster, name: str, partitions: int = 2) -> bytes:
    """A new topic's id, once its partitions have leaders."""
    async with Raw(cluster.address(min(cluster.brokers))) as raw:
        topic = await raw.create(name, partitions)
    for partition in range(partitions):
        await asyncio.to_thread(cluster.wait_leader, name, partition)
    return topic.topic_id


def refused(kind: type[TinymqError]) -> Any:
    return pytest.raises(kind)


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
