"""Delayed batches of three brokers that are killed, wiped and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.fakes.batches import payload
from tests.fakes.raw_client import Raw, batch, until
from tests.rpc.services.test_schedules import topic, values
from tinymq.base.config import Timing
from tinymq.broker.partition.partition import Partition
from tinymq.proto import tinymq_pb2 as pb
from tinymq.testing.cluster import Cluster

DAY_US = 24 * 3600 * 1_000_000
SMALL = [pb.Setting(name="segment_bytes", value="1048576")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, timing=Timing(retention_check_s=0.1)) as three:
        yield three


async def stage(raw: Raw, topic_id: bytes, names: list[bytes], days: float = 1) -> dict[bytes, int]:
    """Store batches that are due in some days. Returns their schedule ids."""
    sent = await raw.produce(
        *[batch(topic_id, payload(value=name), n, delay_us=int(days * DAY_US)) for n, name in enumerate(names, 1)]
    )
    assert all(result.schedule_id for result in sent), sent
    return {name: result.schedule_id for name, result in zip(names, sent, strict=True)}


async def cancel(raw: Raw, topic_id: bytes, schedule_id: int) -> bool:
    request = pb.CancelScheduledRequest(topic_id=topic_id, partition=0, schedule_id=schedule_id)
    reply = await raw.schedules.CancelScheduled(request)
    assert not reply.HasField("error"), reply.error
    return reply.canceled


async def read(raw: Raw, topic_id: bytes, count: int, start: int = 0) -> list[bytes]:
    """The values of the records from `start` on, once there are so many, and a moment later."""
    found: list[bytes] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            reply = await raw.fetch(topic_id, start + len(found), min_bytes=1, max_wait_ms=1000)
            found += values(reply, start + len(found))
    assert not (await raw.fetch(topic_id, start + len(found), min_bytes=1, max_wait_ms=300)).frames
    return found


def replica(cluster: Cluster, broker_id: int, topic_id: bytes) -> Partition:
    return cluster.brokers[broker_id].serving.running().find(topic_id, 0)


def names(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{n}-".encode() for n in range(count)]


def test_what_waits_survives_its_leader_and_a_restart_of_all(cluster: Cluster) -> None:
    async def stage_and_cancel() -> bytes:
        topic_id, leader = await topic(cluster, "survives", 3)
        async with Raw(leader) as raw:
            ids = await stage(raw, topic_id, names("a", 20))
            assert await cancel(raw, topic_id, ids[b"a3-"])
            await stage(raw, topic_id, names("b", 20), days=2)
        return topic_id

    async def read_first(leader: int) -> None:
        async with Raw(cluster.address(leader)) as raw:
            found = await read(raw, topic_id, 19)
            assert sorted(found) == sorted(name + b"0" for name in names("a", 20) if name != b"a3-")

    async def read_second(leader: int) -> None:
        async with Raw(cluster.address(leader)) as raw:
            assert sorted(await read(raw, topic_id, 20, 19)) == sorted(name + b"0" for name in names("b", 20))

    topic_id = asyncio.run(stage_and_cancel())
    old = cluster.wait_leader("survives", 0)
    cluster.kill(old)
    leader = cluster.wait_leader("survives", 0, other_than=old)
    cluster.clock.advance(days=1)
    asyncio.run(read_first(leader))
    cluster.start(old)
    for broker_id in (1, 2, 3):
        cluster.kill(broker_id)
    for broker_id in (1, 2):
        cluster.run(cluster._start(broker_id))
    cluster.start(3)
    leader = cluster.wait_leader("survives", 0)
    cluster.clock.advance(days=1)
    asyncio.run(read_second(leader))
    replicas = [replica(cluster, broker_id, topic_id) for broker_id in (1, 2, 3)]
    cluster.wait_until(lambda: len({each.dump() for each in replicas}) == 1)


def test_what_waits_moves_on_and_fills_an_empty_broker(cluster: Cluster) -> None:
    """Retention removes the segments that first had it, and an empty broker gets it all the same."""

    async def fill() -> tuple[bytes, dict[bytes, int]]:
        async with Raw(cluster.address(1)) as raw:
            request = pb.CreateTopicRequest(name="moves", partitions=1, replication_factor=3, settings=SMALL)
            reply = await raw.admin.CreateTopic(request)
            assert not reply.HasField("error"), reply.error
            topic_id = reply.topic.topic_id
        leader = await asyncio.to_thread(cluster.wait_leader, "moves", 0)
        async with Raw(cluster.address(leader)) as raw:
            ids = await stage(raw, topic_id, names("a", 30))
            for _ in range(4):
                await raw.produce(batch(topic_id, payload(value=bytes(900_000))))
            trim = pb.TrimRequest(topic_id=topic_id, partition=0, before_us=-1)
            trimmed = await raw.channels.Trim(trim)
            assert trimmed.log_start == 4, trimmed
        log = replica(cluster, leader, topic_id).group.log
        await until(lambda: log.first_index > max(ids.values()))  # type: ignore[attr-defined]
        return topic_id, ids

    async def read_all(topic_id: bytes, ids: dict[bytes, int], leader: int) -> None:
        async with Raw(cluster.address(leader)) as raw:
            listed = await raw.schedules.ListScheduled(
                pb.ListScheduledRequest(topic_id=topic_id, partition=0, limit=10, after=ids[b"a4-"])
            )
            assert [each.schedule_id for each in listed.batches] == list(ids.values())[5:15]
            assert listed.more
            assert await cancel(raw, topic_id, ids[b"a7-"])
            await asyncio.to_thread(cluster.clock.advance, days=1)
            found = await read(raw, topic_id, 29, 4)
            assert sorted(found) == sorted(name + b"0" for name in ids if name != b"a7-")

    async def transfer(leader: int, to: int) -> None:
        async with Raw(cluster.address(leader)) as raw:
            reply = await raw.admin.TransferLeader(pb.TransferLeaderRequest(topic="moves", partition=0, to=to))
            assert reply.leader == to, reply

    topic_id, ids = asyncio.run(fill())
    leader = cluster.wait_leader("moves", 0)
    emptied = next(broker_id for broker_id in (1, 2, 3) if broker_id != leader)
    cluster.kill(emptied)
    cluster.wipe(emptied)
    cluster.start(emptied)
    host = cluster.brokers[emptied].serving.running().replica_host
    cluster.wait_until(lambda: host.get(topic_id, 0) is not None)
    state = replica(cluster, emptied, topic_id).state
    cluster.wait_until(lambda: (len(state.delayed), state.high_watermark) == (30, 4))
    leader = cluster.wait_leader("moves", 0)
    if leader != emptied:
        asyncio.run(transfer(leader, emptied))
    asyncio.run(read_all(topic_id, ids, emptied))
