"""Topics altered, partitions added and deleted, on real brokers: over the wire, on disk, and after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.raw_client import Raw
from tinymq import Client
from tinymq.base.errors import InvalidConfig, InvalidRequest, TinymqError, UnknownPartition, UnknownTopic
from tinymq.base.partitioning import keyed
from tinymq.base.types import TopicId
from tinymq.proto import tinymq_pb2 as pb
from tinymq.testing.cluster import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        yield running


@pytest.fixture
def mq(cluster: Cluster) -> Client:
    return cluster.client(attempt_timeout_ms=1000)


def folders(cluster: Cluster, topic_id: bytes) -> set[str]:
    """The partitions of a topic that have a directory on any broker."""
    groups = [Path(app.config.data_dir) / "groups" / topic_id.hex() for app in cluster.brokers.values()]
    return {folder.name for group in groups for folder in group.glob("*")}


def test_partitions_come_and_go_while_records_are_written(cluster: Cluster, mq: Client) -> None:
    topic = mq.admin.create_topic("growing", partitions=2)
    with mq.producer(linger_ms=0) as producer:
        for n in range(20):
            producer.send("growing", b"%d" % n, key=b"%d" % n)
        added = mq.admin.add_partition("growing")
        assert (added.partition, len(added.replicas)) == (2, 3)
        assert added.leader, "the call waits for the new leader"
        assert producer.send("growing", b"new", partition=2).result().offset == 0
        mq.admin.delete_partition("growing", 0)
        with pytest.raises(UnknownPartition):
            producer.send("growing", b"gone", partition=0)
        for n in range(10):
            assert producer.send("growing", b"v", key=b"%d" % n).result().partition == (1, 2)[keyed(b"%d" % n, 2)]
    assert [p.partition for p in mq.admin.describe_topic("growing").partitions] == [1, 2]
    assert sorted(mq.admin.offsets("growing")) == [1, 2]
    kept = sum(at.high_watermark for at in mq.admin.offsets("growing").values())
    assert len(list(mq.reader("growing", end="latest"))) == kept
    cluster.wait_until(lambda: folders(cluster, topic.topic_id) == {"1", "2"})
    mq.admin.delete_partition("growing", 1)
    with pytest.raises(InvalidRequest) as last:
        mq.admin.delete_partition("growing", 2)
    assert "delete the topic" in last.value.hint
    for broker in (1, 2, 3):
        cluster.stop(broker)
        cluster.start(broker)
    assert mq.admin.add_partition("growing", timeout=20).partition == 3, "a number is never used again"
    assert [p.partition for p in mq.admin.describe_topic("growing").partitions] == [2, 3]
    assert mq.send("growing", b"v", partition=2).offset > 0


def test_settings_are_made_altered_and_followed_by_every_broker(cluster: Cluster, mq: Client) -> None:
    made = mq.admin.create_topic("set", settings={"retention_ms": 60_000, "max_records": None, "on_full": "reject"})
    assert (made.settings["retention_ms"], made.settings["segment_bytes"]) == ("60000", str(128 << 20))
    altered = mq.admin.alter_topic("set", {"retention_ms": None, "max_records": 10})
    assert (altered.settings["retention_ms"], altered.settings["max_records"]) == ("none", "10")
    assert mq.admin.describe_topic("set").settings == altered.settings
    topic_id = TopicId(made.topic_id)

    def followed() -> bool:
        found = [app.serving.broker.replica_host.get(topic_id, 0) for app in cluster.brokers.values()]  # type: ignore[union-attr]
        return all(p is not None and p.config.max_records == 10 and p.config.retention_ms is None for p in found)

    cluster.wait_until(followed)
    with pytest.raises(InvalidConfig, match="storage"):
        mq.admin.alter_topic("set", {"storage": "memory"})
    with pytest.raises(InvalidConfig) as misspelt:
        mq.admin.alter_topic("set", {"retention_m": 5})
    assert "retention_ms" in misspelt.value.hint
    with pytest.raises(InvalidConfig):
        mq.admin.create_topic("never", settings={"max_bytes": 0})
    with pytest.raises(UnknownTopic):
        mq.admin.alter_topic("never", {})
    with pytest.raises(UnknownTopic):
        mq.admin.add_partition("never")
    with pytest.raises(UnknownTopic):
        mq.admin.delete_partition("never", 0)
    assert mq.admin.describe_topic("set").settings == altered.settings


def test_what_no_client_of_ours_sends(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("raw")

    async def main() -> None:
        async with Raw(cluster.address(2)) as raw:
            many = [pb.Setting(name="max_bytes", value="5")] * 65
            for request, code in (
                (pb.AlterTopicRequest(name="raw", settings=many), "InvalidRequest"),
                (pb.AlterTopicRequest(name="", settings=many[:1]), "InvalidName"),
                (pb.AlterTopicRequest(name="raw", settings=many[:2]), "InvalidConfig"),
                (pb.AlterTopicRequest(name="raw", command_id=b"short"), "InvalidRequest"),
            ):
                assert (await raw.admin.AlterTopic(request)).error.code == code
            assert (
                await raw.admin.CreateTopic(pb.CreateTopicRequest(name="x", settings=many))
            ).error.code == "InvalidRequest"
            assert (await raw.admin.AddPartition(pb.AddPartitionRequest(topic="a/b"))).error.code == "InvalidName"
            for topic, partition, code in (("raw", 7, "UnknownPartition"), ("raw", (1 << 32) - 1, "UnknownPartition"),
                                           ("raw", 0, "InvalidRequest"), ("..", 0, "InvalidName")):  # fmt: skip
                reply = await raw.admin.DeletePartition(pb.DeletePartitionRequest(topic=topic, partition=partition))
                assert reply.error.code == code
                assert reply.error.hint
            once = pb.AddPartitionRequest(topic="raw", command_id=b"o" * 16, timeout_ms=10_000)
            added = [(await raw.admin.AddPartition(once)).partition.partition for _ in range(3)]
            assert added == [1, 1, 1], "however often it is sent"

    asyncio.run(main())
    with pytest.raises(TinymqError):
        mq.send("raw", b"v", partition=2)
