"""The client with real brokers in this process: failover while it produces, and reads from followers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tinymq.base.errors import InvalidRequest, OffsetOutOfRange, TopicExists, UnknownTopic
from tinymq.client import Client, Offset
from tinymq.client.produce.partitioner import keyed
from tinymq.testing.cluster import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        yield running


@pytest.fixture
def mq(cluster: Cluster) -> Client:
    return cluster.client(attempt_timeout_ms=1000)


def leader_of(mq: Client, topic: str, partition: int) -> int:
    return mq.admin.describe_topic(topic).partitions[partition].leader


def test_a_topic_from_creation_to_deletion(cluster: Cluster, mq: Client) -> None:
    topic = mq.admin.create_topic("orders", partitions=6, replication_factor=3)
    leaders = [p.leader for p in topic.partitions]
    assert sorted(leaders) == [1, 1, 2, 2, 3, 3], "led evenly"
    with pytest.raises(TopicExists):
        mq.admin.create_topic("orders")
    with pytest.raises(InvalidRequest):
        mq.admin.create_topic("wide", replication_factor=4)
    metas = [mq.send("orders", b"%d" % i, key=b"%d" % i, headers={"n": b"%d" % i}) for i in range(60)]
    for i, meta in enumerate(metas):
        assert meta.partition == keyed(b"%d" % i, 6)
    for replica in ("leader", "follower", "nearest", "any"):
        messages = list(mq.reader("orders", end="latest", replica=replica))
        assert sorted((m.partition, m.offset) for m in messages) == sorted((m.partition, m.offset) for m in metas)
        assert all(m.header("n") == m.key == m.value for m in messages)
    with pytest.raises(OffsetOutOfRange):
        mq.reader("orders", [0], start=Offset(1000)).poll(5)
    mq.admin.delete_topic("orders")
    with pytest.raises(UnknownTopic):
        mq.send("orders", b"")


def test_a_leader_dies_while_tables_and_records_are_produced(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("t", partitions=3, replication_factor=3)
    count = 30_000
    with mq.producer(linger_ms=1) as producer:
        for i in range(count):
            producer.send("t", b"%d" % i, key=b"%d" % (i % 100))
            if i == count // 3:
                cluster.kill(leader_of(mq, "t", 0))
            if i % 5000 == 0:
                producer.send_batch("t", pa.table({"value": [b"table"] * 10}))
    table = mq.reader("t", replica="follower").to_arrow()
    assert table.num_rows == count + 60
    values = table.column("value").to_pylist()
    numbers = [int(v) for v in values if v != b"table"]
    assert sorted(numbers) == list(range(count)), "each exactly once"
    for p in range(3):
        mine = [int(m.value or b"") for m in mq.reader("t", [p], end="latest") if m.value != b"table"]
        for key in range(100):
            of_key = [n for n in mine if n % 100 == key]
            assert of_key == sorted(of_key), "in order within a key"


def test_single_sends_go_on_while_brokers_leave_and_come_back(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("t", partitions=1, replication_factor=3)
    stop = threading.Event()
    offsets: list[int] = []

    def run() -> None:
        while not stop.is_set():
            offsets.append(mq.send("t", b"%d" % len(offsets)).offset)

    sending = threading.Thread(target=run)
    sending.start()
    for leave in (cluster.kill, cluster.stop):
        leader = leader_of(mq, "t", 0)
        leave(leader)
        reached = len(offsets) + 20
        cluster.wait_until(lambda reached=reached: len(offsets) > reached)  # type: ignore[misc]
        cluster.start(leader)
    stop.set()
    sending.join()
    assert offsets == list(range(len(offsets)))
    values = [m.value for m in mq.reader("t", end="latest", replica="any")]
    assert values == [b"%d" % i for i in range(len(offsets))]


def test_a_reader_follows_while_its_follower_dies(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("t", partitions=1, replication_factor=3)
    leader = leader_of(mq, "t", 0)
    reader = mq.reader("t", replica="follower", fetch_wait_ms=100)
    seen: list[int] = []
    for i in range(300):
        mq.send("t", b"%d" % i)
        seen += [m.offset for m in reader.poll(0)]
        if i == 100:
            cluster.kill(next(b for b in (1, 2, 3) if b != leader))
    while len(seen) < 300:
        seen += [m.offset for m in reader.poll(10)]
    assert seen == list(range(300))


@pytest.mark.parametrize("bound", [{"max_records": 5}, {"max_bytes": 8192}])
def test_a_topic_with_a_small_bound_takes_what_a_producer_sends(mq: Client, bound: dict[str, object]) -> None:
    """Batches stay within the topic's bound, however many records are sent at once, and after the bound is altered."""
    mq.admin.create_topic("small", settings={**bound, "on_full": "drop_oldest"})
    with mq.producer(linger_ms=50) as producer:
        sent = [producer.send("small", b"x" * 100) for _ in range(200)]
        table = producer.send_batch("small", pa.table({"value": [b"x" * 100] * 50}))
        assert [delivery.result(20).offset for delivery in sent] == list(range(200))
        metas = table.result(20)
        assert (metas[0].base_offset, sum(meta.record_count for meta in metas)) == (200, 50)
        mq.admin.alter_topic("small", {"max_records": 2})
        later = [producer.send("small", b"x" * 100) for _ in range(10)]
        assert [delivery.result(20).offset for delivery in later] == list(range(250, 260))
    assert [message.offset for message in mq.reader("small", start="earliest", end="latest")] == [258, 259]
