"""Topics in memory, and topics synced at intervals, on whole brokers: real files, real connections, a client."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from tinymq import Client, Offset
from tinymq.base.config import Timing
from tinymq.base.errors import OffsetOutOfRange, QuotaExceeded
from tinymq.base.topic_config import Storage, TopicConfig
from tinymq.broker.partition import capacity
from tinymq.broker.serve.messages import command
from tinymq.proto import partition_pb2 as pb
from tinymq.simulation.faulty_files import FaultyFiles
from tinymq.testing import Cluster

MIB = 1 << 20
MEMORY = TopicConfig(storage=Storage.MEMORY, max_bytes=8 * MIB)
KEPT = 64 * 1024
LAZY = TopicConfig(sync_interval_ms=50)


def make(cluster: Cluster, name: str, config: TopicConfig) -> None:
    cluster.run(cluster.registry(1).register_topic(name, 2, 3, config))
    for partition in (0, 1):
        cluster.wait_leader(name, partition)


def write(client: Client, topic: str, values: list[bytes]) -> None:
    with client.producer() as producer:
        for at, value in enumerate(values):
            producer.send(topic, value, partition=at % 2).result(30)


def records(client: Client, topic: str) -> list[bytes]:
    with client.reader(topic, end="latest") as reader:
        return sorted(record.value or b"" for record in reader)


def revived(cluster: Cluster) -> int:
    members = [app._member for app in cluster.brokers.values()]
    return sum(member._quorum_watch.recovered for member in members if member is not None)


def test_one_broker_after_the_other() -> None:
    with Cluster(nodes=3) as cluster:
        client = cluster.client()
        values = [b"%d" % i for i in range(20)]
        for name, config in (("memory", MEMORY), ("lazy", LAZY)):
            make(cluster, name, config)
            write(client, name, values)
        for broker_id in (1, 2, 3):
            cluster.kill(broker_id)
            cluster.start(broker_id)
            everybody_votes(cluster)
        assert records(client, "memory") == records(client, "lazy") == sorted(values)
        assert revived(cluster) == 0


def test_all_brokers_at_once() -> None:
    with Cluster(nodes=3) as cluster:
        client = cluster.client()
        values = [b"%d" % i for i in range(20)]
        for name, config in (("memory", MEMORY), ("lazy", LAZY)):
            make(cluster, name, config)
            write(client, name, values)
        for broker_id in (1, 2, 3):
            cluster.kill(broker_id)
        for broker_id in (1, 2, 3):
            cluster.run(cluster._start(broker_id))
        for partition in (0, 1):
            cluster.wait_leader("memory", partition)
            cluster.wait_leader("lazy", partition)
        assert records(client, "lazy") == sorted(values), "kill -9 leaves the page cache"
        assert records(client, "memory") == []
        assert revived(cluster) == 2
        write(cluster.client(), "memory", [b"new"])
        everybody_votes(cluster)
        assert records(client, "memory") == [b"new"]


def test_a_reader_that_is_open_while_everything_is_lost_hears_of_it() -> None:
    """More is written afterwards than the reader has read. Two rounds, because the log starts over each time."""
    with Cluster(nodes=3) as cluster:
        make(cluster, "memory", MEMORY)
        client = cluster.client()
        write(client, "memory", [b"old"] * 10)
        for count in (10, 20):
            reader = client.reader("memory", on_trimmed="skip")
            seen = 0
            while seen < count:
                seen += len(reader.poll(timeout=30))
            for broker_id in (1, 2, 3):
                cluster.kill(broker_id)
            for broker_id in (1, 2, 3):
                cluster.run(cluster._start(broker_id))
            for partition in (0, 1):
                cluster.wait_leader("memory", partition)
            write(cluster.client(), "memory", [b"new"] * 2 * count)
            with pytest.raises(OffsetOutOfRange, match="is lost") as raised:
                reader.poll(timeout=30)
            assert raised.value.detail["history_start"] == "0"
            reader.close()
            assert records(client, "memory") == [b"new"] * 2 * count


def test_a_reader_hears_of_what_a_power_cut_took_from_a_topic_synced_at_intervals() -> None:
    """None of the records was synced. More is written afterwards than the reader has read."""
    rng = random.Random(1)
    disks = {broker_id: FaultyFiles(random.Random(rng.random())) for broker_id in (1, 2, 3)}
    with Cluster(nodes=3, files_factory=disks.__getitem__) as cluster:
        make(cluster, "lazy", replace(LAZY, sync_interval_ms=60_000))
        client = cluster.client()
        write(client, "lazy", [b"old"] * 40)
        reader = client.reader("lazy", [0], on_trimmed="skip")
        seen = 0
        while seen < 20:
            seen += len(reader.poll(timeout=30))
        for broker_id in (1, 2, 3):
            cluster.kill(broker_id)
            disks[broker_id].power_cut()
        for broker_id in (1, 2, 3):
            cluster.run(cluster._start(broker_id))
        for partition in (0, 1):
            cluster.wait_leader("lazy", partition)
        left = client.admin.offsets("lazy")[0].high_watermark
        assert left < 20, "the disks lost nothing: choose another seed"
        write(cluster.client(), "lazy", [b"new"] * 80)
        with pytest.raises(OffsetOutOfRange, match="is lost") as raised:
            reader.poll(timeout=30)
        assert raised.value.detail["history_start"] == str(left)
        reader.close()
        with client.reader("lazy", [0], start=Offset(left), end="latest") as again:
            assert [record.value for record in again] == [b"new"] * 40, "the reader continues there"


def test_commands_have_an_end_in_memory_too_and_go_with_the_records_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacity, "LOG_BYTES_MIN", 0)
    with Cluster(nodes=1, timing=Timing(retention_check_s=0.1)) as cluster:
        client = cluster.client()
        client.admin.create_topic("m", settings={"storage": "memory", "max_bytes": KEPT})
        client.send("m", b"x")
        member = cluster.brokers[1]._member
        assert member is not None
        [partition] = member.broker.replica_host.partitions.values()

        channel, at = "c" * 240, itertools.count()

        def sought() -> pb.Command:
            request = next(at).to_bytes(16, "big")
            return pb.Command(seek=pb.Seek(channel=channel, request_id=request, offset=partition.log_start))

        async def fill() -> int:
            for number in range(100):
                try:
                    await command(partition, [sought() for _ in range(100)], 5.0)
                except QuotaExceeded:
                    return number
            return 100

        cluster.run(command(partition, [pb.Command(open=pb.OpenChannel(channel=channel))], 5.0))
        assert 1 < cluster.run(fill()) < 100
        assert partition.group.log.size_bytes > 4 * KEPT
        assert client.admin.trim("m", 0, "latest") == 1
        cluster.wait_until(lambda: partition.group.log.size_bytes <= KEPT)
        cluster.run(command(partition, [sought() for _ in range(100)], 5.0))


def everybody_votes(cluster: Cluster) -> None:
    def settled() -> bool:
        statuses = [status for app in cluster.brokers.values() for status in app.replica_statuses()]
        leaders = {status.group: status.commit_index for status in statuses if status.role.value == "leader"}
        return len(statuses) == 3 * len(leaders) and all(
            status.role.value in ("leader", "follower") and status.commit_index == leaders[status.group]
            for status in statuses
        )

    cluster.wait_until(settled)
