"""The in-memory cluster behind real gRPC servers and stream ports on loopback, for tests below the client's seam."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc.aio

from tests.client.fake_cluster import FakeCluster, FakeFetchStream, FakeProduceStream
from tests.client.fake_transactions import TRANSACTION_CALLS
from tinymq.base.config import Limits
from tinymq.base.errors import OutcomeUnknown, TinymqError
from tinymq.net.frame_stream import FrameStream
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.methods import METHODS

T = TypeVar("T")
SERVED = (
    pb.MetadataRequest,
    pb.ListOffsetsRequest,
    pb.OpenProducerRequest,
    pb.CreateTopicRequest,
    pb.DeleteTopicRequest,
    pb.ClusterStatusRequest,
    *TRANSACTION_CALLS,
)


class _Broker(grpc.GenericRpcHandler):
    """Serves one broker of the cluster by method name. Its streams carry bytes."""

    def __init__(self, cluster: FakeCluster, broker: int) -> None:
        self._cluster = cluster
        self._broker = broker

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        name = details.method.rsplit("/", 1)[1]
        if name == "Produce":
            return grpc.stream_stream_rpc_method_handler(self._produce)
        if name == "Fetch":
            return grpc.stream_stream_rpc_method_handler(self._fetch)
        method = METHODS.get(details.method)
        if method is None or method.request not in SERVED:
            return None

        async def answer(asked: Any, context: Any) -> Any:
            if self._broker in self._cluster.hung:
                await asyncio.Event().wait()
            return self._cluster.answer(self._broker, asked)

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=method.request.FromString,
            response_serializer=lambda reply: reply.SerializeToString(),
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


class _StreamPort:
    """Serves the two streams of one broker as frames."""

    def __init__(self, cluster: FakeCluster, broker: int) -> None:
        self._cluster = cluster
        self._broker = broker
        self._tasks: dict[FrameStream, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        most = Limits().grpc_message_bytes_max
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: FrameStream(most, most, on_made=self._made, on_lost=self._lost), "127.0.0.1", 0
        )
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for stream in list(self._tasks):
            stream.abort()

    def _made(self, stream: FrameStream) -> None:
        self._tasks[stream] = asyncio.create_task(self._serve(stream))

    def _lost(self, stream: FrameStream) -> None:
        self._tasks.pop(stream).cancel()

    async def _serve(self, stream: FrameStream) -> None:
        with contextlib.suppress(TinymqError):
            hello = pb.StreamHello.FromString((await stream.receive())[0])
            await stream.send(pb.StreamWelcome(protocol=1).SerializeToString())
            if hello.kind == pb.STREAM_PRODUCE:
                await self._produce(stream, FakeProduceStream(self._cluster, self._broker))
            else:
                await self._fetch(stream, FakeFetchStream(self._cluster, self._broker))
        stream.abort()

    async def _produce(self, stream: FrameStream, fake: FakeProduceStream) -> None:
        async def take() -> None:
            while True:
                head, payload = await stream.receive()
                batch = pb.ProduceBatch.FromString(head)
                batch.payload = bytes(payload)
                await fake.take(pb.ProduceRequest(batches=[batch]).SerializeToString())

        async with _beside(take(), fake):
            while True:
                await stream.send((await fake.read()).SerializeToString())

    async def _fetch(self, stream: FrameStream, fake: FakeFetchStream) -> None:
        async def take() -> None:
            while True:
                await fake.write(pb.FetchRequest.FromString((await stream.receive())[0]))

        async with _beside(take(), fake):
            while True:
                reply = pb.FetchReply.FromString(await fake.next())
                frames = reply.frames
                reply.ClearField("frames")
                await stream.send(reply.SerializeToString(), (frames,))


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None], fake: FakeProduceStream | FakeFetchStream) -> AsyncIterator[None]:
    """Run `work` beside the block, and end it and the fake stream with the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        fake.cancel()


class GrpcBrokers:
    """`with GrpcBrokers(FakeCluster()) as brokers:` serves every broker on a port of its own; with
    `framed`, also on a stream port."""

    def __init__(self, cluster: FakeCluster, *, framed: bool = False) -> None:
        self.cluster = cluster
        self._framed = framed
        self._ports: dict[int, _StreamPort] = {}
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

    def stop(self, broker: int, *, elect: bool = True) -> None:
        """Stop one server. Other brokers lead its partitions from now on, unless `elect` is False."""

        async def end() -> None:
            self.cluster.kill(broker, elect=elect)
            if broker in self._ports:
                self._ports.pop(broker).stop()
            await self._servers.pop(broker).stop(None)

        self.run(end())

    async def _start(self) -> None:
        size = Limits().grpc_message_bytes_max
        options = [("grpc.max_receive_message_length", size), ("grpc.max_send_message_length", size)]
        for broker in self.cluster.nodes:
            server = grpc.aio.server(options=options)
            server.add_generic_rpc_handlers((_Broker(self.cluster, broker),))
            self.cluster.addresses[broker] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            self._servers[broker] = server
            if self._framed:
                port = self._ports[broker] = _StreamPort(self.cluster, broker)
                self.cluster.stream_addresses[broker] = await port.start()

    async def _stop_all(self) -> None:
        for broker in self.cluster.nodes:
            self.cluster.break_streams(broker)
        for port in self._ports.values():
            port.stop()
        await asyncio.gather(*(server.stop(None) for server in self._servers.values()))
