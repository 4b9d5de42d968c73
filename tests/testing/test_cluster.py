"""The embedded cluster, end to end over the wire: create, produce, read from followers, lose a leader, continue."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tests.fakes.batches import payload
from tests.fakes.raw_client import Raw, batch, entries
from tinymq.base.config import Timing
from tinymq.base.errors import DeadlineExceeded
from tinymq.proto import tinymq_pb2 as pb
from tinymq.rpc.services.produce import ProduceStream
from tinymq.testing.cluster import Cluster

MISSED_S = 20.0  # a broker that falls silent is missed after this long


async def send_until_done(cluster: Cluster, data: pb.ProduceBatch, avoid: int = 0) -> pb.ProduceResult:
    """Send to the current leader until the batch is acknowledged, as a client does."""
    while True:
        leader = await asyncio.to_thread(cluster.wait_leader, "t", 0, avoid)
        async with Raw(cluster.address(leader)) as raw:
            (result,) = await raw.produce(data)
        if not result.HasField("error"):
            return result
        assert result.error.retriable or result.error.code == "OutcomeUnknown", result.error


async def read_all(cluster: Cluster, broker_id: int, topic_id: bytes, end: int) -> list[tuple[int, bytes]]:
    """Return (base offset, payload) of every batch of this replica, once it has all below `end`."""
    found: list[tuple[int, bytes]] = []
    async with Raw(cluster.address(broker_id)) as raw:
        offset = 0
        while offset < end:
            reply = await raw.fetch(topic_id, offset, max_wait_ms=5000)
            if reply.HasField("error"):
                assert reply.error.retriable, reply.error
                continue
            for entry in entries(reply):
                found.append((entry.header.base_offset, entry.payload))
                offset = entry.header.next_offset
    return found


def test_produce_read_from_followers_lose_the_leader_and_go_on() -> None:
    async def main(cluster: Cluster) -> None:
        async with Raw(cluster.address(1)) as raw:
            topic = await raw.create("t")
        sent: list[tuple[int, bytes]] = []

        async def send(sequence: int) -> None:
            data = payload(3, producer=7, sequence=sequence, value=b"n%d-" % sequence)
            result = await send_until_done(cluster, batch(topic.topic_id, data))
            sent.append((result.base_offset, data))

        for number in range(20):
            await send(3 * number)
        first = cluster.call(lambda: cluster.leader_of("t"))
        assert first == topic.partitions[0].replicas[0], "the preferred leader leads"
        for broker_id in (1, 2, 3):
            assert await read_all(cluster, broker_id, topic.topic_id, 60) == sent
        await asyncio.to_thread(cluster.kill, first)
        for number in range(20, 40):
            await send(3 * number)
        await asyncio.to_thread(cluster.start, first)
        for broker_id in (1, 2, 3):
            assert await read_all(cluster, broker_id, topic.topic_id, 120) == sent
        assert [offset for offset, _ in sent] == list(range(0, 120, 3)), "dense"
        statuses = {}
        for broker_id in (1, 2, 3):
            async with Raw(cluster.address(broker_id)) as raw:
                status = await raw.admin.ClusterStatus(pb.ClusterStatusRequest())
                statuses[broker_id] = next(r for r in status.replicas if r.topic == "t")
        assert {s.high_watermark for s in statuses.values()} == {120}

    with Cluster(nodes=3) as cluster:
        asyncio.run(main(cluster))


def test_the_leader_dies_between_commit_and_reply_and_the_retry_appends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = threading.Event()

    async def main(cluster: Cluster) -> None:
        async with Raw(cluster.address(1)) as raw:
            topic = await raw.create("t")
        leader = await asyncio.to_thread(cluster.wait_leader, "t")
        before = batch(topic.topic_id, payload(5, producer=3, sequence=0))
        assert (await send_until_done(cluster, before)).base_offset == 0
        data = batch(topic.topic_id, payload(2, producer=3, sequence=5))
        async with Raw(cluster.address(leader)) as raw:
            with monkeypatch.context() as patch:
                # The leader would answer at the commit. This reply is never sent.
                patch.setattr(ProduceStream, "_done", lambda *_: committed.set())
                lost = asyncio.ensure_future(raw.produce(data))
                assert await asyncio.to_thread(committed.wait, 20)
                await asyncio.to_thread(cluster.kill, leader)
            with pytest.raises(Exception, match=r"UNAVAILABLE|CANCELLED"):
                await lost
        again = await send_until_done(cluster, data, avoid=leader)
        assert (again.base_offset, again.duplicate) == (5, True)
        after = await send_until_done(cluster, batch(topic.topic_id, payload(1, producer=3, sequence=7)))
        assert (after.base_offset, after.duplicate) == (7, False)
        follower = next(i for i in (1, 2, 3) if i != leader)
        assert [offset for offset, _ in await read_all(cluster, follower, topic.topic_id, 8)] == [0, 5, 7]

    with Cluster(nodes=3) as cluster:
        asyncio.run(main(cluster))


def test_a_replica_without_a_majority_shows_what_is_committed_and_takes_nothing() -> None:
    async def main(cluster: Cluster) -> None:
        async with Raw(cluster.address(1)) as raw:
            topic = await raw.create("t")
        sent = batch(topic.topic_id, payload(3, producer=2, sequence=0))
        await send_until_done(cluster, sent)
        leader = await asyncio.to_thread(cluster.wait_leader, "t")
        left = next(i for i in (1, 2, 3) if i != leader)
        before = await read_all(cluster, left, topic.topic_id, 3)
        for broker_id in {1, 2, 3} - {left}:
            await asyncio.to_thread(cluster.kill, broker_id)
        assert await read_all(cluster, left, topic.topic_id, 3) == before
        async with Raw(cluster.address(left)) as raw:
            refused = (await raw.send(topic.topic_id)).error
        assert (refused.code, refused.retriable) == ("NotLeader", True)

    with Cluster(nodes=3) as cluster:
        asyncio.run(main(cluster))


def test_one_broker_is_a_cluster_and_keeps_what_it_has() -> None:
    async def main(cluster: Cluster) -> None:
        async with Raw(cluster.address(1)) as raw:
            topic = await raw.create("t", factor=1)
        assert (await send_until_done(cluster, batch(topic.topic_id, payload(4)))).base_offset == 0
        await asyncio.to_thread(cluster.kill, 1)
        await asyncio.to_thread(cluster.start, 1)
        result = await send_until_done(cluster, batch(topic.topic_id, payload(1)))
        assert result.base_offset == 4
        await asyncio.to_thread(cluster.stop, 1)
        await asyncio.to_thread(cluster.start, 1)
        assert len(await read_all(cluster, 1, topic.topic_id, 5)) == 2

    with Cluster(nodes=1) as cluster:
        asyncio.run(main(cluster))


def test_a_polite_stop_hands_over_first() -> None:
    async def main(cluster: Cluster) -> None:
        async with Raw(cluster.address(1)) as raw:
            topic = await raw.create("t", partitions=6)
        leader = await asyncio.to_thread(cluster.wait_leader, "t")
        await asyncio.to_thread(cluster.stop, leader)
        others = [i for i in (1, 2, 3) if i != leader]

        def led_by_others() -> bool:
            return {cluster.leader_of("t", p) for p in range(6)} <= set(others)

        await asyncio.to_thread(cluster.wait_until, led_by_others, MISSED_S / 2)  # sooner than it would be missed
        registered = cluster.call(lambda: [b.broker_id for b in cluster.registry(others[0]).get_all_brokers()])
        assert registered == others
        await send_until_done(cluster, batch(topic.topic_id, payload(1)))

    with Cluster(nodes=3, timing=Timing(gone_after_s=MISSED_S)) as cluster:
        asyncio.run(main(cluster))


def test_deleted_topics_leave_no_data_and_may_be_made_again() -> None:
    async def main(cluster: Cluster) -> None:
        async with Raw(cluster.address(2)) as raw:
            topic = await raw.create("t", partitions=3)
            await raw.admin.DeleteTopic(pb.DeleteTopicRequest(name="t"))
            for app in cluster.brokers.values():
                groups = app.host.groups
                await asyncio.to_thread(cluster.wait_until, lambda groups=groups: len(groups) == 1)
                left = Path(app.config.data_dir) / "groups"
                await asyncio.to_thread(cluster.wait_until, lambda left=left: len(list(left.iterdir())) == 1)
            again = await raw.create("t", partitions=1)
            assert again.topic_id != topic.topic_id
            assert (await raw.fetch(topic.topic_id)).error.code == "UnknownTopic"
        assert (await send_until_done(cluster, batch(again.topic_id, payload()))).base_offset == 0

    with Cluster(nodes=3) as cluster:
        asyncio.run(main(cluster))


def test_a_dead_broker_is_unregistered_and_registers_again() -> None:
    async def main(cluster: Cluster) -> None:
        await asyncio.to_thread(cluster.kill, 3)

        def remaining() -> list[list[int]]:
            return [[b.broker_id for b in cluster.registry(n).get_all_brokers()] for n in (1, 2)]

        await asyncio.to_thread(cluster.wait_until, lambda: remaining() == [[1, 2], [1, 2]])
        async with Raw(cluster.address(1)) as raw:
            wanted = pb.CreateTopicRequest(name="t", partitions=1, replication_factor=3)
            assert (await raw.admin.CreateTopic(wanted)).error.code == "InvalidRequest"
            await asyncio.to_thread(cluster.start, 3)
            assert len((await raw.create("t")).partitions) == 1

    with Cluster(nodes=3, timing=Timing(registration_lease_s=0.6, registration_renew_s=0.2)) as cluster:
        asyncio.run(main(cluster))


def test_wait_until_has_a_deadline() -> None:
    with Cluster(nodes=1) as cluster, pytest.raises(DeadlineExceeded):
        cluster.wait_until(lambda: False, timeout_s=0.05)
