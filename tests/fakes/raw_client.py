"""Stubs and streams without the client's logic, for tests of the brokers' answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType

import grpc

from tests.fakes.batches import payload
from tinymq.base.config import Limits
from tinymq.format.entry import Entry, crc32c, iter_entries
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc

WAIT_S = 20.0
OPTIONS = [
    ("grpc.max_receive_message_length", Limits().grpc_message_bytes_max),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),  # do not share the backoff of an earlier channel
]


class Raw:
    """A client of one broker's port, on one test's loop."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self.broker = pb_grpc.BrokerStub(self.channel)
        self.admin = pb_grpc.AdminStub(self.channel)
        self.channels = pb_grpc.ChannelsStub(self.channel)
        self.schedules = pb_grpc.SchedulesStub(self.channel)
        self.transactions = pb_grpc.TransactionsStub(self.channel)
        self._numbers = 0

    async def __aenter__(self) -> Raw:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.channel.close()

    async def create(self, name: str, partitions: int = 1, factor: int = 3) -> pb.TopicInfo:
        request = pb.CreateTopicRequest(name=name, partitions=partitions, replication_factor=factor, timeout_ms=10_000)
        reply = await self.admin.CreateTopic(request, timeout=WAIT_S, wait_for_ready=True)
        assert not reply.HasField("error"), reply.error
        return reply.topic

    async def topic(self, name: str) -> pb.TopicInfo:
        reply = await self.broker.Metadata(pb.MetadataRequest(topics=[name]), timeout=WAIT_S)
        return reply.topics[0]

    async def produce(self, *batches: pb.ProduceBatch) -> list[pb.ProduceResult]:
        """All results, in the order of request ids."""

        async def requests() -> AsyncIterator[pb.ProduceRequest]:
            yield pb.ProduceRequest(batches=batches)

        results: list[pb.ProduceResult] = []
        async for reply in self.broker.Produce(requests(), timeout=WAIT_S):
            results.extend(reply.results)
        return sorted(results, key=lambda r: r.request_id)

    async def send(self, topic_id: bytes, partition: int = 0, count: int = 1, **header: int) -> pb.ProduceResult:
        (result,) = await self.produce(batch(topic_id, payload(count, **header), partition=partition))  # type: ignore[arg-type]
        return result

    async def fetch(self, topic_id: bytes, offset: int = 0, **request: object) -> pb.FetchReply:
        """One fetch on a stream of its own."""
        settings = {"partition": 0, "max_bytes": 1 << 20, "min_bytes": 1, "max_wait_ms": 0} | request

        async def requests() -> AsyncIterator[pb.FetchRequest]:
            yield pb.FetchRequest(request_id=1, topic_id=topic_id, offset=offset, **settings)  # type: ignore[arg-type]

        (reply,) = [reply async for reply in self.broker.Fetch(requests(), timeout=WAIT_S)]
        return reply


def batch(topic_id: bytes, data: bytes, number: int = 1, **fields: object) -> pb.ProduceBatch:
    settings = {"partition": 0, "payload_crc": crc32c(data), "timeout_ms": 10_000} | fields
    return pb.ProduceBatch(request_id=number, topic_id=topic_id, payload=data, **settings)  # type: ignore[arg-type]


def entries(reply: pb.FetchReply) -> list[Entry]:
    return list(iter_entries(reply.frames))


async def until(holds: Callable[[], object], timeout_s: float = WAIT_S) -> None:
    """Return once `holds` is true, checked at each turn of the loop."""
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.002)
