"""The client's gRPC transport: a Connector (tinymq/client/net/ports.py) over grpc.aio.

A channel is made on the loop that uses it, and on first use. A process may therefore fork after it has imported this
module, but not after it has used it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from tinymq.base.config import Limits, parse_address
from tinymq.base.errors import (
    BrokerUnreachable,
    Closed,
    Denied,
    OutcomeUnknown,
    QuotaExceeded,
    TinymqError,
    Unauthenticated,
    UnsupportedVersion,
)
from tinymq.client.common.argument_checks import FORK_HINT
from tinymq.client.net.ports import Fetched, Metadata, PackedBatch
from tinymq.client.net.token_sender import NO_TOKEN, TokenSender
from tinymq.client.net.wire import join, read_error, read_fetched
from tinymq.net.client_tls import ClientTls
from tinymq.proto import grpc_core
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import TRAILER
from tinymq.proto.methods import Method, method_named, method_of

with grpc_core.settings():
    import grpc
    import grpc.aio

R = TypeVar("R", bound=Message)

AUTHORIZATION = "authorization"  # metadata key
_PRODUCE = method_named("Broker", "Produce").path
_FETCH = method_named("Broker", "Fetch").path
_WORK = method_named("Workers", "Work").path
_NEVER_SENT = ("failed to connect", "connection refused", "dns resolution failed", "name resolution failure")
_TOO_MANY = "concurrent rpc limit"  # grpc.aio refuses a call when the broker serves as many as it may
RETRY_MS = 100  # after such a refusal
RETIRED_S = 60.0  # for the calls of a channel with older certificates to end
# Pings while calls are under way. They end a connection whose packets are lost. TCP alone would wait for as long again
# as the network was away (adr/0140).
_KEEPALIVE = (("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000))


def error_of_status(error: grpc.aio.AioRpcError, address: str) -> TinymqError:
    """Return the error for a failed call: the one that its status carries, or else what the status means.

    BrokerUnreachable only if the request was certainly never sent.
    """
    packed: Any = dict(error.trailing_metadata() or ()).get(TRAILER)
    if packed is not None:
        try:
            return read_error(pb.Error.FromString(packed))
        except DecodeError:
            return OutcomeUnknown(f"{address}: answered with an error that cannot be read")
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_MANY in details.lower():
        return QuotaExceeded(f"{address}: {details}", retry_after_ms=RETRY_MS)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedVersion(f"{address}: {details}")
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return Unauthenticated(f"{address}: {details}")
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return Denied(f"{address}: {details}")
    if code is grpc.StatusCode.UNAVAILABLE and any(text in details.lower() for text in _NEVER_SENT):
        reason = details.rsplit("last error: ", 1)[-1]
        return BrokerUnreachable(f"{address}: {_other_port(reason) or reason}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return OutcomeUnknown(f"{address}: no answer in time")
    return OutcomeUnknown(f"{address}: {code.name}: {details}")


def _other_port(reason: str) -> str:
    """Return what listens there if it is no port for clients; "" if that is not known."""
    if "http1" in reason.lower():
        return "an HTTP server listens there, such as a broker's metrics_listen; clients connect to its listen"
    if "socket closed" in reason.lower():
        return (
            "closes the connection, as a broker does that requires TLS (connect to tinymq+tls://), or as its"
            " peer_listen and stream_listen do (clients connect to its listen)"
        )
    return ""


_started_in: int | None = None  # the process that made the first channel


def _check_process() -> None:
    """Raise Closed in a forked child of a process that has used gRPC: it would wait for threads that do not exist."""
    global _started_in
    if _started_in is None:
        _started_in = os.getpid()
    elif _started_in != os.getpid():
        raise Closed(
            "this process forked after its parent had used gRPC",
            hint=FORK_HINT,
        )


def _cancelled_from_outside() -> bool:
    """Was this task cancelled? grpc.aio raises CancelledError also when only its own call was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Stream:
    """A bidirectional call that carries serialised messages."""

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address

    async def send(self, data: bytes) -> None:
        try:
            await self._call.write(data)
        except grpc.aio.AioRpcError as error:
            raise self._broken(error) from None
        except asyncio.InvalidStateError:
            raise OutcomeUnknown(f"{self._address}: the stream has ended") from None
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            raise OutcomeUnknown(f"{self._address}: the stream was closed here") from None

    async def receive(self) -> bytes:
        try:
            data = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise self._broken(error) from None
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            raise OutcomeUnknown(f"{self._address}: the stream was closed here") from None
        if data is grpc.aio.EOF:
            raise OutcomeUnknown(f"{self._address}: the broker ended the stream")
        assert isinstance(data, bytes), "no deserializer was given"
        return data

    def cancel(self) -> None:
        self._call.cancel()

    def _parsed(self, kind: type[R], data: bytes) -> R:
        """Read a reply. Raises OutcomeUnknown for bytes that do not parse."""
        try:
            return kind.FromString(data)
        except DecodeError as error:
            raise OutcomeUnknown(f"{self._address}: not a reply: {error}") from None

    def _broken(self, error: grpc.aio.AioRpcError) -> TinymqError:
        typed = error_of_status(error, self._address)
        # It was connected when it was opened, so what was written may have arrived.
        return OutcomeUnknown(typed.message) if isinstance(typed, BrokerUnreachable) else typed


