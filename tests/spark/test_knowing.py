"""Drivers without full knowledge: a partition without a serving replica, records with only a mean size."""

from __future__ import annotations

import json

import pytest

from tests.spark.reading import batch, numbers, planned, ranges, read, send, stream
from tests.spark.test_stream import Query
from tinymq import Client
from tinymq.base.errors import BrokerUnreachable, DeadlineExceeded
from tinymq.base.types import Offset
from tinymq.testing.cluster import Cluster


def test_bytes_are_limited_by_what_is_kept_rather_than_by_what_lies_on_a_disk(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("trimmed")
    with mq.producer(batch_bytes_max=16_384) as producer:
        for _ in range(2000):
            producer.send("trimmed", b"x" * 1000)
    mq.admin.trim("trimmed", 0, Offset(1800))
    size = mq.admin.kept_sizes("trimmed", [0])[0]
    assert size.records == 200
    assert 1000 <= size.bytes / size.records <= 1200
    query = Query(stream(cluster, subscribe="trimmed", startingOffsets="earliest", maxBytesPerTrigger="50k"))
    assert query.begins()
    (task,) = ranges(query.reader.partitions(query.reader.initialOffset(), query.start))
    assert task.start == 1800
    assert 42 <= task.end - task.start <= 51


def test_partitions_without_a_serving_replica_wait_and_others_continue(
    cluster: Cluster, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_tinymq.plan.lookup.PATIENCE_S", 1.0)
    monkeypatch.setattr("pyspark_tinymq.plan.hold_ledger.HOLD_TIMEOUT_S", 1.0)
    mq.admin.create_topic("alone", replication_factor=1)
    mq.admin.create_topic("safe")
    send(cluster, "alone", 3)
    send(cluster, "safe", 3, first=10)
    query = Query(stream(cluster, subscribe="alone,safe", startingOffsets="earliest"))
    assert query.batch() == [0, 1, 2, 10, 11, 12]
    send(cluster, "alone", 1, first=3)
    leader = mq.admin.describe_topic("alone").partitions[0].leader
    cluster.kill(leader)
    try:
        send(cluster, "safe", 2, first=13)
        assert query.batch() == [13, 14]
        assert query.start["alone"] == {"0": 3}
        with pytest.raises(DeadlineExceeded):
            planned(batch(cluster, subscribe="alone", requestTimeoutMs=300))
        assert mq.admin.offsets("alone", partial=True, timeout=0.3) == {}
        assert mq.admin.kept_sizes("alone", [0], timeout=0.3) == {}
    finally:
        cluster.start(leader)
    cluster.wait_leader("alone")
    assert query.batch() == [3]


def test_a_range_is_planned_though_its_partition_went_away_meanwhile(
    cluster: Cluster, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark retries a failed task, but not a failed plan."""
    monkeypatch.setattr("pyspark_tinymq.plan.lookup.PATIENCE_S", 1.0)
    mq.admin.create_topic("going", replication_factor=1)
    send(cluster, "going", 3)
    query = Query(stream(cluster, subscribe="going", startingOffsets="earliest", holdMs=0))
    assert query.batch() == [0, 1, 2]
    send(cluster, "going", 2, first=3)
    assert query.begins()
    leader = mq.admin.describe_topic("going").partitions[0].leader
    cluster.kill(leader)
    try:
        tasks = query.reader.partitions(*map(json.loads, query.log[-2:]))
    finally:
        cluster.start(leader)
    cluster.wait_leader("going")
    assert [(task.start, task.end) for task in ranges(tasks)] == [(3, 5)]
    assert numbers(read(query.reader, tasks)) == [3, 4]


def test_a_stream_goes_on_without_a_majority_of_the_brokers(
    cluster: Cluster, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No broker can list the topics then: the driver continues with those that it knows."""
    monkeypatch.setattr("pyspark_tinymq.plan.lookup.PATIENCE_S", 0.5)
    monkeypatch.setattr("pyspark_tinymq.plan.lookup.AGAIN_S", 0.5)
    mq.admin.create_topic("left")
    send(cluster, "left", 3)
    query = Query(stream(cluster, subscribe="left", startingOffsets="earliest", requestTimeoutMs=1_500, holdMs=0))
    assert query.batch() == [0, 1, 2]
    send(cluster, "left", 2, first=3)
    topic_id = bytes.fromhex(mq.admin.describe_topic("left").topic_id.hex())

    def shown() -> bool:
        found = [app.serving.broker.replica_host.get(topic_id, 0) for app in cluster.brokers.values()]  # type: ignore[union-attr,arg-type]
        return all(replica is not None and replica.high_watermark == 5 for replica in found)

    cluster.wait_until(shown)
    for broker in (2, 3):
        cluster.kill(broker)
    try:
        assert query.batch() == [3, 4]
        assert not query.begins(), "no more records, which is not a failure"
        with pytest.raises((DeadlineExceeded, BrokerUnreachable)):
            Query(stream(cluster, subscribe="left", requestTimeoutMs=300)).begins()
    finally:
        cluster.run(cluster._start(2))
        cluster.start(3)
    send(cluster, "left", 1, first=5)
    assert query.batch() == [5]
