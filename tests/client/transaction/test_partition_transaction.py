"""Transactions without an id: one batch of one partition, on the cluster in memory, and from threads over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.grpc_brokers import GrpcBrokers
from tests.client.running import client_of, run
from tinymq import AsyncClient, AsyncPartitionTransaction, Client
from tinymq.base.config import Limits
from tinymq.base.errors import (
    BatchTooLarge,
    Closed,
    InvalidBatch,
    InvalidRequest,
    OutcomeUnknown,
    QuotaExceeded,
    TransactionAborted,
    UnknownTopic,
)
from tinymq.client.facade import async_client


def cluster_of(partitions: int = 3) -> FakeCluster:
    cluster = FakeCluster()
    cluster.add_topic("orders", partitions)
    return cluster


def public(cluster: FakeCluster, **settings: object) -> AsyncClient:
    return async_client.client_of(client_of(cluster, **settings))


def frames(cluster: FakeCluster) -> int:
    """The number of entries in all partitions."""
    return sum(len(part.frames) for part in cluster.topics["orders"][1])


def values(cluster: FakeCluster) -> list[bytes]:
    return [value for number in range(3) for value in cluster.values("orders", number)]


# ---- all or nothing


def test_records_and_tables_are_one_batch_in_their_order() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with public(cluster) as mq:
            async with mq.transaction() as tx:
                await tx.send("orders", b"0", headers={"a": b"b"}, timestamp=7)
                await tx.send("orders", b"1")
                await tx.send_batch("orders", pa.table({"value": [b"2", b"3"]}))
                await tx.send("orders", None)
                assert not tx.visible
                assert frames(cluster) == 0
            assert tx.visible
            assert await tx.commit("decided"), "a second commit knows the outcome"
            assert frames(cluster) == 1
            messages = await mq.reader("orders", start="earliest", end="latest").poll()
        assert [message.value for message in messages] == [b"0", b"1", b"2", b"3", None]
        assert (messages[0].headers, messages[0].timestamp_us) == ((("a", b"b"),), 7)

    run(test())


def test_an_exception_drops_the_records() -> None:
    async def failing(mq: AsyncClient) -> None:
        async with mq.transaction() as tx:
            await tx.send("orders", b"v")
            raise KeyError

    async def test() -> None:
        cluster = cluster_of()
        async with public(cluster) as mq:
            with pytest.raises(KeyError):
                await failing(mq)
            tx = mq.transaction()
            await tx.abort()
            await tx.abort()
            with pytest.raises(Closed, match="rolled back"):
                await tx.commit()
            with pytest.raises(Closed, match="rolled back"):
                async with tx:
                    pass
            async with mq.transaction():
                pass
        assert frames(cluster) == 0

    run(test())


# ---- one partition


def test_keys_choose_the_partition() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with public(cluster) as mq:
            place = (await mq.send("orders", b"first", key=b"42")).partition
            async with mq.transaction() as tx:
                await tx.send("orders", b"keyless")
                await tx.send("orders", b"second", key=b"42")
            assert cluster.values("orders", place) == [b"first", b"keyless", b"second"]
            tx = mq.transaction()
            for number in range(20):
                await tx.send("orders", b"v", key=b"%d" % number)
            with pytest.raises(InvalidRequest, match="belong to 3 partitions") as caught:
                await tx.commit()
            assert 'mq.transaction("NAME")' in caught.value.hint
            async with mq.transaction() as tx:
                for number in range(20):
                    await tx.send("orders", b"v", key=b"%d" % number, partition=1)
        assert cluster.values("orders", 1).count(b"v") == 20

    run(test())


def test_what_a_batch_cannot_have_is_refused_and_the_rest_goes_on() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with public(cluster, limits=Limits(batch_bytes_max=1_100_000, record_bytes_max=1_000_000)) as mq:
            tx = mq.transaction()
            await tx.send("orders", b"v", partition=1)
            with pytest.raises(InvalidRequest, match="'orders' and 'emails'"):
                await tx.send("emails", b"v", partition=1)
            with pytest.raises(InvalidRequest, match="partition=2 beside records with partition=1"):
                await tx.send("orders", b"v", partition=2)
            with pytest.raises(InvalidRequest, match="delayed"):
                await tx.send("orders", b"v", partition=1, delay=5)  # type: ignore[arg-type]
            await tx.send("orders", bytes(800_000), partition=1)
            with pytest.raises(BatchTooLarge, match="one batch"):
                await tx.send("orders", bytes(800_000), partition=1)
            with pytest.raises(BatchTooLarge, match="one batch"):
                await tx.send_batch("orders", pa.table({"value": [bytes(800_000)]}), partition=1)
            with pytest.raises(InvalidBatch, match="column"):
                await tx.send_batch("orders", pa.table({"amount": [1]}), partition=1)
            with pytest.raises(InvalidRequest, match="not a table"):
                await tx.send_batch("orders", [b"v"], partition=1)
            with pytest.raises(InvalidRequest, match="visible"):
                await tx.commit("soon")  # type: ignore[arg-type]
            assert await tx.commit()
            with pytest.raises(InvalidRequest, match="compression: a transaction without an id"):
                mq.transaction(compression="zstd")  # type: ignore[call-overload]
        assert [len(value) for value in cluster.values("orders", 1)] == [1, 800_000]

    run(test())


# ---- the commit


def test_a_lost_answer_writes_nothing_twice() -> None:
    async def test() -> None:
        cluster = cluster_of()
        cluster.lose_replies = 1
        async with public(cluster) as mq, mq.transaction() as tx:
            await tx.send("orders", b"v")
        assert values(cluster) == [b"v"]

    run(test())


def test_a_commit_without_an_answer_may_be_repeated() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with public(cluster) as mq:
            await mq.send("orders", b"first", partition=0)
            tx = mq.transaction()
            await tx.send("orders", b"v", partition=0)
            cluster.hang(cluster.topics["orders"][1][0].leader, elect=False)
            with pytest.raises(OutcomeUnknown, match="no answer after"):
                await tx.commit(timeout=0.2)
            with pytest.raises(InvalidRequest, match="unknown outcome"):
                await tx.abort()
            with pytest.raises(Closed, match="unknown outcome"):
                await tx.send("orders", b"w", partition=0)
            cluster.elect_away_from(cluster.topics["orders"][1][0].leader)
            assert await tx.commit()
        assert values(cluster) == [b"first", b"v"]

    run(test())


def test_an_interrupted_commit_may_be_repeated() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with public(cluster) as mq:
            await mq.send("orders", b"first", partition=0)
            tx = mq.transaction()
            await tx.send("orders", b"v", partition=0)
            leader = cluster.topics["orders"][1][0].leader
            cluster.hang(leader, elect=False)
            committing = asyncio.create_task(tx.commit())
            while "being committed" not in repr(tx):
                await asyncio.sleep(0)
            for _ in range(5):  # until the batch is with its sender
                await asyncio.sleep(0)
            committing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await committing
            cluster.elect_away_from(leader)
            assert await tx.commit()
        assert values(cluster) == [b"first", b"v"]

    run(test())


def test_what_brokers_refuse_is_never_visible() -> None:
    async def test() -> None:
        cluster = cluster_of()
        async with public(cluster) as mq:
            tx = mq.transaction()
            await tx.send("absent", b"v")
            with pytest.raises(UnknownTopic):
                await tx.commit()
            assert "rolled back" in repr(tx)
        async with public(cluster, request_timeout_ms=2000) as mq:
            tx = mq.transaction()
            await tx.send("orders", b"v")
            cluster.records_max = 0
            with pytest.raises(TransactionAborted) as caught:
                await tx.commit()
            assert isinstance(caught.value.__cause__, QuotaExceeded)
            cluster.records_max = None
            with pytest.raises(Closed, match="rolled back"):
                await tx.commit()
        assert frames(cluster) == 0

    run(test())


# ---- threads


@pytest.fixture
def brokers() -> Iterator[GrpcBrokers]:
    with GrpcBrokers(cluster_of()) as running:
        yield running


def test_from_threads(brokers: GrpcBrokers) -> None:
    with Client(brokers.servers) as mq:
        with mq.transaction() as tx:
            tx.send("orders", b"0", key=b"42")
            tx.send_batch("orders", pa.table({"key": [b"42"], "value": [b"1"]}))
            tx.send("orders", b"2", key=b"42")
            assert values(brokers.cluster) == []
        assert tx.visible
        assert repr(tx) == "<PartitionTransaction, 3 records for orders, committed>"
        assert values(brokers.cluster) == [b"0", b"1", b"2"]
        assert frames(brokers.cluster) == 1
        mq.transaction().abort()
        with pytest.raises(InvalidRequest, match="linger_ms: a transaction without an id"):
            mq.transaction(linger_ms=5)  # type: ignore[call-overload]


def test_a_closed_client_commits_nothing(brokers: GrpcBrokers) -> None:
    def closed_inside(error: Exception | None = None) -> None:
        mq = Client(brokers.servers)
        with mq.transaction() as tx:
            tx.send("orders", b"v")
            mq.close()
            if error is not None:
                raise error

    with pytest.raises(Closed):
        closed_inside()
    with pytest.raises(KeyError):
        closed_inside(KeyError())
    assert values(brokers.cluster) == []


def test_the_type_of_an_asynchronous_transaction() -> None:
    async def test() -> None:
        async with public(cluster_of()) as mq:
            assert isinstance(mq.transaction(), AsyncPartitionTransaction)

    run(test())
