"""Bad input over the wire: each case raises a typed error with code, retriable and hint, and changes no disk."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker.partition.test_admission import OTHER_SCHEMA, lying_offsets, zstd_bomb
from tests.fakes.batches import payload
from tests.fakes.patience import PATIENT  # an election would add an entry
from tests.fakes.raw_client import Raw, batch
from tinymq.base.config import KIB, MIB, Limits
from tinymq.format.batch import HEADER_SIZE, pack_batch
from tinymq.proto import tinymq_pb2 as pb
from tinymq.testing.cluster import Cluster

LIMITS = dataclasses.replace(
    Limits(), batch_bytes_max=MIB, record_bytes_max=64 * KIB, batch_uncompressed_bytes_max=4 * MIB, segment_bytes=MIB
)
COUNT = 4  # records in the topic before anything bad is sent


class Bench:
    """A cluster with one topic of four records, its leader, and a follower."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        asyncio.run(self._prepare())

    async def _prepare(self) -> None:
        async with Raw(self.cluster.address(1)) as raw:
            self.topic = await raw.create("t")
        self.leader = self.cluster.wait_leader("t")
        self.follower = next(i for i in (1, 2, 3) if i != self.leader)
        async with Raw(self.cluster.address(self.leader)) as raw:
            for sequence in (0, 2):
                sent = await raw.send(self.topic.topic_id, count=2, producer=5, epoch=3, sequence=sequence)
                assert not sent.HasField("error"), sent.error
        states = [app.serving.broker.replica_host.get(self.topic.topic_id, 0) for app in self.cluster.brokers.values()]  # type: ignore[union-attr]
        self.cluster.wait_until(lambda: all(s is not None and s.high_watermark == COUNT for s in states))

    def groups(self) -> list[str]:
        """The directories of all groups on all brokers, with their files."""
        folders = [Path(app.config.data_dir) / "groups" for app in self.cluster.brokers.values()]
        return sorted(str(path) for folder in folders for path in folder.rglob("*"))

    def logs(self) -> list[tuple[str, bytes]]:
        """Every byte of the partition's logs, on all brokers."""
        folders = [Path(app.config.data_dir) / "groups" for app in self.cluster.brokers.values()]
        paths = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
        return [(str(path), path.read_bytes()) for path in paths if self.topic.topic_id.hex() in str(path)]


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    zstd_bomb()
    with Cluster(nodes=3, limits=LIMITS, timing=PATIENT) as cluster:
        yield Bench(cluster)


def check(error: pb.Error, code: str, retriable: bool = False) -> None:
    assert error.code == code, error
    assert error.message
    assert error.hint, error
    assert error.retriable == retriable


PRODUCE: dict[str, tuple[Callable[[bytes], pb.ProduceBatch], str]] = {
    "no topic id": (lambda t: batch(b"", payload()), "InvalidName"),
    "the metadata group's id": (lambda t: batch(bytes(16), payload()), "InvalidName"),
    "not a batch": (lambda t: batch(t, b"hello"), "InvalidBatch"),
    "not Arrow": (lambda t: batch(t, pack_batch(b"\xff" * 100, record_count=1)), "InvalidBatch"),
    "another schema": (lambda t: batch(t, pack_batch(OTHER_SCHEMA, record_count=1)), "InvalidBatch"),
    "a wrong record count": (lambda t: batch(t, pack_batch(payload(3)[HEADER_SIZE:], record_count=2)), "InvalidBatch"),
    "a wrong checksum": (lambda t: batch(t, payload(), payload_crc=5), "InvalidBatch"),
    "a truncated frame": (lambda t: batch(t, payload(3)[:-8]), "InvalidBatch"),
    "lying buffers": (lambda t: batch(t, lying_offsets()), "InvalidBatch"),
    "a large record": (lambda t: batch(t, payload(1, value=b"x" * 70_000)), "BatchTooLarge"),
    "a large batch": (lambda t: batch(t, payload(50, value=b"x" * 30_000)), "BatchTooLarge"),
    "declares 255 MiB": (lambda t: batch(t, zstd_bomb()), "BatchTooLarge"),
    "skips a sequence": (lambda t: batch(t, payload(1, producer=5, epoch=3, sequence=9)), "OutOfOrderSequence"),
    "an old epoch": (lambda t: batch(t, payload(1, producer=5, epoch=2, sequence=4)), "Fenced"),
    "unknown producer": (lambda t: batch(t, payload(1, producer=6, epoch=0, sequence=4)), "UnknownProducer"),
    "unknown acks": (lambda t: batch(t, payload(), acks=7), "InvalidRequest"),
}


