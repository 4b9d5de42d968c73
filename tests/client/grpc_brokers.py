"""The in-memory cluster behind real gRPC servers on loopback, for what cannot be seen through the seam."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc.aio

from tests.client.fake_cluster import FakeCluster, FakeFetchStream, FakeProduceStream
from tinymq.client.ports import Method
from tinymq.config import Limits
from tinymq.errors import OutcomeUnknown
from tinymq.proto import tinymq_pb2 as pb

T = TypeVar("T")
_REQUESTS: dict[str, Any] = {
    "Metadata": (Method.METADATA, pb.MetadataRequest),
    "ListOffsets": (Method.LIST_OFFSETS, pb.ListOffsetsRequest),
    "OpenProducer": (Method.OPEN_PRODUCER, pb.OpenProducerRequest),
    "CreateTopic": (Method.CREATE_TOPIC, pb.CreateTopicRequest),
    "DeleteTopic": (Method.DELETE_TOPIC, pb.DeleteTopicRequest),
    "ClusterStatus": (Method.CLUSTER_STATUS, pb.ClusterStatusRequest),
}


class _Broker(grpc.GenericRpcHandler):
    """One broker of the cluster, by method name; streams carry bytes."""

    def __init__(self, cluster: FakeCluster, broker: int) -> None:
        self._cluster = cluster
        self._broker = broker

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        name = details.method.rsplit("/", 1)[1]
        if name == "Produce":
            return grpc.stream_stream_rpc_method_handler(self._produce)
        if name == "Fetch":
            return grpc.stream_stream_rpc_method_handler(self._fetch)
        if name not in _REQUESTS:
            return None
        method, request = _REQUESTS[name]

        async def answer(asked: Any, context: Any) -> Any:
            if self._broker in self._cluster.hung:
                await asyncio.Event().wait()
            return self._cluster.answer(self._broker, method, asked)

        return grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=request.FromString, response_serializer=lambda reply: reply.SerializeToString()
        )

    async def _produce(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        stream = FakeProduceStream(self._cluster, self._broker)

        async def take() -> None:
            async for request in requests:
                await stream.take(request)

        taking = asyncio.create_task(take())
        try:
            while True:
                yield (await stream.read()).SerializeToString()
        except OutcomeUnknown:
            return
        finally:
            taking.cancel()
            stream.cancel()

    async def _fetch(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        stream = FakeFetchStream(self._cluster, self._broker)

        async def take() -> None:
            async for request in requests:
                await stream.write(pb.FetchRequest.FromString(request))

        taking = asyncio.create_task(take())
        try:
            while True:
                data = await stream.next()
                assert isinstance(data, bytes)
                yield data
        except OutcomeUnknown:
            return
        finally:
            taking.cancel()
            stream.cancel()


class GrpcBrokers:
    """`with GrpcBrokers(FakeCluster()) as brokers:` serves every broker on a port of its own."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: dict[int, grpc.aio.Server] = {}

    @property
    def servers(self) -> list[str]:
        return self.cluster.servers

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self._stop_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def stop(self, broker: int) -> None:
        """End one server; its partitions are led elsewhere from now on."""

        async def end() -> None:
            self.cluster.kill(broker)
            await self._servers.pop(broker).stop(None)

        self.run(end())

    async def _start(self) -> None:
        size = Limits().grpc_message_bytes_max
        options = [("grpc.max_receive_message_length", size), ("grpc.max_send_message_length", size)]
        for broker in self.cluster.nodes:
            server = grpc.aio.server(options=options)
            server.add_generic_rpc_handlers((_Broker(self.cluster, broker),))
            port = server.add_insecure_port("127.0.0.1:0")
            self.cluster.addresses[broker] = f"127.0.0.1:{port}"
            await server.start()
            self._servers[broker] = server

    async def _stop_all(self) -> None:
        for broker in self.cluster.nodes:
            self.cluster.break_streams(broker)
        await asyncio.gather(*(server.stop(None) for server in self._servers.values()))
