"""The transactions of a Client, from threads: the same as those of an AsyncClient."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.grpc_brokers import GrpcBrokers
from tinymq import Client, Staged
from tinymq.base.errors import Closed, InvalidRequest, TransactionAborted

NAME = "billing-1"


@pytest.fixture
def brokers() -> Iterator[GrpcBrokers]:
    with GrpcBrokers(FakeCluster()) as running:
        running.cluster.add_topic("orders", 3)
        yield running


@pytest.fixture
def mq(brokers: GrpcBrokers) -> Iterator[Client]:
    with Client(brokers.servers) as client:
        yield client


def values(brokers: GrpcBrokers) -> list[bytes]:
    return sorted(value for partition in range(3) for value in brokers.cluster.values("orders", partition))


def test_a_block_commits_or_rolls_back(brokers: GrpcBrokers, mq: Client) -> None:
    with mq.transaction(NAME, batch_bytes_max=1000) as tx:
        deliveries = [tx.send("orders", b"%d" % number, key=b"%d" % number) for number in range(100)]
        assert isinstance(deliveries[0].result(10), Staged)
        assert "staged" in repr(deliveries[0])
        tx.send_batch("orders", pa.table({"value": [b"one", b"two"]}))
        assert values(brokers) == []
    assert tx.visible
    assert repr(tx) == "<Transaction of 'billing-1', committed>"
    assert all(delivery.done() for delivery in deliveries)
    committed = sorted([*(b"%d" % number for number in range(100)), b"one", b"two"])
    assert values(brokers) == committed

    def failing() -> None:
        with mq.transaction(NAME) as tx:
            tx.send("orders", b"v")
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert values(brokers) == committed


def test_single_steps(brokers: GrpcBrokers, mq: Client) -> None:
    tx = mq.transaction(NAME)
    with pytest.raises(InvalidRequest, match="not begun"):
        tx.send("orders", b"v")
    tx.begin()
    tx.send("orders", b"v")
    assert tx.commit("decided")
    with pytest.raises(Closed, match="committed"):
        tx.send("orders", b"w")
    again = mq.transaction(NAME)
    again.begin()
    again.send("orders", b"w")
    again.abort()
    with pytest.raises(InvalidRequest, match="delayed"):
        tx.send("orders", b"v", delay=5)  # type: ignore[arg-type]
    assert values(brokers) == [b"v"]


def test_after_a_time_out_the_next_send_is_told(brokers: GrpcBrokers, mq: Client) -> None:
    tx = mq.transaction(NAME, linger_ms=0)
    tx.begin()
    brokers.cluster.transactions.time_out(NAME)
    with pytest.raises(TransactionAborted):
        tx.send("orders", b"v").result(10)
    with pytest.raises(TransactionAborted):
        tx.send("orders", b"w")
    with pytest.raises(TransactionAborted):
        tx.commit()
    with mq.transaction(NAME) as tx:
        tx.send("orders", b"x")
    assert values(brokers) == [b"x"]


def test_a_second_thread_is_refused(brokers: GrpcBrokers, mq: Client) -> None:
    """Such as one that sends while the first thread waits for room in the buffer."""
    entered, told = threading.Event(), list[str]()

    def partition(key: bytes | None, count: int) -> int:
        if key == b"slow":
            thread.start()
            entered.wait(10)
        return 0

    def other() -> None:
        try:
            tx.send("orders", b"other")
        except InvalidRequest as error:
            told.append(error.message)
        entered.set()

    thread = threading.Thread(target=other)
    with mq.transaction(NAME, partitioner=partition) as tx:
        tx.send("orders", b"first").result(10)
        tx.send("orders", b"second", key=b"slow")
    thread.join(10)
    assert told == ["two threads use the transaction at once"]
    assert values(brokers) == [b"first", b"second"]


def test_a_client_that_is_closed_in_the_block_commits_nothing(brokers: GrpcBrokers) -> None:
    def closing() -> None:
        with Client(brokers.servers) as mq, mq.transaction(NAME) as tx:
            tx.send("orders", b"v")
            mq.close()

    with pytest.raises(Closed):
        closing()
    assert values(brokers) == []
    assert brokers.cluster.transactions.ids[NAME].open is None