class _Produce(_Stream):
    async def write(self, batches: Sequence[PackedBatch]) -> None:
        await self.send(join(batches))

    async def read(self) -> pb.ProduceReply:
        return self._parsed(pb.ProduceReply, await self.receive())


class _Fetch(_Stream):
    received_bytes = 0  # gRPC only reports whole messages

    async def write(self, request: pb.FetchRequest) -> None:
        await self.send(request.SerializeToString())

    async def read(self) -> Fetched:
        return read_fetched(await self.receive())


class _Work(_Stream):
    async def write(self, request: pb.WorkRequest) -> None:
        await self.send(request.SerializeToString())

    async def read(self) -> pb.WorkReply:
        return self._parsed(pb.WorkReply, await self.receive())

    async def finish(self) -> None:
        try:
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            raise OutcomeUnknown(f"{self._address}: the stream has ended") from None


class GrpcLink:
    """A link to one broker over one gRPC channel."""

    def __init__(
        self,
        address: str,
        message_bytes_max: int,
        client_id: str,
        token: TokenSender = NO_TOKEN,
        tls: ClientTls | None = None,
    ) -> None:
        self._address = address
        self._token = token
        self._tls = tls
        self._encrypts = tls is not None  # the next channel
        self._generation = 0  # of the certificates that the channel was made with
        self._retired: set[asyncio.Task[None]] = set()  # channels with older certificates, until their calls have ended
        self._metadata: Metadata = (("tinymq-client-id", client_id),) if client_id else ()
        self._message_bytes_max = message_bytes_max
        self._channel: grpc.aio.Channel | None = None
        self._calls: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return self._address

    async def call(
        self, request: Message, timeout_s: float, *, method: Method | None = None, metadata: Metadata = ()
    ) -> Any:
        """As tinymq.client.net.ports.Link.call. A gateway names the `method`, and has metadata for each call."""
        method = method or method_of(request)
        self._renew()
        make = self._calls.get(method.path)
        if make is None:
            make = self._calls[method.path] = self._open().unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.reply.FromString,
            )
        try:
            return await make(request, timeout=timeout_s, metadata=(*self._identity(), *metadata))
        except grpc.aio.AioRpcError as error:
            typed = error_of_status(error, self._address)
            if self._tls is not None and isinstance(typed, BrokerUnreachable):
                typed = await self._explained(self._tls, typed)
            raise typed from None
        except grpc.aio.UsageError as error:
            raise BrokerUnreachable(f"{self._address}: {error}") from None
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            raise OutcomeUnknown(f"{self._address}: the channel was closed here") from None

    async def open_produce(self, timeout_s: float) -> _Produce:
        return _Produce(await self._stream(_PRODUCE, timeout_s), self._address)

    async def open_fetch(self, timeout_s: float) -> _Fetch:
        return _Fetch(await self._stream(_FETCH, timeout_s), self._address)

    async def open_work(self, timeout_s: float) -> _Work:
        return _Work(await self._stream(_WORK, timeout_s), self._address)

    async def open_blocking(self, timeout_s: float) -> None:
        return None  # calls of grpc.aio belong to a loop

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        self._calls.clear()
        retired, self._retired = self._retired, set()
        for task in retired:
            task.cancel()
        await asyncio.gather(*retired, return_exceptions=True)
        if channel is not None:
            await channel.close()

    def _renew(self) -> None:
        """Make a new channel if the certificates have changed. Calls of the old one go on."""
        if self._tls is None or self._channel is None or self._tls.generation == self._generation:
            return
        channel, self._channel = self._channel, None
        self._calls.clear()
        task = asyncio.get_running_loop().create_task(channel.close(RETIRED_S))
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)

    async def _explained(self, tls: ClientTls, error: BrokerUnreachable) -> BrokerUnreachable:
        """Say why TLS failed, if that is the reason. Where TLS is optional, connect the other way next time."""
        if tls.optional:
            channel, self._channel, self._encrypts = self._channel, None, not self._encrypts
            self._calls.clear()
            if channel is not None:
                await channel.close()
        why = await asyncio.to_thread(tls.explain, *parse_address(self._address))
        return BrokerUnreachable(f"{self._address}: {why}") if why else error

    def _identity(self) -> Metadata:
        """The metadata by which every call identifies this client. Raises InvalidConfig for a token that others could
        read."""
        token = self._token.token_for(self._address, encrypted=self._encrypts)
        return (*self._metadata, (AUTHORIZATION, f"Bearer {token}")) if token else self._metadata

    async def _stream(self, path: str, timeout_s: float) -> Any:
        self._renew()
        channel = self._open()
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected(channel)
        except TimeoutError:
            raise BrokerUnreachable(f"{self._address}: no connection within {timeout_s:.1f} s") from None
        return channel.stream_stream(path)(metadata=self._identity())

    async def _connected(self, channel: grpc.aio.Channel) -> None:
        state = channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                # A call that does not wait for the connection fails at once, with the reason.
                await self.call(pb.MetadataRequest(), 1.0)
            elif state is grpc.ChannelConnectivity.SHUTDOWN:
                raise BrokerUnreachable(f"{self._address}: the channel is closed")
            else:
                await channel.wait_for_state_change(state)
            state = channel.get_state(try_to_connect=True)

    def _open(self) -> grpc.aio.Channel:
        if self._channel is None:
            _check_process()
            options = [
                ("grpc.max_send_message_length", self._message_bytes_max),
                ("grpc.max_receive_message_length", self._message_bytes_max),
                # A restarted broker is found within a second; gRPC's own bound is two minutes.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 1000),  # this one bounds an attempt, not the pause
                ("grpc.max_reconnect_backoff_ms", 250),  # 1000 kept clients from a restarted broker for 2 s
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_http_proxy", 0),
                *_KEEPALIVE,
            ]
            self._channel = self._channel_with(options)
        return self._channel

    def _channel_with(self, options: list[tuple[str, Any]]) -> grpc.aio.Channel:
        tls = self._tls
        if tls is None or not self._encrypts:
            return grpc.aio.insecure_channel(self._address, options=options)
        self._generation, pem = tls.generation, tls.pem
        if tls.server_name:
            options.append(("grpc.ssl_target_name_override", tls.server_name))
        credentials = grpc.ssl_channel_credentials(pem.ca or None, pem.key or None, pem.certificate or None)
        return grpc.aio.secure_channel(self._address, credentials, options=options)


class GrpcConnector:
    """Makes links over gRPC, with TLS or without."""

    def __init__(
        self, limits: Limits, client_id: str = "", *, token: TokenSender = NO_TOKEN,
        tls: ClientTls | None = None,
    ) -> None:  # fmt: skip
        """Every call carries `client_id`, by which brokers count clients, and `token`, by which they know them."""
        self._client_id = client_id
        self._token = token
        self._tls = tls
        self._message_bytes_max = limits.grpc_message_bytes_max

    def link(self, address: str) -> GrpcLink:
        return GrpcLink(address, self._message_bytes_max, self._client_id, self._token, self._tls)