@pytest.mark.parametrize("name", PRODUCE)
def test_produce(bench: Bench, name: str) -> None:
    make, code = PRODUCE[name]

    async def main() -> None:
        before = bench.logs()
        async with Raw(bench.cluster.address(bench.leader)) as raw:
            (result,) = await raw.produce(make(bench.topic.topic_id))
        check(result.error, code)
        assert before
        assert bench.logs() == before, "nothing has changed on disk"

    asyncio.run(main())


def test_produce_to_a_follower_names_the_leader(bench: Bench) -> None:
    async def main() -> None:
        async with Raw(bench.cluster.address(bench.follower)) as raw:
            result = await raw.send(bench.topic.topic_id)
        check(result.error, "NotLeader", retriable=True)
        assert result.error.detail["leader"] == str(bench.leader)
        assert result.error.detail["leader_address"] == bench.cluster.address(bench.leader)
        assert int(result.error.detail["leader_epoch"]) >= 1

    asyncio.run(main())


def test_an_unknown_topic_is_first_looked_up_and_then_refused(bench: Bench) -> None:
    async def main() -> None:
        async with Raw(bench.cluster.address(bench.follower)) as raw:
            for topic_id, partition, code in (
                (b"\x07" * 16, 0, "UnknownTopic"),
                (bench.topic.topic_id, 1, "UnknownPartition"),
            ):
                async with asyncio.timeout(10):
                    while (error := (await raw.send(topic_id, partition)).error).code == "NotReady":
                        assert error.retriable
                check(error, code)
            check((await raw.topic("nope")).error, "UnknownTopic")
            check((await raw.topic("../nope")).error, "InvalidName")

    asyncio.run(main())


@pytest.mark.parametrize("name", ["", "x" * 250, "..", ".", "a/b", "a\\b", "a\nb", "a\0b"])
def test_invalid_names(bench: Bench, name: str) -> None:
    async def main() -> None:
        before = bench.groups()
        async with Raw(bench.cluster.address(1)) as raw:
            request = pb.CreateTopicRequest(name=name, partitions=1, replication_factor=1)
            check((await raw.admin.CreateTopic(request)).error, "InvalidName")
            check((await raw.topic(name)).error, "InvalidName")
        assert bench.groups() == before, "nothing was made"

    asyncio.run(main())


def test_topics_that_cannot_be_made(bench: Bench) -> None:
    async def main() -> None:
        before = bench.groups()
        async with Raw(bench.cluster.address(1)) as raw:
            for wanted, code in (
                (pb.CreateTopicRequest(name="u", partitions=1, replication_factor=4), "InvalidRequest"),
                (pb.CreateTopicRequest(name="u", partitions=1, replication_factor=0), "InvalidRequest"),
                (pb.CreateTopicRequest(name="u", partitions=0, replication_factor=1), "InvalidRequest"),
                (pb.CreateTopicRequest(name="u", partitions=1 << 31, replication_factor=1), "InvalidRequest"),
                (pb.CreateTopicRequest(name="t", partitions=1, replication_factor=1), "TopicExists"),
            ):
                check((await raw.admin.CreateTopic(wanted)).error, code)
            assert (await raw.topic("u")).error.code == "UnknownTopic"
            check((await raw.admin.DeleteTopic(pb.DeleteTopicRequest(name="u"))).error, "UnknownTopic")
            kept = await raw.topic("t")
            assert (kept.topic_id, kept.created_us) == (bench.topic.topic_id, bench.topic.created_us)
        assert bench.groups() == before, "nothing was created, and the existing topic is unchanged"

    asyncio.run(main())


def test_fetches_that_have_no_answer(bench: Bench) -> None:
    topic_id = bench.topic.topic_id

    async def main() -> None:
        addresses = [bench.cluster.address(b) for b in (bench.leader, bench.follower)]
        async with Raw(addresses[0]) as leader, Raw(addresses[1]) as follower:
            check((await leader.fetch(topic_id, COUNT + 1)).error, "OffsetOutOfRange")
            check((await leader.fetch(topic_id, (1 << 64) - 1)).error, "OffsetOutOfRange")
            check((await follower.fetch(topic_id, COUNT + 1)).error, "OffsetNotAvailable", retriable=True)
            check((await follower.fetch(topic_id, 0, leader_only=True)).error, "NotLeader", retriable=True)
            check((await follower.fetch(topic_id, 0, leader_epoch=99)).error, "NotReady", retriable=True)
            async with asyncio.timeout(10):
                while (error := (await leader.fetch(topic_id, 0, partition=9)).error).code == "NotReady":
                    pass
            check(error, "UnknownPartition")
            check((await leader.fetch(b"short", 0)).error, "InvalidName")
            ask = pb.ListOffsetsRequest(topic_id=topic_id, queries=[pb.OffsetQuery(partition=9, timestamp_us=-1)])
            (answer,) = (await leader.broker.ListOffsets(ask)).answers
            check(answer.error, "UnknownPartition")

    asyncio.run(main())
