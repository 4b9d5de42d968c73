"""Delayed batches over the wire, on three brokers."""

from __future__ import annotations

import asyncio
import time

from tests.fakes.batches import payload
from tests.fakes.raw_client import Raw, batch, entries
from tinymq.base.config import Limits
from tinymq.format.batch import decode_batch
from tinymq.proto import tinymq_pb2 as pb
from tinymq.testing.cluster import Cluster

pytest_plugins = ["tinymq.testing.fixture"]

DAY_US = 24 * 3600 * 1_000_000


async def topic(cluster: Cluster, name: str, factor: int = 1) -> tuple[bytes, str]:
    """A new topic's id, and the address of its leader, which keeps the leadership if it is alone."""
    async with Raw(cluster.address(1)) as raw:
        made = await raw.create(name, factor=factor)
    return made.topic_id, cluster.address(await asyncio.to_thread(cluster.wait_leader, name, 0))


def values(reply: pb.FetchReply, start: int = 0) -> list[bytes]:
    """The values of the records from `start` on. Small batches that were due together are one batch."""
    found: list[bytes] = []
    for entry in entries(reply):
        assert entry.header.base_offset == start + len(found)
        found += decode_batch(entry.batch, Limits()).column(1).to_pylist()
    return found


def test_a_delayed_batch_is_seen_when_it_is_due_and_not_before(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        topic_id, leader = await topic(tinymq_cluster, "due")
        async with Raw(leader) as raw:
            (sent,) = await raw.produce(batch(topic_id, payload(2, value=b"later"), delay_us=1_000_000))
            assert not sent.HasField("error"), sent.error
            assert sent.schedule_id
            assert sent.deliver_at_us == sent.append_time_us + 1_000_000
            (now,) = await raw.produce(batch(topic_id, payload(value=b"now")))
            assert (now.base_offset, now.schedule_id) == (0, 0)
            listed = await raw.schedules.ListScheduled(pb.ListScheduledRequest(topic_id=topic_id, partition=0))
            (waiting,) = listed.batches
            assert (waiting.schedule_id, waiting.deliver_at_us) == (sent.schedule_id, sent.deliver_at_us)
            assert (waiting.records, waiting.staged_at_us) == (2, sent.append_time_us)
            reply = await raw.fetch(topic_id, 1, min_bytes=1, max_wait_ms=10_000)
            (published,) = [entry for entry in entries(reply) if entry.header.record_count]
            assert published.header.append_time_us >= sent.deliver_at_us
            assert published.header.append_time_us - sent.deliver_at_us < 2_000_000
            assert (published.header.base_offset, published.header.record_count) == (1, 2)
            assert published.batch == payload(2, value=b"later")
            listed = await raw.schedules.ListScheduled(pb.ListScheduledRequest(topic_id=topic_id, partition=0))
            assert not listed.batches

    asyncio.run(main())


def test_a_canceled_batch_is_never_seen(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        topic_id, leader = await topic(tinymq_cluster, "canceled")
        async with Raw(leader) as raw:
            first, second = await raw.produce(
                batch(topic_id, payload(value=b"a"), 1, delay_us=1_000_000),
                batch(topic_id, payload(value=b"b"), 2, delay_us=1_000_000),
            )
            cancel = pb.CancelScheduledRequest(topic_id=topic_id, partition=0, schedule_id=first.schedule_id)
            assert (await raw.schedules.CancelScheduled(cancel)).canceled
            assert not (await raw.schedules.CancelScheduled(cancel)).canceled
            reply = await raw.fetch(topic_id, min_bytes=1, max_wait_ms=10_000)
            assert values(reply) == [b"b0"]
            cancel.schedule_id = second.schedule_id
            assert not (await raw.schedules.CancelScheduled(cancel)).canceled
            assert (await raw.fetch(topic_id)).high_watermark == 1

    asyncio.run(main())


def test_what_cannot_be_delayed_is_refused(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        topic_id, leader = await topic(tinymq_cluster, "refused")
        now_us = time.time_ns() // 1000
        async with Raw(leader) as raw:
            refused = await raw.produce(
                batch(topic_id, payload(), 1, delay_us=999_999),
                batch(topic_id, payload(), 2, delay_us=30 * DAY_US + 1),
                batch(topic_id, payload(), 3, deliver_at_us=now_us + 31 * DAY_US),
                batch(topic_id, payload(), 4, delay_us=1_000_000, acks=pb.ACKS_LEADER),
            )
            assert [result.error.code for result in refused] == ["InvalidRequest"] * 4
            (past,) = await raw.produce(batch(topic_id, payload(), deliver_at_us=0))
            assert past.schedule_id
            reply = await raw.fetch(topic_id, min_bytes=1, max_wait_ms=10_000)
            assert reply.high_watermark == 1

    asyncio.run(main())


def test_delayed_batches_survive_a_change_of_leaders(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        topic_id, leader = await topic(tinymq_cluster, "moved", 3)
        async with Raw(leader) as raw:
            sent = await raw.produce(
                *[batch(topic_id, payload(value=b"%d" % n), n, delay_us=1_200_000) for n in range(1, 51)]
            )
            assert all(result.schedule_id for result in sent)
            reply = await raw.admin.TransferLeader(pb.TransferLeaderRequest(topic="moved", partition=0))
            assert not reply.HasField("error"), reply.error
        async with Raw(tinymq_cluster.address(reply.leader)) as raw:
            found: list[bytes] = []
            async with asyncio.timeout(20):
                while len(found) < 50:
                    fetched = await raw.fetch(topic_id, len(found), min_bytes=1, max_wait_ms=1_000)
                    found.extend(values(fetched, len(found)))
            assert sorted(found) == sorted(b"%d0" % n for n in range(1, 51))

    asyncio.run(main())
