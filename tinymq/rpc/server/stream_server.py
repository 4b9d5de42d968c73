"""The stream port: Produce and Fetch as frames over TCP, beside the same two on the gRPC port.

The messages are those that gRPC carries, without their large part: a batch's payload, or an answer's frames. That part
travels behind its message and is never packed into it (docs/adr/0026 has the figures).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol

from google.protobuf.message import DecodeError

from tinymq.access.caller import Credential
from tinymq.base.config import GRPC_OVERHEAD_BYTES, KIB, Limits
from tinymq.base.errors import (
    InvalidFrame,
    InvalidRequest,
    TinymqError,
    UnsupportedVersion,
)
from tinymq.log.segment.reads import StoredFrames
from tinymq.net import descriptors
from tinymq.net.acceptor import Acceptor, MakeProtocol
from tinymq.net.connection_limits import Place, Places, host_of
from tinymq.net.frame_stream import FrameStream
from tinymq.net.tls_ports import PortTls
from tinymq.net.unfinished_frames import FrameRoom
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import to_wire
from tinymq.rpc.common.fetch_codec import FetchAnswer
from tinymq.rpc.services import fetch, produce
from tinymq.rpc.services.broker import BrokerService
from tinymq.rpc.services.produce import Batch

PROTOCOL = 1
STRANGERS_MAX = 64  # connections without a hello yet; the next one closes the oldest
HELLO_BYTES_MAX = 16 * KIB  # the longest token included
HELLO_TIMEOUT_S = 5.0
HEAD_BYTES_MAX = GRPC_OVERHEAD_BYTES
FAREWELL_S = 1.0  # time for a refusal to reach its client


class ConnectionAcceptor(Protocol):
    """An object that accepts the connections of a port (tinymq.net.acceptor.Acceptor)."""

    async def start(self, host: str, port: int, *, setting: str, dual_stack: bool = False) -> int: ...
    def close(self) -> None: ...


MakeAcceptor = Callable[[Places, MakeProtocol, PortTls | None], ConnectionAcceptor]


class StreamServer:
    """Listens from `start` to `stop`. A task serves each connection, and ends with it."""

    def __init__(
        self, limits: Limits, service: BrokerService, tls: PortTls | None = None, make_acceptor: MakeAcceptor = Acceptor
    ) -> None:
        connections_max = descriptors.share(descriptors.limit(), limits.connections_max).streams
        self.places = Places("streams", connections_max, descriptors.host_share(connections_max))
        self._limits = limits
        self._service = service
        self._tls = tls
        self._make_acceptor = make_acceptor
        self._acceptor: ConnectionAcceptor | None = None
        self._room = FrameRoom(limits.unfinished_bytes_max)
        self._streams: dict[FrameStream, asyncio.Task[None]] = {}
        self._strangers: dict[FrameStream, None] = {}  # the streams without a hello yet, the oldest first

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the bound port. Raises PortInUse; InvalidConfig for an address of another machine."""
        acceptor = self._make_acceptor(self.places, self._connection, self._tls)
        bound = await acceptor.start(host, port, setting="stream_listen", dual_stack=True)  # IPv4 and IPv6, as gRPC
        self._acceptor = acceptor
        return bound

    async def stop(self, grace_s: float | None) -> None:
        """Accept no new streams, and end the open ones within `grace_s` (None: at once)."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        tasks = list(self._streams.values())
        if tasks and grace_s is not None:
            await asyncio.wait(tasks, timeout=grace_s)
        for stream, task in self._streams.items():
            stream.abort()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _connection(self, place: Place) -> FrameStream:
        """Make the stream of a new connection. Until its hello it may send only a hello; then the bounds of its kind
        apply."""

        def lost(stream: FrameStream) -> None:
            place.leave()
            self._end(stream)

        return FrameStream(HELLO_BYTES_MAX, HELLO_BYTES_MAX, on_made=self._begin, on_lost=lost, room=self._room)

    def _begin(self, stream: FrameStream) -> None:
        if self._acceptor is None:
            stream.abort()
            return
        while len(self._strangers) >= STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort()
        self._strangers[stream] = None
        self._streams[stream] = asyncio.get_running_loop().create_task(self._serve(stream))

    def _end(self, stream: FrameStream) -> None:
        """End the task of a stream whose client has disconnected, also while the task waits for buffer space or a
        quota.
        """
        task = self._streams.get(stream)
        if task is not None:
            task.cancel()

    async def _serve(self, stream: FrameStream) -> None:
        try:
            hello = await self._greeted(stream)
            self._strangers.pop(stream, None)
            if hello is not None:
                stream.expect(self._limits.grpc_message_bytes_max, HEAD_BYTES_MAX)
                await stream.send(_welcome())
                await self._answer(stream, hello)
        except (TinymqError, TimeoutError):
            pass  # the client has gone, or does not follow the protocol
        finally:
            self._strangers.pop(stream, None)
            self._streams.pop(stream, None)
            stream.abort()

    async def _greeted(self, stream: FrameStream) -> pb.StreamHello | None:
        """Return the client's hello. None: the client was refused, with the reason."""
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            head, body = await stream.receive()
            try:
                hello = self._checked(stream, head, len(body))
            except TinymqError as error:
                await stream.send(_welcome(error))
                async with asyncio.timeout(FAREWELL_S):
                    await stream.finish()
                return None
            return hello

    def _checked(self, stream: FrameStream, head: bytes, body_bytes: int) -> pb.StreamHello:
        try:
            hello = pb.StreamHello.FromString(head)
        except DecodeError:
            raise InvalidFrame("the first frame is not a hello") from None
        if body_bytes:
            raise InvalidFrame("a hello with a body")
        if hello.protocol != PROTOCOL:
            raise UnsupportedVersion(f"protocol {hello.protocol} of streams; this broker speaks {PROTOCOL}")
        if hello.kind not in (pb.STREAM_PRODUCE, pb.STREAM_FETCH):
            raise InvalidRequest(f"a stream of kind {hello.kind}", hint="1: produce, 2: fetch")
        self._service.check_known(_credential(stream, hello), _CALLS[hello.kind])
        self._service.check_meant(hello.cluster_id, hello.broker_id)
        return hello

    async def _answer(self, stream: FrameStream, hello: pb.StreamHello) -> None:
        client, credential = hello.client_id or stream.remote_host, _credential(stream, hello)
        hello.token = ""  # a stream may last for days
        age_s_max = self._tls.age_s_max if self._tls is not None and stream.encrypted else math.inf
        if hello.kind == pb.STREAM_PRODUCE:
            await self._service.produce(_batches(stream), _ProduceReplies(stream), client, credential, age_s_max)
        else:
            replies = _FetchReplies(stream)
            await self._service.fetch(_fetches(stream), replies, client, credential, age_s_max, sends_files=True)


