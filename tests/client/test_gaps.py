"""Partitions are added and deleted while a client uses the topic: each keeps its number, and no record is lost."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of, run, until
from tests.fakes.batches import payload
from tinymq.base.errors import InvalidConfig, InvalidRequest, NotDelivered, UnknownPartition
from tinymq.base.partitioning import keyed
from tinymq.base.topic_config import OnFull
from tinymq.client.cluster import routing
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.facade.core.client_core import ClientCore
from tinymq.client.produce.producer import ProducerCore
from tinymq.proto import tinymq_pb2 as pb

KEYS = [b"k%d" % n for n in range(40)]


def cluster_of(partitions: int, *gone: int) -> FakeCluster:
    cluster = FakeCluster()
    cluster.add_topic("t", partitions)
    for number in gone:
        cluster.remove_partition("t", number)
    return cluster


def patient(cluster: FakeCluster) -> ClientCore:
    """Make a client that suspects no broker on a slow machine, and so asks for no metadata on its own."""
    return client_of(cluster, attempt_timeout_ms=5_000)


async def connect(mq: ClientCore, producer: ProducerCore) -> None:
    """Connect to the leader of all partitions, and wait for the metadata that a client asks for then.

    Later, it would be newer than the answer of a broker that is slow to hear, which would hide nothing."""
    await (await producer.send("t", b"v", partition=0))
    await until(lambda: (asked := mq.cluster()._refreshing) is not None and asked.done())


async def hear(cluster: Cluster, address: str) -> None:
    """Update the client's view from one broker's answer about the topic."""
    reply = await cluster.ask_broker(address, pb.MetadataRequest(topics=["t"]), 1.0)
    cluster.update(routing.merge(cluster.view, reply, ["t"]))


def test_a_key_belongs_to_its_place_among_those_there_are() -> None:
    async def scenario() -> None:
        cluster = cluster_of(5, 0, 2)
        live = [1, 3, 4]
        async with client_of(cluster) as mq:
            for key in KEYS[:10]:
                assert (await mq.send("t", b"v", key=key)).partition == live[keyed(key, 3)]
            async with mq.producer(partitioner=lambda key, count: count - 1) as producer:
                assert (await (await producer.send("t", b"v", key=b"k"))).partition == 4
            async with mq.producer(partitioner=lambda key, count: count) as producer:
                with pytest.raises(UnknownPartition, match="chose 3 among 3"):
                    await producer.send("t", b"v")
            async with mq.producer(partitioner="round_robin") as producer:
                sent = [await (await producer.send("t", b"v")) for _ in range(6)]
            assert [meta.partition for meta in sent] == live * 2
            table = pa.table({"key": pa.array(KEYS, pa.binary()), "value": pa.array(KEYS, pa.binary())})
            async with mq.producer() as producer:
                await (await producer.send_batch("t", table))
            for place, number in enumerate(live):
                there = {value for value in cluster.values("t", number) if value in KEYS}
                assert there == {key for key in KEYS if keyed(key, 3) == place}

    run(scenario())


def test_records_without_a_key_go_where_there_is_a_partition() -> None:
    async def scenario() -> None:
        async with client_of(cluster_of(6, 0, 1, 3)) as mq, mq.producer(linger_ms=0) as producer:
            sent = [await (await producer.send("t", b"v")) for _ in range(60)]
            assert {meta.partition for meta in sent} == {2, 4, 5}
            assert (await mq.send("t", b"v", partition=5)).partition == 5
            for number in (0, 3, 6, -1):
                with pytest.raises(UnknownPartition):
                    await mq.send("t", b"v", partition=number)

    run(scenario())


def test_all_partitions_are_read_and_asked_for() -> None:
    async def scenario() -> None:
        async with client_of(cluster_of(4, 0, 2)) as mq:
            for number in (1, 3):
                await mq.send("t", b"%d" % number, partition=number)
            assert sorted(await mq.admin.offsets("t")) == [1, 3]
            assert await mq.admin.find_offsets("t", "latest") == {1: 1, 3: 1}
            async with mq.reader("t", start="earliest", end="latest") as reader:
                assert sorted([m.partition async for m in reader]) == [1, 3]
            with pytest.raises(UnknownPartition, match="1, 3"):
                await mq.reader("t", partitions=[1, 2]).poll(timeout=1.0)

    run(scenario())


def test_a_partition_that_is_added_is_used() -> None:
    async def scenario() -> None:
        cluster = cluster_of(1)
        async with client_of(cluster) as mq, mq.producer(linger_ms=0) as producer:
            await mq.send("t", b"v")
            await (await producer.send("t", b"v"))
            added = await mq.admin.add_partition("t")
            assert (added.partition, added.leader) == (1, 1)
            sent = [await (await producer.send("t", b"v")) for _ in range(40)]
            assert {meta.partition for meta in sent} == {0, 1}
            assert (await mq.send("t", b"v", partition=1)).partition == 1
            cluster.add_partition("t")  # by another client: this one learns it from the next answer about the topic
            await mq.admin.offsets("t")
            sent = [await (await producer.send("t", b"v")) for _ in range(60)]
            assert {meta.partition for meta in sent} == {0, 1, 2}

    run(scenario())


def test_a_reader_of_a_whole_topic_follows_partitions_that_are_added() -> None:
    """Not if it was told which partitions it reads, or where it ends."""

    async def scenario() -> None:
        cluster = cluster_of(1)
        async with client_of(cluster) as mq:
            await mq.send("t", b"old")
            follower, table = mq.reader("t", start="latest"), mq.reader("t")
            named, placed = mq.reader("t", [0]), mq.reader("t", start={0: "earliest"})
            for reader in (follower, named, placed):
                await reader.open()
            assert (await table.to_arrow()).num_rows == 1
            await mq.admin.add_partition("t")
            await mq.send("t", b"new", partition=1)
            (message,) = await follower.poll()
            assert (message.partition, message.offset, message.value) == (1, 0, b"new")
            cluster.add_partition("t")  # by another client: this one learns it from the next answer about the topic
            cluster.topics["t"][1][2].append(payload(1))
            await mq.admin.offsets("t")
            assert [message.partition for message in await follower.poll()] == [2], "from its beginning"
            assert sorted(follower.position()) == [0, 1, 2]
            assert [sorted(reader.position()) for reader in (named, placed, table)] == [[0]] * 3
            assert table.at_end

    run(scenario())


def test_a_reader_begins_with_an_added_partition_when_its_leader_knows_it() -> None:
    async def scenario() -> None:
        cluster = cluster_of(1)
        async with client_of(cluster, request_timeout_ms=100) as mq, mq.reader("t") as follower:
            cluster.slow_to_hear = {1}
            cluster.add_partition("t")
            await hear(mq.cluster(), "fake:2")
            await until(lambda: follower._adding is not None)
            cluster.unheard.clear()
            cluster.topics["t"][1][1].append(payload(1))
            assert [(message.partition, message.offset) for message in await follower.poll()] == [(1, 0)]

    run(scenario())


@pytest.mark.parametrize("told", [True, False])
def test_records_for_a_deleted_partition_fail_and_others_continue(told: bool) -> None:
    async def scenario() -> None:
        cluster = cluster_of(3)
        async with client_of(cluster) as mq, mq.producer(linger_ms=0) as producer:
            for number in range(3):
                await (await producer.send("t", b"before", partition=number))
            if told:
                await mq.admin.delete_partition("t", 1)
                with pytest.raises(UnknownPartition):
                    await producer.send("t", b"v", partition=1)
            else:
                cluster.remove_partition("t", 1)
            lost = [] if told else [await producer.send("t", b"lost", partition=1)]
            kept = [await producer.send("t", b"kept", partition=number) for number in (0, 2)]
            for delivery in kept:
                assert (await delivery).offset == 1
            for delivery in lost:
                with pytest.raises(UnknownPartition, match="the partition was deleted"):
                    await delivery
            for key in KEYS[:8]:
                assert (await (await producer.send("t", b"v", key=key))).partition == (0, 2)[keyed(key, 2)]
            with pytest.raises(UnknownPartition):
                await producer.send("t", b"v", partition=1)

    run(scenario())


def test_only_what_waits_for_the_deleted_partition_fails() -> None:
    async def scenario() -> None:
        cluster = cluster_of(2)
        async with client_of(cluster) as mq, mq.producer(linger_ms=0) as producer:
            for number in range(2):
                await (await producer.send("t", b"v", partition=number))
            cluster.kill(1, elect=False)  # it leads partition 0
            slow = await producer.send("t", b"slow", partition=0)
            cluster.remove_partition("t", 1)
            with pytest.raises(UnknownPartition):
                await (await producer.send("t", b"lost", partition=1))
            cluster.start(1)
            assert (await slow).offset == 1

    run(scenario())


def test_records_without_a_key_leave_a_deleted_partition() -> None:
    async def scenario() -> None:
        async with client_of(cluster_of(4)) as mq, mq.producer(linger_ms=0) as producer:
            await (await producer.send("t", b"v"))
            for left in (3, 2, 1):
                next_one = producer.batcher.buffers.by_topic["t"].sticky.partition
                await mq.admin.delete_partition("t", next_one)
                assert (await (await producer.send("t", b"v"))).partition != next_one
                assert len(producer.batcher.buffers.by_topic["t"].queues) == left

    run(scenario())


def test_a_partition_that_its_leader_has_not_heard_of_yet_is_waited_for() -> None:
    async def scenario() -> None:
        cluster = cluster_of(1)
        cluster.slow_to_hear = {1, 2, 3}
        async with client_of(cluster) as mq, mq.producer(linger_ms=0) as producer:
            await (await producer.send("t", b"v"))
            await mq.admin.add_partition("t")
            delivery = await producer.send("t", b"v", partition=1)
            asked = len(cluster.requests)
            await until(lambda: len(cluster.requests) > asked + 8)
            assert not delivery.done()
            cluster.unheard.clear()
            assert (await delivery).partition == 1

    run(scenario())


def test_offsets_of_a_partition_that_is_gone_are_not_waited_for() -> None:
    async def scenario() -> None:
        cluster = cluster_of(2)
        async with client_of(cluster, request_timeout_ms=60_000) as mq:
            await mq.send("t", b"v")
            cluster.remove_partition("t", 1)
            with pytest.raises(UnknownPartition):
                await mq.reader("t", partitions=[1], start="latest").poll()

    run(scenario())


def test_unchecked_failures_are_reported_at_the_end() -> None:
    async def scenario() -> None:
        cluster = cluster_of(2)
        async with client_of(cluster) as mq:
            async with mq.producer(linger_ms=10_000) as producer:
                await producer.send("t", b"v", partition=1)
                await producer.flush()
                await producer.send("t", b"lost", partition=1)
                cluster.remove_partition("t", 1)
                with pytest.raises(NotDelivered) as undelivered:
                    await producer.flush()
            assert [record.value for record in undelivered.value.records] == [b"lost"]

    run(scenario())


def test_a_partition_that_a_slow_broker_hides_goes_on_where_it_was() -> None:
    """A partition that returns continues its sequence: the broker would answer a number given twice as a duplicate."""

    async def scenario() -> None:
        cluster = cluster_of(1)
        cluster.slow_to_hear = {2, 3}
        async with patient(cluster) as mq, mq.producer(linger_ms=0) as producer:
            await connect(mq, producer)
            await mq.admin.add_partition("t")
            for n in range(3):
                await (await producer.send("t", b"%d" % n, partition=1))
            hides = cluster.addresses[2]
            known = producer.batcher.buffers.by_topic["t"]
            await hear(mq.cluster(), hides)
            assert set(known.by_number) == {0}, "it is not known for a while"
            for n in range(3, 6):
                await (await producer.send("t", b"%d" % n, partition=1))
            assert set(known.by_number) == {0, 1}, "it was asked for"
        assert cluster.values("t", 1) == [b"%d" % n for n in range(6)]

    run(scenario())


def test_records_on_their_way_to_a_partition_that_a_slow_broker_hides_are_not_given_up() -> None:
    async def scenario() -> None:
        cluster = cluster_of(1)
        cluster.slow_to_hear = {2, 3}
        async with patient(cluster) as mq, mq.producer(linger_ms=0) as producer:
            await connect(mq, producer)
            await mq.admin.add_partition("t")
            await (await producer.send("t", b"0", partition=1))
            cluster.hold = asyncio.Event()
            delivery = await producer.send("t", b"1", partition=1)
            await until(lambda: len(cluster.produce_messages) > 2)
            await hear(mq.cluster(), cluster.addresses[2])
            cluster.break_streams(1)
            cluster.hold.set()
            assert (await delivery).offset == 1
        assert cluster.values("t", 1) == [b"0", b"1"]

    run(scenario())


def test_a_reader_of_a_partition_that_is_deleted_stops_and_says_so() -> None:
    async def scenario() -> None:
        cluster = cluster_of(2)
        async with client_of(cluster) as mq:
            await mq.send("t", b"v", partition=1)
            async with mq.reader("t", partitions=[1], start="earliest", fetch_wait_ms=20) as reader:
                assert (await reader.poll(timeout=5.0))[0].value == b"v"
                cluster.remove_partition("t", 1)
                cluster.notify()
                with pytest.raises(UnknownPartition):
                    await reader.poll()

    run(scenario())


def test_topics_are_made_and_altered_with_settings() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        async with client_of(cluster) as mq:
            settings = {"retention_ms": 5000, "max_bytes": None, "on_full": OnFull.DROP_OLDEST, "sync": "always"}
            made = await mq.admin.create_topic("t", 2, settings=settings)
            assert made.settings == {
                "retention_ms": "5000", "max_bytes": "none", "on_full": "drop_oldest", "sync": "always",
            }  # fmt: skip
            altered = await mq.admin.alter_topic("t", {"retention_ms": None})
            assert altered.settings["retention_ms"] == "none"
            assert (await mq.admin.describe_topic("t")).settings == altered.settings
            await mq.admin.delete_partition("t", 0)
            with pytest.raises(UnknownPartition):
                await mq.admin.delete_partition("t", 0)

    run(scenario())


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ("retention_ms=5", InvalidRequest),
        ([("retention_ms", 5)], InvalidRequest),
        ({5: 5}, InvalidRequest),
        ({"\ud800": 5}, InvalidRequest),
        ({"x" * 2000: 5}, InvalidRequest),
        ({f"s{n}": n for n in range(65)}, InvalidRequest),
        ({"retention_ms": True}, InvalidConfig),
        ({"retention_ms": 1.5}, InvalidConfig),
        ({"retention_ms": 1 << 20_000}, InvalidConfig),
        ({"retention_ms": b"5"}, InvalidConfig),
        ({"retention_ms": [1 << 20_000]}, InvalidConfig),
        ({1 << 20_000: 5}, InvalidRequest),
        ({"retention_ms": "\udfff"}, InvalidConfig),
        ({"retention_ms": "5" * 2000}, InvalidConfig),
    ],
)
def test_settings_that_are_none_never_leave(settings: object, error: type[Exception]) -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t")
        async with client_of(cluster) as mq:
            with pytest.raises(error) as refused:
                await mq.admin.create_topic("u", settings=settings)  # type: ignore[arg-type]
            assert refused.value.hint  # type: ignore[attr-defined]
            assert len(str(refused.value)) < 1000
            with pytest.raises(error):
                await mq.admin.alter_topic("t", settings)  # type: ignore[arg-type]
        assert not [r for r in cluster.requests if r.startswith(("Create", "Alter"))]

    run(scenario())


@pytest.mark.parametrize("partition", [-1, 1 << 40, "1", None, True, 1.0])
def test_partitions_that_are_none_never_leave(partition: object) -> None:
    async def scenario() -> None:
        cluster = cluster_of(2)
        async with client_of(cluster) as mq:
            with pytest.raises(InvalidRequest):
                await mq.admin.delete_partition("t", partition)  # type: ignore[arg-type]
        assert not [r for r in cluster.requests if r.startswith("Delete")]

    run(scenario())
