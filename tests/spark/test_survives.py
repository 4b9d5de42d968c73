"""Reads while brokers die, lag and come back: every row once, in order, or an error with its cause."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_tinymq.plan.task import RangePartition
from pyspark_tinymq.read.batch import BatchReader
from pyspark_tinymq.session.session import close_all
from tests.spark.reading import Row, batch, numbers, planned, read, rows, send, stream
from tinymq import Client
from tinymq.base.errors import BrokerUnreachable
from tinymq.base.types import GroupId, TopicId
from tinymq.testing.cluster import Cluster

VALUE_BYTES = 10_000
COUNT = 1_200


@pytest.fixture(scope="module")
def mq(cluster: Cluster) -> Client:
    """A cluster with a topic `large`: 12 MB in one partition, more than a client buffers."""
    client = cluster.client()
    client.admin.create_topic("large")
    with client.producer() as producer:
        for number in range(COUNT):
            producer.send("large", b"%010d" % number + b"x" * VALUE_BYTES, partition=0)
    return client


@pytest.fixture
def all_run(cluster: Cluster, mq: Client) -> Iterator[None]:
    """All brokers have all of `large` before the test; killed brokers restart after it."""
    deadline_s = time.monotonic() + 30.0
    while _shown(mq) != [COUNT] * 3:
        assert time.monotonic() < deadline_s, "a replica does not catch up"
    yield
    for broker in {1, 2, 3} - set(cluster.brokers):
        cluster.start(broker)


def _shown(mq: Client) -> list[int]:
    """The end of `large` at each broker."""
    brokers = mq.admin.cluster_status().brokers
    return [each.high_watermark for broker in brokers for each in broker.replicas if each.topic == "large"]


def _serves(mq: Client, scan_id: str) -> int:
    """The broker that serves a scan."""
    (one,) = mq.admin.describe_scan(scan_id).served
    return int(one.broker)


def _slowly(reader: BatchReader, part: RangePartition) -> Iterator[list[Row]]:
    """A task whose rows are taken batch by batch. The buffer is bounded, so most rows are not read yet."""
    for found in reader.read(part):
        yield rows([found])


@pytest.mark.usefixtures("all_run")
def test_a_follower_that_dies_mid_range(cluster: Cluster, mq: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another replica continues at the next offset: no row is missing or repeated, and no task fails."""
    _bounded(monkeypatch)
    reader = batch(cluster, subscribe="large", scanId="dying")
    (part,) = planned(reader)
    reading = _slowly(reader, part)
    found = next(reading)
    first = _serves(mq, "dying")
    assert first != part.leader
    cluster.kill(first)
    for more in reading:
        found += more
    assert [offset for _, _, offset, _ in found] == list(range(COUNT))
    assert [int(value[:10]) for _, _, _, value in found] == list(range(COUNT))
    others = {each.broker for each in mq.admin.describe_scan("dying").served}  # those that live
    assert others == {1, 2, 3} - {first, part.leader}


@pytest.mark.usefixtures("all_run")
def test_one_replica_of_three_is_enough(cluster: Cluster, mq: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the replica has the planned records: reading committed records needs no leader."""
    _bounded(monkeypatch)
    reader = batch(cluster, subscribe="large", scanId="lonely")
    (part,) = planned(reader)
    reading = _slowly(reader, part)
    found = next(reading)
    first = _serves(mq, "lonely")
    cluster.kill(first)
    cluster.kill(part.leader)
    for more in reading:
        found += more
    assert [offset for _, _, offset, _ in found] == list(range(COUNT))


@pytest.mark.usefixtures("all_run")
def test_all_replicas_dead_is_a_clear_error_and_the_next_try_goes_on(cluster: Cluster, mq: Client) -> None:
    """Of a partition on two brokers."""
    mq.admin.create_topic("twofold", replication_factor=2)
    send(cluster, "twofold", 50)
    reader = batch(cluster, subscribe="twofold", unreachableMs=500)
    (part,) = planned(reader)
    dead = [each.broker for each in part.replicas]
    assert len(dead) == 2
    for broker in dead:
        cluster.kill(broker)
    with pytest.raises(BrokerUnreachable) as failed:
        read(reader, [part])
    assert "twofold/0" in failed.value.message
    assert all(cluster.address(broker) in failed.value.message for broker in dead)
    for broker in dead:
        cluster.start(broker)
    assert numbers(read(batch(cluster, subscribe="twofold"), [part])) == list(range(50))


@pytest.mark.usefixtures("all_run")
def test_a_stream_goes_on_without_the_leader(cluster: Cluster, mq: Client) -> None:
    """The replica that answers instead may lag: the stream never moves back."""
    mq.admin.create_topic("headless")
    send(cluster, "headless", 20)
    reader = stream(cluster, subscribe="headless", startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    cluster.kill(cluster.wait_leader("headless"))
    assert numbers(read(reader, reader.partitions(start, end))) == list(range(20))
    again = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert again == end
    send(cluster, "headless", 5, first=20)
    after = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert numbers(read(reader, reader.partitions(end, after))) == [20, 21, 22, 23, 24]


def test_the_driver_does_not_grow_with_the_records(cluster: Cluster, mq: Client) -> None:
    """A plan is as large for a thousand records as for ten."""
    mq.admin.create_topic("tiny")
    send(cluster, "tiny", 10)
    sizes = {name: len(pickle.dumps(batch(cluster, subscribe=name).partitions())) for name in ("tiny", "large")}
    assert abs(sizes["large"] - sizes["tiny"]) < 20


def _bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's buffer is so small that the first replica has served only a part when it dies."""
    scan = Client.scan

    def bounded(self: Client, *args: Any, **settings: Any) -> Any:
        return scan(self, *args, **(settings | {"buffer_bytes_max": 1 << 20, "fetch_bytes_max": 1 << 19}))

    monkeypatch.setattr(Client, "scan", bounded)


@pytest.mark.usefixtures("all_run")
def test_the_present_leader_is_left_alone(cluster: Cluster, mq: Client) -> None:
    """The broker was a follower when the range was planned."""
    close_all()  # a client that saw brokers die avoids them for a while, and then reads from the leader
    reader = batch(cluster, subscribe="large", scanId="moved", fetchBytes="100k")
    (part,) = planned(reader)
    new = part.leader % 3 + 1
    mq.admin.transfer_leader("large", 0, new)
    assert cluster.wait_leader("large", other_than=part.leader) == new
    group = GroupId(TopicId(part.topic_id), 0)  # a replica that has not learned the new epoch refuses readers that have
    cluster.wait_until(lambda: all((app.host.leader_of(group) or (0,))[0] == new for app in cluster.brokers.values()))
    for again in range(3):
        assert len(read(reader, [part])) == COUNT, again
    by_leader = sum(each.records for each in mq.admin.describe_scan("moved").served if each.role == "leader")
    assert by_leader <= (1 << 20) / VALUE_BYTES, "one answer with a whole batch of 1 MiB, which names it as leader"
