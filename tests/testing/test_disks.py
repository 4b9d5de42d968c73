"""Whole brokers on disks that fail: errors of clients, the cluster status, and the records that survive."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.fakes.batches import payload
from tests.fakes.raw_client import Raw, batch, entries
from tests.testing.test_cluster import read_all, send_until_done
from tinymq.base.config import Timing
from tinymq.proto import tinymq_pb2 as pb
from tinymq.simulation.faulty_files import FaultyFiles
from tinymq.testing.cluster import Cluster


class Disks:
    """One faulty disk per broker, which a restarted broker gets again."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.of = {broker_id: FaultyFiles(random.Random(rng.random())) for broker_id in range(1, 4)}

    def __call__(self, broker_id: int) -> FaultyFiles:
        return self.of[broker_id]


async def role(cluster: Cluster, broker_id: int) -> pb.ReplicaStatus:
    async with Raw(cluster.address(broker_id)) as raw:
        status = await raw.admin.ClusterStatus(pb.ClusterStatusRequest())
    return next(r for r in status.replicas if r.topic == "t")


def test_a_full_disk_is_reported_and_acknowledged_records_stay() -> None:
    disks = Disks(1)

    async def main(cluster: Cluster) -> None:
        async with Raw(cluster.address(1)) as raw:
            topic = await raw.create("t", factor=1)
            await send_until_done(cluster, batch(topic.topic_id, payload(3)))
            disks.of[1].disk_full(100)
            (result,) = await raw.produce(batch(topic.topic_id, payload(5, value=b"x" * 500)))
            assert result.error.code == "OutcomeUnknown"
            again = await raw.send(topic.topic_id)
            assert (again.error.code, again.error.retriable) == ("DiskFull", True)
            assert again.error.hint
            shown = await role(cluster, 1)
            assert (shown.role, shown.reason.partition(":")[0]) == ("failed", "DiskFull")
            disks.of[1].disk_full(None)
            await asyncio.to_thread(cluster.kill, 1)
            disks.of[1].kill()
            await asyncio.to_thread(cluster.start, 1)
            after = await send_until_done(cluster, batch(topic.topic_id, payload()))
            assert after.base_offset in (3, 8), "the batch of unknown outcome is there whole, or not at all"

    with Cluster(nodes=1, files_factory=disks) as cluster:
        asyncio.run(main(cluster))


def test_a_failed_sync_stops_that_replica_and_the_others_go_on() -> None:
    disks = Disks(2)

    async def main(cluster: Cluster) -> None:
        async with Raw(cluster.address(1)) as raw:
            topic = await raw.create("t")
        leader = await asyncio.to_thread(cluster.wait_leader, "t")
        first = await send_until_done(cluster, batch(topic.topic_id, payload(3, producer=4, sequence=0)))
        assert first.base_offset == 0
        disks.of[leader].fail_sync(f"*{topic.topic_id.hex()}*")
        second = batch(topic.topic_id, payload(3, producer=4, sequence=3))
        assert (await send_until_done(cluster, second)).base_offset == 3
        failed = await role(cluster, leader)
        assert (failed.role, failed.reason.partition(":")[0]) == ("failed", "SyncFailed")
        async with Raw(cluster.address(leader)) as raw:
            assert (await raw.fetch(topic.topic_id)).error.code == "NotReady", "the content of its disk is unknown"
        for other in {1, 2, 3} - {leader}:
            assert [offset for offset, _ in await read_all(cluster, other, topic.topic_id, 6)] == [0, 3]
            assert (await role(cluster, other)).role in ("leader", "follower")

    with Cluster(nodes=3, files_factory=disks) as cluster:
        asyncio.run(main(cluster))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))])
def test_the_power_of_all_brokers_fails_under_load(seed: int) -> None:
    """Every acknowledged record is there exactly once afterwards, and every topic is complete or absent."""
    disks = Disks(seed)
    rng = random.Random(seed)
    acknowledged: list[tuple[int, bytes]] = []

    async def produce(cluster: Cluster, topic_id: bytes, until_count: int) -> None:
        leader = await asyncio.to_thread(cluster.wait_leader, "t")
        async with Raw(cluster.address(leader)) as raw:
            for number in range(until_count):
                data = payload(1, value=b"%d-%d-" % (seed, number))
                (result,) = await raw.produce(batch(topic_id, data))
                assert not result.HasField("error"), result.error
                acknowledged.append((result.base_offset, data))

    async def main(cluster: Cluster) -> None:
        async with Raw(cluster.address(1)) as raw:
            topic = await raw.create("t")
            await produce(cluster, topic.topic_id, rng.randrange(1, 60))
            unfinished = [asyncio.ensure_future(raw.create(f"half{n}", partitions=4)) for n in range(3)]
            for _ in range(rng.randrange(20)):
                await asyncio.sleep(0)
            for broker_id in (1, 2, 3):
                await asyncio.to_thread(cluster.kill, broker_id)
                disks.of[broker_id].power_cut()
            await asyncio.gather(*unfinished, return_exceptions=True)
        await asyncio.gather(*(asyncio.to_thread(cluster.run, cluster._start(n)) for n in (1, 2, 3)))
        await asyncio.to_thread(cluster.wait_until, lambda: all(cluster._knows(n, {1, 2, 3}) for n in (1, 2, 3)))
        leader = await asyncio.to_thread(cluster.wait_leader, "t")
        found = dict(await read_all(cluster, leader, topic.topic_id, len(acknowledged)))
        assert [found[offset] for offset, _ in acknowledged] == [data for _, data in acknowledged]
        async with Raw(cluster.address(leader)) as raw:
            for n in range(3):
                half = await raw.topic(f"half{n}")
                if half.error.code == "UnknownTopic":
                    half = await raw.create(f"half{n}", partitions=4)
                assert len(half.partitions) == 4
                for partition in range(4):
                    await asyncio.to_thread(cluster.wait_leader, f"half{n}", partition)
            assert entries(await raw.fetch(topic.topic_id))

    patient = Timing(gone_after_s=10.0)  # a slow machine must not cause an election
    with Cluster(nodes=3, files_factory=disks, timing=patient) as cluster:
        asyncio.run(main(cluster))
