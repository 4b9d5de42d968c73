"""Sets of tasks from the client, on real brokers: what a failure in the middle leaves, and who is told what."""

from __future__ import annotations

import asyncio

import pyarrow as pa

from tests.fakes.transactional_programs import refused
from tinymq import AsyncClient
from tinymq.base.errors import TransactionAborted, UnknownTopic
from tinymq.client.cluster.transactional_id_calls import SinkVersion
from tinymq.client.common.config import ProducerConfig
from tinymq.client.transaction.staged_set import StagedSet, StagedSetCore, commit_sets, discard_sets
from tinymq.testing.cluster import Cluster

pytest_plugins = ["tinymq.testing.fixture"]

CALL_S = 30.0
DAY_MS = 24 * 3600 * 1000


async def staged(mq: AsyncClient, version: SinkVersion, topic: str, *values: bytes, run: str = "run") -> StagedSet:
    core = StagedSetCore(mq._core.cluster(), version, ProducerConfig())
    assert await core.begin(run, DAY_MS, CALL_S)
    try:
        for value in values:
            await core.send_batch(topic, pa.RecordBatch.from_pydict({"value": [value]}), None)
        return await core.end(CALL_S)
    finally:
        core.close()


def test_a_set_goes_on_when_a_leader_dies_and_is_committed_whole(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        async with AsyncClient(tinymq_cluster.servers) as mq:
            await mq.admin.create_topic("moving")
            version = SinkVersion("moving", 1)
            core = StagedSetCore(mq._core.cluster(), version, ProducerConfig())
            assert await core.begin("run", DAY_MS, CALL_S)
            for number in range(20):
                await core.send_batch("moving", pa.RecordBatch.from_pydict({"value": [b"%d" % number]}), None)
                if number == 10:
                    await mq.admin.transfer_leader("moving", 0)
            whole = await core.end(CALL_S)
            core.close()
            assert await commit_sets(mq._core.cluster(), version, [whole], CALL_S)
            async with mq.reader("moving", end="latest") as reader:
                assert [message.value async for message in reader] == [b"%d" % number for number in range(20)]

    asyncio.run(main())


def test_a_set_that_was_dropped_says_so_to_its_task_and_to_its_driver(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        async with AsyncClient(tinymq_cluster.servers) as mq:
            await mq.admin.create_topic("gone")
            version, cluster = SinkVersion("gone", 1), mq._core.cluster()
            core = StagedSetCore(cluster, version, ProducerConfig())
            assert await core.begin("run", DAY_MS, CALL_S)
            await core.send_batch("gone", pa.RecordBatch.from_pydict({"value": [b"1"]}), None)
            whole = await core.end(CALL_S)
            await discard_sets(cluster, "gone", [whole])
            with refused(TransactionAborted):
                while True:
                    await core.send_batch("gone", pa.RecordBatch.from_pydict({"value": [b"2"]}), None)
                    await core.end(CALL_S)
            core.close()
            with refused(TransactionAborted):
                await commit_sets(cluster, version, [whole], CALL_S)
            with refused(UnknownTopic):
                await staged(mq, version, "nowhere", b"x")
            await commit_sets(cluster, version, [await staged(mq, version, "gone", b"3")], CALL_S)
            async with mq.reader("gone", end="latest") as reader:
                assert [message.value async for message in reader] == [b"3"]

    asyncio.run(main())