_CALLS = {pb.STREAM_PRODUCE: produce.CALL, pb.STREAM_FETCH: fetch.CALL}


def _credential(stream: FrameStream, hello: pb.StreamHello) -> Credential:
    return Credential(
        host=host_of(stream.remote_host), client=hello.client_id, token=hello.token, uri=stream.certified_uri,
        uri_expires_us=stream.certificate_ends_us, encrypted=stream.encrypted,
    )  # fmt: skip


def _welcome(error: TinymqError | None = None) -> bytes:
    return pb.StreamWelcome(protocol=PROTOCOL, error=None if error is None else to_wire(error)).SerializeToString()


async def _batches(stream: FrameStream) -> AsyncIterator[Iterable[Batch]]:
    while True:
        head, payload = await stream.receive()
        try:
            # A copy, because entries keep it: a view is quicker, but would keep Arrow's memory as long as the log's
            # tail.
            yield [(pb.ProduceBatch.FromString(head), bytes(payload))]
        except DecodeError:
            raise InvalidFrame("a frame whose head is not a ProduceBatch") from None


async def _fetches(stream: FrameStream) -> AsyncIterator[pb.FetchRequest]:
    while True:
        head, _ = await stream.receive()
        try:
            yield pb.FetchRequest.FromString(head)
        except DecodeError:
            raise InvalidFrame("a frame whose head is not a FetchRequest") from None


class _ProduceReplies:
    def __init__(self, stream: FrameStream) -> None:
        self._stream = stream

    async def write(self, message: pb.ProduceReply) -> None:
        await self._stream.send(message.SerializeToString())


class _FetchReplies:
    def __init__(self, stream: FrameStream) -> None:
        self._stream = stream

    async def write(self, message: FetchAnswer) -> None:
        head, frames = message.head.SerializeToString(), message.frames
        if not isinstance(frames, StoredFrames):
            await self._stream.send(head, (frames,))
            return
        try:
            await self._stream.send_file(head, frames)
        finally:
            frames.close()
