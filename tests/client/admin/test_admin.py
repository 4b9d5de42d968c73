"""AsyncAdmin against a cluster in memory: topics, offsets and status."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from google.protobuf.message import Message

from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of, run
from tests.fakes.batches import payload
from tinymq.base.errors import Closed, InvalidName, InvalidRequest, OutcomeUnknown, TopicExists, UnknownTopic
from tinymq.proto import tinymq_pb2 as pb


def test_topics_are_created_listed_described_and_deleted() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        async with client_of(cluster) as mq:
            made = await mq.admin.create_topic("orders", partitions=6)
            assert (made.name, len(made.partitions), made.replication_factor) == ("orders", 6, 3)
            assert [t.name for t in await mq.admin.list_topics()] == ["orders"]
            await mq.send("orders", b"x", partition=4)
            assert (await mq.admin.describe_topic("orders")).partitions[4].leader == 2
            offsets = await mq.admin.offsets("orders")
            assert (offsets[4].log_start, offsets[4].high_watermark, offsets[0].high_watermark) == (0, 1, 0)
            assert (await mq.admin.find_offsets("orders", "latest"))[4] == 1
            with pytest.raises(TopicExists):
                await mq.admin.create_topic("orders")
            await mq.admin.delete_topic("orders")
            with pytest.raises(UnknownTopic):
                await mq.admin.describe_topic("orders")
            with pytest.raises(UnknownTopic):
                await mq.admin.delete_topic("orders")

    run(scenario())


def test_offsets_are_found_while_brokers_are_forgotten() -> None:
    """A broker may be forgotten between its choice and the request (found on real brokers, one of them wiped)."""

    async def scenario() -> None:
        cluster = FakeCluster()
        async with client_of(cluster) as mq:
            await mq.admin.create_topic("orders", partitions=6)
            await mq.admin.offsets("orders")
            core, loop = mq.cluster(), asyncio.get_running_loop()
            known = core.view

            def turn() -> None:
                """Forget all brokers, or know them again, at every turn of the loop."""
                core.update(replace(known, brokers={} if core.view.brokers else known.brokers))
                turning[0] = loop.call_soon(turn)

            turning = [loop.call_soon(turn)]
            for waits in range(4):
                for _ in range(waits):
                    await asyncio.gather(asyncio.sleep(0))
                assert sorted(await mq.admin.offsets("orders")) == [0, 1, 2, 3, 4, 5]
            turning[0].cancel()

    run(scenario())


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 250, "a\n"])
def test_invalid_names_are_not_sent(name: str) -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        async with client_of(cluster) as mq:
            with pytest.raises(InvalidName):
                await mq.admin.create_topic(name)
            with pytest.raises(InvalidName):
                mq.reader(name)
        assert not [r for r in cluster.requests if r.startswith("Create")]

    run(scenario())


def test_counts_below_one_are_refused() -> None:
    async def scenario() -> None:
        async with client_of(FakeCluster()) as mq:
            with pytest.raises(InvalidRequest):
                await mq.admin.create_topic("t", 0)
            with pytest.raises(InvalidRequest):
                await mq.admin.create_topic("t", 1, 0)

    run(scenario())


@pytest.mark.parametrize("kind", [pb.CreateTopicRequest, pb.DeleteTopicRequest])
def test_a_repeated_change_is_made_once(kind: type[Message]) -> None:
    """Also when another client has changed the same topic in between."""

    async def scenario() -> None:
        cluster = FakeCluster()
        answer = cluster.answer

        def lose(broker: int, request: object) -> object:
            reply = answer(broker, request)
            if isinstance(request, kind) and not lost:
                lost.append(broker)
                if kind is pb.DeleteTopicRequest:
                    cluster.add_topic("t", 7)
                raise OutcomeUnknown("connection reset")
            return reply

        lost: list[int] = []
        cluster.answer = lose  # type: ignore[method-assign]
        async with client_of(cluster) as mq:
            await mq.admin.create_topic("t")
            if kind is pb.DeleteTopicRequest:
                await mq.admin.delete_topic("t")
                assert len((await mq.admin.describe_topic("t")).partitions) == 7
            assert lost

    run(scenario())


def test_cluster_status_lists_brokers_that_do_not_answer() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.kill(2)
        async with client_of(cluster) as mq:
            status = await mq.admin.cluster_status()
            assert [b.state for b in status.brokers] == ["running", "unreachable", "running"]
            assert "connection refused" in status.brokers[1].reason
            assert status.metadata_leader == 1
            assert [b.broker_id for b in await mq.admin.brokers()] == [1, 2, 3]

    run(scenario())


def test_a_hung_broker_does_not_block_other_answers() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t")
        cluster.hang(3)
        async with client_of(cluster, attempt_timeout_ms=100) as mq:
            answers = await asyncio.gather(*(mq.admin.describe_topic("t") for _ in range(6)))
            assert {a.name for a in answers} == {"t"}

    run(scenario())


def test_a_closed_client_raises_closed() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        mq = client_of(cluster)
        await mq.admin.list_topics()
        await mq.close()
        await mq.close()
        with pytest.raises(Closed):
            await mq.admin.list_topics()

    run(scenario())


@pytest.mark.parametrize("fault", ["kill", "hang"])
def test_without_a_leader_the_replica_with_the_highest_watermark_answers(fault: str) -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        for at in cluster.add_topic("t", 3):
            at.append(payload(10))
        partitions = cluster.topics["t"][1]
        async with client_of(cluster) as mq:
            assert (await mq.admin.offsets("t"))[0].high_watermark == 10
            partitions[0].shown = {2: 4, 3: 7}
            getattr(cluster, fault)(1, elect=False)
            assert {p: o.high_watermark for p, o in (await mq.admin.offsets("t")).items()} == {0: 7, 1: 10, 2: 10}
            assert await mq.admin.find_offsets("t", "latest") == {0: 7, 1: 10, 2: 10}
            cluster.kill(3, elect=False)
            partitions[2].shown = {2: 9}
            found = await mq.admin.find_offsets("t", "latest")
            assert found == {0: 4, 1: 10, 2: 9}, "one replica that answers is enough"

    run(scenario())
