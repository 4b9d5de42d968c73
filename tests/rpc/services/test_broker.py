"""Metadata, offsets, producers, health and reflection, as any gRPC client sees them."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.fakes.batches import TIME_US, payload
from tests.fakes.raw_client import Raw, batch, entries
from tests.rpc.test_streams import Turns
from tinymq.base.clock import SystemClock
from tinymq.base.config import Limits
from tinymq.broker.serve.quotas import Quotas
from tinymq.format.batch import Codec
from tinymq.format.feature_level import KNOWN_LEVEL
from tinymq.proto import tinymq_pb2 as pb
from tinymq.registry.service import RegistryService
from tinymq.registry.state.values import TopicRecord
from tinymq.rpc.services.broker import DESCRIBED_MAX, BrokerService
from tinymq.testing.cluster import Cluster

pytest_plugins = ["tinymq.testing.fixture"]

SERVICES = tuple(f"tinymq.v1.{name}" for name in ("Broker", "Admin", "Channels", "Groups", "QueueService"))


def test_metadata_is_the_same_everywhere_and_leaders_are_spread(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        async with Raw(tinymq_cluster.address(2)) as raw:
            made = await raw.create("spread", partitions=6)
        assert Counter(p.leader for p in made.partitions) == {1: 2, 2: 2, 3: 2}
        assert all(p.leader == p.replicas[0] and p.leader_epoch for p in made.partitions)
        seen = []
        for broker_id in (1, 2, 3):
            async with Raw(tinymq_cluster.address(broker_id)) as raw:
                reply = await raw.broker.Metadata(pb.MetadataRequest(topics=["spread"]))
                assert reply.broker_id == broker_id
                assert {b.id: b.address for b in reply.brokers} == {i: tinymq_cluster.address(i) for i in (1, 2, 3)}
                assert len(reply.cluster_id) == 16
                seen.append(reply.topics[0])
                everything = await raw.broker.Metadata(pb.MetadataRequest(all=True))
                assert "spread" in [t.name for t in everything.topics]
                assert not (await raw.broker.Metadata(pb.MetadataRequest())).topics
        assert seen[0] == seen[1] == seen[2] == made

    asyncio.run(main())


def test_unknown_names_share_the_loop(tinymq_cluster: Cluster) -> None:
    """The bound holds for any requested count."""
    names = [f"unknown-{number}" for number in range(4 * DESCRIBED_MAX)]
    looked_up = 0

    async def on_the_brokers_loop(service: BrokerService, registry: RegistryService) -> pb.MetadataReply:
        def count_topic(name: str) -> TopicRecord | None:
            nonlocal looked_up
            looked_up += 1
            return get_topic(name)

        with pytest.MonkeyPatch.context() as patch:
            get_topic = registry.get_topic
            patch.setattr(registry, "get_topic", count_topic)
            turns = Turns(lambda: looked_up)
            reply = await service.metadata(pb.MetadataRequest(topics=names))
            assert turns.most() <= DESCRIBED_MAX + 1
        return reply

    serving = tinymq_cluster.brokers[1].serving
    service = BrokerService(serving, Limits(), Quotas(SystemClock(), Limits()))
    reply = tinymq_cluster.run(on_the_brokers_loop(service, serving.running().registry))
    assert [topic.name for topic in reply.topics] == names
    assert {topic.error.code for topic in reply.topics} == {"UnknownTopic"}


def test_producer_ids_are_unique_over_brokers(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        ids = []
        for broker_id in (1, 2, 3):
            async with Raw(tinymq_cluster.address(broker_id)) as raw:
                replies = [raw.broker.OpenProducer(pb.OpenProducerRequest()) for _ in range(20)]
                ids += [(await reply).producer_id for reply in replies]
        assert len(set(ids)) == 60
        assert 0 not in ids

    asyncio.run(main())


def test_offsets_for_times(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        async with Raw(tinymq_cluster.address(1)) as raw:
            topic = await raw.create("times")
        leader = tinymq_cluster.wait_leader("times")
        async with Raw(tinymq_cluster.address(leader)) as raw:

            async def offset(time_us: int, leader_only: bool = False) -> tuple[int, int]:
                ask = pb.ListOffsetsRequest(
                    topic_id=topic.topic_id,
                    queries=[pb.OffsetQuery(partition=0, timestamp_us=time_us)],
                    leader_only=leader_only,
                )
                (answer,) = (await raw.broker.ListOffsets(ask)).answers
                assert not answer.HasField("error"), answer.error
                return answer.offset, answer.timestamp_us

            assert [await offset(n) for n in (-1, -2, -3, 5)] == [(0, -1)] * 4, "an empty partition"
            for start, codec in ((0, Codec.NONE), (1000, Codec.ZSTD), (500, Codec.LZ4)):
                data = payload(10, time_us=TIME_US + start, codec=codec)
                (result,) = await raw.produce(batch(topic.topic_id, data))
                assert not result.HasField("error")
            assert await offset(-1, leader_only=True) == (30, -1)
            assert await offset(-2) == (0, -1)
            assert await offset(-3) == (19, TIME_US + 1009)
            assert await offset(TIME_US - 5) == (0, TIME_US)
            assert await offset(TIME_US + 7) == (7, TIME_US + 7)
            assert await offset(TIME_US + 10) == (10, TIME_US + 1000)
            assert await offset(TIME_US + 1009) == (19, TIME_US + 1009)
            assert await offset(TIME_US + 1010) == (30, -1)

    asyncio.run(main())


def test_many_fetches_wait_on_one_stream_and_one_is_cancelled(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        async with Raw(tinymq_cluster.address(1)) as raw:
            topic = await raw.create("waiting", partitions=3)
            leaders = [tinymq_cluster.wait_leader("waiting", p) for p in range(3)]
            stream = raw.broker.Fetch()
            for number in range(3):
                await stream.write(
                    pb.FetchRequest(
                        request_id=number, topic_id=topic.topic_id, partition=number, max_bytes=1000, min_bytes=1,
                        max_wait_ms=20_000,
                    )
                )  # fmt: skip
            await stream.write(pb.FetchRequest(request_id=1, cancel=True))
            for number in (2, 1, 0):
                async with Raw(tinymq_cluster.address(leaders[number])) as producer:
                    assert not (await producer.send(topic.topic_id, number)).HasField("error")
            replies = [await stream.read(), await stream.read()]
            assert [r.request_id for r in replies] == [2, 0]
            assert all(len(entries(r)) == 1 for r in replies)
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF

    asyncio.run(main())


def test_batches_of_one_message_keep_their_order_and_are_answered_together(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        async with Raw(tinymq_cluster.address(1)) as raw:
            topic = await raw.create("ordered")
        leader = tinymq_cluster.wait_leader("ordered")
        async with Raw(tinymq_cluster.address(leader)) as raw:
            big = b"heavy enough to be checked elsewhere" * 20_000
            datas = [
                payload(2, producer=1, sequence=2 * n, value=big if n % 3 == 0 else b"small", codec=Codec.ZSTD)
                for n in range(12)
            ]
            results = await raw.produce(*(batch(topic.topic_id, d, n) for n, d in enumerate(datas)))
            assert [r.base_offset for r in results] == [2 * n for n in range(12)]
            assert not any(r.HasField("error") for r in results)

    asyncio.run(main())


def test_acks(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        async with Raw(tinymq_cluster.address(1)) as raw:
            topic = await raw.create("acks")
        leader = tinymq_cluster.wait_leader("acks")
        async with Raw(tinymq_cluster.address(leader)) as raw:
            sent = [batch(topic.topic_id, payload(), n, acks=acks) for n, acks in enumerate((2, 1, 0, 2))]
            results = await raw.produce(*sent)
            assert [(r.request_id, r.base_offset) for r in results] == [(1, 1), (2, 2)]
            reply = await raw.fetch(topic.topic_id, 3, max_wait_ms=10_000)
            assert [e.header.base_offset for e in entries(reply)] == [3]

    asyncio.run(main())


def test_health_and_reflection(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        async with grpc.aio.insecure_channel(tinymq_cluster.address(1)) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for service in ("", *SERVICES):
                reply = await health.Check(health_pb2.HealthCheckRequest(service=service))
                assert reply.status == health_pb2.HealthCheckResponse.SERVING
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            stream = stub.ServerReflectionInfo()
            await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            names = {s.name for s in (await stream.read()).list_services_response.service}
            assert {*SERVICES, "grpc.health.v1.Health"} <= names
            stream.cancel()

    asyncio.run(main())


def test_cluster_status(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        async with Raw(tinymq_cluster.address(1)) as raw:
            await raw.create("status", partitions=2)
            reply = await raw.admin.ClusterStatus(pb.ClusterStatusRequest())
            assert (reply.state, reply.broker_id) == ("running", 1)
            assert 1 <= reply.feature_level <= KNOWN_LEVEL
            assert reply.metadata_leader in (1, 2, 3)
            assert [b.id for b in reply.brokers] == [1, 2, 3]
            mine = [(r.topic, r.partition, r.role) for r in reply.replicas if r.topic in ("", "status")]
            assert len(mine) == 3
            assert {role for _, _, role in mine} <= {"leader", "follower"}

    asyncio.run(main())
