"""Delayed batches over the wire."""

from __future__ import annotations

import asyncio

from tests.fakes.batches import payload
from tests.fakes.raw_client import Raw, batch
from tinymq.format.feature_level import DELAYS_LEVEL, KNOWN_LEVEL
from tinymq.proto import tinymq_pb2 as pb
from tinymq.testing.cluster import Cluster

pytest_plugins = ["tinymq.testing.fixture"]


def test_delayed_batches_need_their_feature_level(tinymq_cluster: Cluster) -> None:
    assert KNOWN_LEVEL < DELAYS_LEVEL

    async def main() -> None:
        async with Raw(tinymq_cluster.address(1)) as raw:
            topic_id = (await raw.create("refused", factor=1)).topic_id
        leader = tinymq_cluster.wait_leader("refused", 0)
        async with Raw(tinymq_cluster.address(leader)) as raw:
            (sent,) = await raw.produce(batch(topic_id, payload(), delay_us=1_000_000))
            listed = await raw.schedules.ListScheduled(pb.ListScheduledRequest(topic_id=topic_id, partition=0))
            cancel = pb.CancelScheduledRequest(topic_id=topic_id, partition=0, schedule_id=1)
            canceled = await raw.schedules.CancelScheduled(cancel)
            assert {sent.error.code, listed.error.code, canceled.error.code} == {"UnsupportedVersion"}
            assert not (await raw.fetch(topic_id)).high_watermark

    asyncio.run(main())
