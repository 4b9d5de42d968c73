"""Transactional ids as an admin sees them, on the cluster in memory."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of, run
from tinymq.base.errors import BrokerUnreachable, NotFound, TransactionAborted


def test_ids_are_listed_and_described() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        cluster.add_topic("orders", 3)
        async with client_of(cluster) as mq:
            assert await mq.admin.list_transactional_ids() == []
            async with mq.transaction("b") as tx:
                await tx.send("orders", b"v", partition=2)
            tx = mq.transaction("a", linger_ms=0, transaction_timeout_ms=90_000)
            await tx.begin()
            for partition in (1, 0):
                await (await tx.send("orders", b"v", partition=partition))
            a, b = await mq.admin.list_transactional_ids()
            assert (a.transactional_id, a.committed, a.decided_number) == ("a", None, None)
            (still,) = a.transactions
            assert (still.number, still.state, still.partitions) == (1, "open", (("orders", 0), ("orders", 1)))
            assert still.until - a.used_at == timedelta(seconds=90)
            assert (b.transactional_id, b.committed, b.decided_number, b.transactions) == ("b", True, 1, ())
            assert await mq.admin.describe_transactional_id("a") == a
            with pytest.raises(NotFound, match="no transactional id 'c'"):
                await mq.admin.describe_transactional_id("c")
            await tx.abort()

    run(test())


def test_an_open_transaction_is_rolled_back_by_an_operator() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        cluster.add_topic("orders")
        async with client_of(cluster) as owner, client_of(cluster) as operator:
            with pytest.raises(NotFound):
                await operator.admin.abort_transaction("a")
            tx = owner.transaction("a")
            await tx.begin()
            await tx.send("orders", b"v")
            await operator.admin.abort_transaction("a")
            await operator.admin.abort_transaction("a")
            with pytest.raises(TransactionAborted):
                await tx.commit()
            assert (await operator.admin.describe_transactional_id("a")).committed is False
        assert cluster.values("orders") == []

    run(test())


def test_brokers_that_do_not_answer_are_left_out() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        cluster.add_topic("orders")
        async with client_of(cluster) as mq:
            for name in ("a", "b", "c", "d"):
                async with mq.transaction(name):
                    pass
            cluster.kill(3)
            assert [each.transactional_id for each in await mq.admin.list_transactional_ids()] == ["a", "b", "c", "d"]
            cluster.kill(2)
            cluster.down.add(1)
            with pytest.raises(BrokerUnreachable):
                await mq.admin.list_transactional_ids(timeout=0.3)

    run(test())
