"""The link to one broker: calls by gRPC, and streams of records by the stream port or, if need be, by gRPC.

The broker tells the address of its stream port, and is asked each time that a stream is opened. A port that cannot be
reached (a firewall, a tunnel) is tried again every PORT_RETRY_S, and costs at most DIAL_S_MAX each time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from google.protobuf.message import DecodeError

from tinymq.base.clock import Clock
from tinymq.base.config import Limits, parse_address
from tinymq.base.errors import (
    BrokerUnreachable,
    Closed,
    CorruptData,
    Denied,
    OutcomeUnknown,
    QuotaExceeded,
    TinymqError,
    Unauthenticated,
)
from tinymq.client.net.grpc_transport import GrpcConnector
from tinymq.client.net.ports import Fetched, FetchStream, Link, PackedBatch, ProduceStream, WorkStream
from tinymq.client.net.token_sender import NO_TOKEN, TokenSender
from tinymq.client.net.wire import fetched, read_error, view_of
from tinymq.net.client_tls import ClientTls
from tinymq.net.frame_socket import FrameSocket
from tinymq.net.frame_stream import FrameStream
from tinymq.net.framing import FrameReader, pack_frame
from tinymq.net.socket_options import prepare
from tinymq.proto import tinymq_pb2 as pb

T = TypeVar("T")

LOG = logging.getLogger("tinymq.client")

PROTOCOL = 1
DIAL_S_MAX = 1.0
UNACKNOWLEDGED_S = 10.0  # what was sent to a broker and is not acknowledged for so long ends the stream (adr/0140)
PORT_RETRY_S = 30.0  # until a stream port that could not be reached is tried again


class FramedProduce:
    """A stream of batches to the stream port."""

    def __init__(self, stream: FrameStream, address: str) -> None:
        self._stream = stream
        self._address = address

    async def write(self, batches: Sequence[PackedBatch]) -> None:
        try:
            for fields, head, message in batches:
                await self._stream.send(fields, (head, view_of(message)))
        except TinymqError as error:
            raise _broken(self._address, error) from None

    async def read(self) -> pb.ProduceReply:
        try:
            head, _ = await self._stream.receive()
        except TinymqError as error:
            raise _broken(self._address, error) from None
        try:
            return pb.ProduceReply.FromString(head)
        except DecodeError as error:
            raise OutcomeUnknown(f"{self._address}: not a reply: {error}") from None

    def cancel(self) -> None:
        self._stream.abort()


class FramedFetch:
    """A stream of fetches from the stream port."""

    def __init__(self, stream: FrameStream, address: str) -> None:
        self._stream = stream
        self._address = address

    @property
    def received_bytes(self) -> int:
        return self._stream.received_bytes

    async def write(self, request: pb.FetchRequest) -> None:
        try:
            await self._stream.send(request.SerializeToString())
        except TinymqError as error:
            raise _broken(self._address, error) from None

    async def read(self) -> Fetched:
        try:
            head, frames = await self._stream.receive()
            return fetched(head, memoryview(frames))
        except CorruptData:
            raise
        except TinymqError as error:
            raise _broken(self._address, error) from None

    def cancel(self) -> None:
        self._stream.abort()


async def connect_stream(make: Callable[[], FrameStream], host: str, port: int, tls: ClientTls | None) -> FrameStream:
    """Return a connected stream over TCP. Raises OSError."""
    context = tls.context if tls is not None else None
    name = tls.name_of(host) if tls is not None else None
    sock, loop = await _connected(host, port), asyncio.get_running_loop()
    _, stream = await loop.create_connection(make, sock=sock, ssl=context, server_hostname=name)
    return stream


Connect = Callable[[Callable[[], FrameStream], str, int, ClientTls | None], Awaitable[FrameStream]]
"""Connects a new stream to a stream port."""


class BrokerLink:
    """A link to one broker. It chooses the transport of each stream: the stream port, else that of `link`."""

    def __init__(
        self, link: Link, limits: Limits, client_id: str, clock: Clock, token: TokenSender = NO_TOKEN,
        tls: ClientTls | None = None, connect: Connect = connect_stream,
    ) -> None:  # fmt: skip
        self._link = link
        self._tls = tls
        self._token = token
        self._limits = limits
        self._client_id = client_id
        self._clock = clock
        self._connect = connect
        self._unreachable = ("", 0.0)  # (a stream port that could not be reached, when it is tried again)
        self.call = link.call
        self.close = link.close

    @property
    def address(self) -> str:
        return self._link.address

    async def open_produce(self, timeout_s: float) -> ProduceStream:
        stream, left_s = await self._framed(pb.STREAM_PRODUCE, timeout_s, self._dial)
        return await self._link.open_produce(left_s) if stream is None else FramedProduce(stream, self.address)

    async def open_fetch(self, timeout_s: float) -> FetchStream:
        stream, left_s = await self._framed(pb.STREAM_FETCH, timeout_s, self._dial)
        return await self._link.open_fetch(left_s) if stream is None else FramedFetch(stream, self.address)

    async def open_work(self, timeout_s: float) -> WorkStream:
        return await self._link.open_work(timeout_s)  # the stream port does not carry it

    async def open_blocking(self, timeout_s: float) -> FrameSocket | None:
        stream, _ = await self._framed(pb.STREAM_PRODUCE, timeout_s, self._dial_blocking)
        return stream

    async def _framed(
        self,
        kind: pb.StreamKind.ValueType,
        timeout_s: float,
        dial: Callable[[str, pb.StreamHello, float], Awaitable[T]],
    ) -> tuple[T | None, float]:
        """Open a connection to the stream port by `dial`. Returns (the connection, seconds that are left).

        None: there is no stream port that can be reached, and gRPC has to do. Raises BrokerUnreachable.
        """
        deadline_s = self._clock.monotonic() + timeout_s
        try:
            # A broker tells its stream port itself, each time: after a restart it may have another one.
            metadata = await self._link.call(pb.MetadataRequest(), timeout_s)
        except OutcomeUnknown as error:
            raise BrokerUnreachable(error.message) from None  # nothing was sent on the stream
        refusal = read_error(metadata.error) if metadata.HasField("error") else None
        if isinstance(refusal, Denied):
            raise refusal
        where, now_s = metadata.stream_address, self._clock.monotonic()
        left_s = max(0.0, deadline_s - now_s)
        if not where or (where == self._unreachable[0] and now_s < self._unreachable[1]):
            return None, left_s
        hello = pb.StreamHello(
            protocol=PROTOCOL, kind=kind, cluster_id=metadata.cluster_id, broker_id=metadata.broker_id,
            client_id=self._client_id, token=self._token.token_for(where, encrypted=self._tls is not None),
        )  # fmt: skip
        dial_s = min(DIAL_S_MAX, left_s / 2)
        try:
            return await dial(where, hello, dial_s), left_s
        except (Unauthenticated, QuotaExceeded):  # gRPC would not help
            raise
        except (TinymqError, OSError, ValueError) as error:  # ValueError: not a host name
            # A caller with little time left proves nothing about the port.
            hurried = isinstance(error, TimeoutError) and dial_s < DIAL_S_MAX / 2
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            LOG.info("%s: its stream port %s: %s; using gRPC for now", self.address, where, reason)
            now_s = self._clock.monotonic()
            if not hurried:
                self._unreachable = where, now_s + PORT_RETRY_S
            return None, max(0.0, deadline_s - now_s)

    async def _dial(self, where: str, hello: pb.StreamHello, timeout_s: float) -> FrameStream:
        """Connect to the stream port and say hello. Raises the reason if this fails."""
        host, port = parse_address(where)
        most = self._limits.grpc_message_bytes_max  # for a head, too: a reply with many results has no body
        async with asyncio.timeout(timeout_s):
            stream = await self._connect(
                lambda: FrameStream(most, most, unacknowledged_s=UNACKNOWLEDGED_S), host, port, self._tls
            )
            try:
                await stream.send(hello.SerializeToString())
                head, _ = await stream.receive()
                check_welcome(head)
            except BaseException:
                stream.abort()
                raise
        return stream

    async def _dial_blocking(self, where: str, hello: pb.StreamHello, timeout_s: float) -> FrameSocket:
        """Connect as `_dial` does, with a socket whose calls block."""
        host, port = parse_address(where)
        loop = asyncio.get_running_loop()
        most = self._limits.grpc_message_bytes_max
        reader = FrameReader(most, most)
        async with asyncio.timeout(timeout_s):
            sock = await _connected(host, port)
            try:
                prepare(sock, UNACKNOWLEDGED_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio sets it by itself
                if self._tls is not None:
                    wrap = partial(self._tls.context.wrap_socket, sock, server_hostname=self._tls.name_of(host))
                    return await asyncio.to_thread(_greet_encrypted, sock, wrap, hello, reader, timeout_s)
                for chunk in pack_frame(hello.SerializeToString())[0]:
                    await loop.sock_sendall(sock, chunk)
                while (frame := reader.next_frame()) is None:
                    count = await loop.sock_recv_into(sock, reader.get_buffer())
                    if not count:
                        raise Closed("the other end closed it")
                    reader.received(count)
                check_welcome(frame[0])
            except BaseException:
                sock.close()
                raise
        return FrameSocket(sock, reader)


def _greet_encrypted(
    sock: socket.socket, wrap: Callable[[], ssl.SSLSocket], hello: pb.StreamHello, reader: FrameReader, timeout_s: float
) -> FrameSocket:  # fmt: skip
    """Say hello over TLS. Blocks for `timeout_s` in each step. Raises the reason if this fails."""
    sock.settimeout(timeout_s)
    stream = FrameSocket(wrap(), reader)
    try:
        stream.send(hello.SerializeToString(), (), timeout_s)
        check_welcome(stream.receive(timeout_s)[0])
    except BaseException:
        stream.close()
        raise
    return stream


class BrokerConnector:
    """Makes links that use the stream port or gRPC."""

    def __init__(
        self, limits: Limits, client_id: str, clock: Clock, token: TokenSender = NO_TOKEN, tls: ClientTls | None = None
    ) -> None:
        self._grpc = GrpcConnector(limits, client_id, token=token, tls=tls)
        self._tls = tls
        self._token = token
        self._limits = limits
        self._client_id = client_id
        self._clock = clock

    def link(self, address: str) -> BrokerLink:
        return BrokerLink(self._grpc.link(address), self._limits, self._client_id, self._clock, self._token, self._tls)


def check_welcome(head: bytes) -> None:
    """Raise the reason if the broker has refused the stream."""
    try:
        welcome = pb.StreamWelcome.FromString(head)
    except DecodeError:
        raise BrokerUnreachable("another kind of server listens there") from None
    if welcome.HasField("error"):
        raise read_error(welcome.error)


async def _connected(host: str, port: int) -> socket.socket:
    """Return a connected socket that does not block. Raises OSError."""
    loop, problem = asyncio.get_running_loop(), OSError(f"no address found for {host}")
    try:
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except RuntimeError:  # at the interpreter's exit no thread pool accepts work
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in addresses:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise problem


def _broken(address: str, error: TinymqError) -> OutcomeUnknown:
    """Return the error of a broken stream. It was connected when it was opened, so a request may have arrived."""
    return OutcomeUnknown(f"{address}: {error.message}")
