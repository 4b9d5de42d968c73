"""Programs with transactional ids, over raw RPCs: they follow the coordinator, and the leaders of partitions."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from tests.fakes.batches import payload
from tests.fakes.raw_client import Raw, batch, entries
from tinymq.base.config import Limits
from tinymq.base.errors import NotLeader, NotReady, OutcomeUnknown, TinymqError
from tinymq.format.batch import decode_batch
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import from_wire
from tinymq.testing.cluster import Cluster

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


class Writer(Program):
    """A program that writes in its transactions."""

    writer = 1  # its number in the transaction

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.sent: dict[tuple[bytes, int], int] = {}  # batches of the present transaction, by partition

    async def begin(self, timeout_ms: int = 60_000) -> pb.TransactionRef:
        self.sent.clear()
        return await super().begin(timeout_ms)

    def batch(self, topic_id: bytes, partition: int, value: bytes, number: int, **fields: Any) -> pb.ProduceBatch:
        """The batch `number` of the present transaction in a partition: two records."""
        place = pb.BatchTransaction(
            transaction=self.now, coordinator=self.owner.coordinator, writer=self.writer, number=number
        )
        return batch(topic_id, payload(2, value=value), 1, partition=partition, transaction=place, **fields)

    async def send(self, topic: str, topic_id: bytes, partition: int, value: bytes) -> None:
        """Store the next batch. Raises the error of its result."""
        number = self.sent.get((topic_id, partition), 0)
        await self.store(topic, self.batch(topic_id, partition, value, number))
        self.sent[topic_id, partition] = number + 1

    async def store(self, topic: str, *batches: pb.ProduceBatch) -> None:
        """Send batches to the leader of that moment until they are stored. Raises the first error that is final."""
        async with asyncio.timeout(WAIT_S):
            while True:
                leader = await asyncio.to_thread(self.cluster.wait_leader, topic, batches[0].partition)
                try:
                    async with Raw(self.cluster.address(leader)) as raw:
                        results = await raw.produce(*batches)
                except grpc.aio.AioRpcError:
                    continue
                errors = [from_wire(result.error) for result in results if result.HasField("error")]
                if not errors:
                    assert {result.base_offset for result in results} == {0}
                    return
                final = [e for e in errors if not isinstance(e, NotLeader | NotReady | OutcomeUnknown)]
                if final:
                    raise final[0]
                await asyncio.sleep(0.01)

    async def commit_sent(self, *, visible: bool = True) -> bool:
        return await self.commit(self.sent, visible=visible)


async def read(cluster: Cluster, topic: str, topic_id: bytes, partition: int, count: int) -> list[bytes]:
    """The values of a partition, once there are so many."""
    leader = await asyncio.to_thread(cluster.wait_leader, topic, partition)
    found: list[bytes] = []
    async with Raw(cluster.address(leader)) as raw, asyncio.timeout(WAIT_S):
        while True:
            reply = await raw.fetch(topic_id, len(found), partition=partition, max_wait_ms=200)
            for entry in entries(reply):
                if entry.header.record_count:
                    found += decode_batch(entry.batch, Limits()).column(1).to_pylist()
            if len(found) >= count and not reply.frames:
                return found


def pair(value: bytes) -> list[bytes]:
    """The values of a batch."""
    return [value + b"0", value + b"1"]
