"""service Broker: metadata, offsets, producer ids, and the two streams. The broker decides, the service translates."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable

from tinymq.access.caller import Credential
from tinymq.access.directory import denied
from tinymq.access.gate import Gate
from tinymq.access.stream_age import GRPC_SHARE, serve_for
from tinymq.base.config import Limits
from tinymq.base.errors import NotReady, TinymqError, WrongBroker
from tinymq.base.meter import Meter
from tinymq.base.types import is_internal
from tinymq.broker.serve.broker import Broker
from tinymq.broker.serve.offsets import find_offset
from tinymq.broker.serve.quotas import Quotas
from tinymq.broker.serve.slices import Slice
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.proto.errors import to_wire
from tinymq.registry.state.values import BrokerRecord, QueueRecord, TopicRecord
from tinymq.rpc.common.access import SOME_TOPIC, TOPIC
from tinymq.rpc.common.broker_state import Serving
from tinymq.rpc.common.call_context import Context, client_of
from tinymq.rpc.common.caller import count_made, credential_of, may_describe, permits, require
from tinymq.rpc.common.reply_stream import GrpcReplies
from tinymq.rpc.common.rpc_method import item, streaming, unary
from tinymq.rpc.services import fetch, produce
from tinymq.rpc.services.fetch import FetchStream
from tinymq.rpc.services.produce import Batch, ProduceStream, unpacked

DESCRIBED_MAX = 256  # topics, partitions or replicas that one slice describes
CREATE_S = 5.0  # to make a topic that is first used now, and to wait for its leaders


class BrokerService(pb_grpc.BrokerServicer):
    """service Broker."""

    def __init__(self, serving: Serving, limits: Limits, quotas: Quotas, age_s_max: float = math.inf) -> None:
        """`age_s_max`: of a connection of the stream port; streams of gRPC live for a part of it (GRPC_SHARE)."""
        self._serving = serving
        self._age_s_max = age_s_max
        self._limits = limits
        self._quotas = quotas

    @property
    def meter(self) -> Meter:
        return self._serving.meter

    @property
    def gate(self) -> Gate:
        return self._serving.gate

    @streaming(operation="write", resource=TOPIC)
    async def Produce(self, request_iterator: AsyncIterator[pb.ProduceRequest], context: Context) -> None:  # type: ignore[override]
        credential = credential_of(context)
        batches, age_s_max = unpacked(request_iterator), self._age_s_max * GRPC_SHARE
        await self.produce(batches, GrpcReplies(context), client_of(context), credential, age_s_max)

    @streaming(operation="read", resource=TOPIC)
    async def Fetch(self, request_iterator: AsyncIterator[pb.FetchRequest], context: Context) -> None:  # type: ignore[override]
        credential, age_s_max = credential_of(context), self._age_s_max * GRPC_SHARE
        await self.fetch(request_iterator, GrpcReplies(context), client_of(context), credential, age_s_max)

    async def produce(
        self, arriving: AsyncIterator[Iterable[Batch]], replies: produce.ProduceReplies, client: str,
        credential: Credential, age_s_max: float,
    ) -> None:  # fmt: skip
        """Serve one stream of batches, from either port, to the caller of `credential`, for at most `age_s_max`. It
        counts to the quota of the user while callers are checked, else of `client`. Raises Unauthenticated."""
        guard = self._serving.gate.guard(credential, produce.CALL)
        try:
            share = self._quotas.produce.share(guard.quota_name or client)
            stream = ProduceStream(self._serving, replies, guard, share)
            await serve_for(age_s_max, guard, stream.run(arriving), stream.announce_end)
        finally:
            guard.close()

    async def fetch(
        self,
        requests: AsyncIterator[pb.FetchRequest],
        replies: fetch.FetchReplies,
        client: str,
        credential: Credential,
        age_s_max: float,
        *,
        sends_files: bool = False,
    ) -> None:
        """As `produce`, for one stream of fetches. `sends_files`: `replies` accepts StoredFrames."""
        guard = self._serving.gate.guard(credential, fetch.CALL)
        try:
            share = self._quotas.fetch.share(guard.quota_name or client)
            stream = FetchStream(self._serving, replies, self._limits, guard, share, sends_files=sends_files)
            guard.refused = stream.refuse
            await serve_for(age_s_max, guard, stream.run(requests), stream.announce_end)
        finally:
            guard.close()

    def check_meant(self, cluster_id: bytes, broker_id: int) -> None:
        """Raises WrongBroker unless this is the broker that the client means. b"" and 0 mean any."""
        broker = self._serving.broker
        if broker is None:
            return
        if cluster_id not in (b"", broker.env.cluster_id) or broker_id not in (0, broker.env.broker_id):
            raise WrongBroker(
                f"this is broker {broker.env.broker_id} of cluster {broker.env.cluster_id.hex()}",
                hint="request the metadata again: another broker listens there now",
            )

    def check_known(self, credential: Credential, call: str) -> None:
        """Raises Unauthenticated, NotReady for a caller whose stream would not be served."""
        self._serving.gate.guard(credential, call).close()

    @unary(operation="describe", resource=TOPIC, filters=True)
    async def Metadata(self, request: pb.MetadataRequest, context: Context) -> pb.MetadataReply:
        return await self.metadata(request)

    async def metadata(self, request: pb.MetadataRequest) -> pb.MetadataReply:
        """Describe brokers and topics as this broker knows them. Raises NotReady if `fresh` ones cannot be had."""
        reply = pb.MetadataReply(stream_address=self._serving.stream_address)
        wanted = dict.fromkeys(request.topics)  # a repeated name gets one answer
        hidden = [name for name in wanted if not may_describe("topic", name)]
        names = [name for name in wanted if name not in hidden]
        await self._add_topics(reply, (pb.TopicInfo(name=name, error=_not_shown(name)) for name in hidden))
        try:
            broker = self._serving.running()
            broker.check_metadata_known()
        except NotReady as error:
            reply.error.CopyFrom(to_wire(error))
            await self._add_topics(reply, (pb.TopicInfo(name=name, error=reply.error) for name in names))
            return reply
        if request.fresh:
            await broker.refresh()
        if request.create_missing and len(names) == 1:
            try:
                if broker.would_create(names[0]):
                    require("create", "topic", names[0])
                    await count_made(self._serving, "topic", names[0], broker.env.auto_create_partitions)
                await broker.create_missing(names[0], CREATE_S)
            except TinymqError as error:
                await self._add_topics(reply, [pb.TopicInfo(name=names[0], error=to_wire(error))])
                return reply
        if request.all:
            topics = [topic for topic in broker.registry.get_all_topics() if may_describe("topic", topic.name)]
            answers = (topic_to_wire(broker, t) for t in topics if request.internal or not is_internal(t.name))
        else:
            found = await broker.topics(names)
            answers = (_answer(broker, *pair) for pair in zip(names, found, strict=True))
        reply.cluster_id = broker.env.cluster_id
        reply.broker_id = broker.env.broker_id
        reply.version = broker.registry.version
        reply.brokers.extend(brokers_to_wire(broker.registry.get_all_brokers()))
        await self._add_topics(reply, answers)
        return reply

    async def _add_topics(self, reply: pb.MetadataReply, topics: Iterable[pb.TopicInfo]) -> None:
        """Add the answers to a reply. Each is computed in its turn, so thousands of them share the loop."""
        described = Slice(self._serving.slices, DESCRIBED_MAX)
        for topic in topics:
            reply.topics.append(topic)
            if described.spend(1 + len(topic.partitions)):
                await described.rest()

    @unary(operation="describe", resource=TOPIC)
    async def ListOffsets(self, request: pb.ListOffsetsRequest, context: Context) -> pb.ListOffsetsReply:
        answers = [
            await item(pb.OffsetAnswer, self._offset(request, query), partition=query.partition)
            for query in request.queries
        ]
        return pb.ListOffsetsReply(answers=answers)

    async def _offset(self, request: pb.ListOffsetsRequest, query: pb.OffsetQuery) -> pb.OffsetAnswer:
        broker = self._serving.running()
        partition = broker.find(request.topic_id, query.partition)
        found = await find_offset(partition, query.timestamp_us, request.leader_only, broker.unpack_queue)
        return pb.OffsetAnswer(
            partition=query.partition,
            offset=found.offset,
            timestamp_us=found.timestamp_us,
            high_watermark=found.high_watermark,
            log_start=found.log_start,
            leader_epoch=found.leader_epoch,
            history=found.recovery_term,
        )

    @unary(operation="write", resource=SOME_TOPIC)
    async def OpenProducer(self, request: pb.OpenProducerRequest, context: Context) -> pb.OpenProducerReply:
        return pb.OpenProducerReply(producer_id=await self._serving.running().producer_ids.take())


def _not_shown(name: str) -> pb.Error:
    """The answer about a topic that the caller may not describe, whether there is such a topic or not."""
    present = permits()
    assert present is not None, "all is shown while callers are not checked"
    return to_wire(denied(present.caller.principal, "describe", "topic", name, name))


def brokers_to_wire(brokers: list[BrokerRecord]) -> list[pb.BrokerInfo]:
    return [pb.BrokerInfo(id=b.broker_id, address=b.address, alive=True, rack=b.rack) for b in brokers]


def _answer(broker: Broker, name: str, topic: TopicRecord | TinymqError) -> pb.TopicInfo:
    if isinstance(topic, TinymqError):
        return pb.TopicInfo(name=name, error=to_wire(topic))
    return topic_to_wire(broker, topic)


def topic_to_wire(broker: Broker, topic: TopicRecord) -> pb.TopicInfo:
    """Describe a topic, with its leaders as this broker knows them now."""
    return pb.TopicInfo(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[partition_to_wire(broker, queue) for queue in topic.queues],
        replication_factor=topic.replication_factor,
        created_us=topic.created_us,
        settings=[pb.Setting(name=name, value=value) for name, value in topic.config.settings()],
    )


def partition_to_wire(broker: Broker, queue: QueueRecord) -> pb.PartitionInfo:
    leader, term = broker.leader_of(queue.group)
    replicas = [r.broker_id for r in queue.replicas]
    return pb.PartitionInfo(partition=queue.partition, leader=leader, leader_epoch=term, replicas=replicas)
