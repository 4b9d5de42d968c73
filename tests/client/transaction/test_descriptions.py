"""Transactional ids as an admin sees them, on the cluster in memory."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of, run
from tinymq.base.errors import BrokerUnreachable, Fenced, InvalidRequest, NotFound, TransactionAborted


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


def test_an_id_that_is_taken_tells_what_became_of_its_newest_transaction() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        cluster.add_topic("orders")
        async with client_of(cluster) as before, client_of(cluster) as after:
            first = await before.transaction("a").take_id()
            assert (first.decided_number, first.committed, first.transactions) == (None, None, ())
            tx = before.transaction("a")
            assert tx.number == 0
            async with tx:
                await tx.send("orders", b"v")
            second = await after.transaction("a").take_id()
            assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 1)
            assert (second.decided_number, second.committed) == (tx.number, True)
            with pytest.raises(Fenced):
                await before.transaction("a").begin()

            left = after.transaction("a")
            await left.begin()
            await left.send("orders", b"lost")
            with pytest.raises(InvalidRequest, match="is open"):
                await after.transaction("a").take_id()
            third = await before.transaction("a").take_id()  # a fenced client may take it again
            assert (third.decided_number, third.committed) == (left.number, False)
            with pytest.raises(TransactionAborted):
                await left.commit()
            async with before.transaction("a") as tx:
                await tx.send("orders", b"w")
            assert tx.number > left.number
        assert cluster.values("orders") == [b"v", b"w"]

    run(test())
