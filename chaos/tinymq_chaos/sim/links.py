"""Between clients and brokers, in the place of gRPC: the same serialised messages, over the virtual network.

A client's `Connector` here, a broker's `Server` there (tinymq.app.MakeServer), and connections between the two that
have what the network has: delays, cuts, resets, and ends when a process ends. Clients have numbers from CLIENTS_FROM
on, so that links between them and brokers are cut and slowed by the same calls as those between brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from tinymq.client.ports import Fetched, Method
from tinymq.client.wire import read_fetched
from tinymq.config import Limits
from tinymq.errors import BrokerUnreachable, Closed, OutcomeUnknown
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import from_wire
from tinymq.rpc.forwarding import FORWARDED, SERVICE, Metadata
from tinymq.rpc.server import Services
from tinymq.rpc.statuses import TRAILER
from tinymq.testing.weather import Weather
from tinymq_chaos.sim.virtual import Process, VirtualClock, VirtualLoop
from tinymq_chaos.sim.wires import Wire

CLIENTS_FROM = 100
CONNECT_POLL_S = 0.05  # how often a connection that cannot come about is tried again

_STREAMS: dict[str, Any] = {"Produce": pb.ProduceRequest, "Fetch": pb.FetchRequest}


_DONE, _FAILED = b"\0", b"\1"  # the first byte of what answers a unary call: a reply follows, or a packed Error


class Aborted(Exception):
    """A servicer ended its call with a status."""


class ServerCall:
    """A call as a servicer sees it: what it reads, and the `context` that it writes to."""

    def __init__(self, call: Call, kind: Any) -> None:
        self._call = call
        self._up = call.up
        self._down = call.down
        self._kind = kind

    async def requests(self) -> AsyncIterator[Any]:
        while (data := await self._up.receive()) is not None:
            yield self._kind.FromString(data)

    async def write(self, message: Any) -> None:
        self._down.send(message.SerializeToString())
        await self._down.room()

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._call.metadata

    def time_remaining(self) -> float | None:
        return self._call.left_s()

    def peer(self) -> str:
        return f"ipv4:client-{self._call.client}:1"

    async def abort(self, code: object, details: str, trailing_metadata: tuple[tuple[str, Any], ...] = ()) -> None:
        self._down.send(_FAILED + dict(trailing_metadata)[TRAILER])
        raise Aborted(details)


class Call:
    """Both directions of one call between a client and a broker's process."""

    def __init__(
        self,
        net: ClientNetwork,
        client: int,
        server: MemoryServer,
        timeout_s: float | None = None,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.client = client
        self.server = server
        self.metadata = metadata
        self._until_s = None if timeout_s is None else net.clock.monotonic() + timeout_s
        self.up = Wire(net.weather, (client, server.broker_id))
        self.down = Wire(net.weather, (server.broker_id, client))
        self.task: asyncio.Task[None] | None = None
        self._net = net
        net.calls[self] = None

    def left_s(self) -> float | None:
        """Until its deadline, if it has one."""
        return None if self._until_s is None else max(0.0, self._until_s - self._net.clock.monotonic())

    def serve(self, handle: Callable[[Call], Awaitable[None]]) -> None:
        """Run the servicer's side, in the broker's process."""
        self.server.process.call(lambda: self._begin(handle))

    def _begin(self, handle: Callable[[Call], Awaitable[None]]) -> None:
        if self.up.broken is None:
            self.task = asyncio.ensure_future(self._run(handle))

    async def _run(self, handle: Callable[[Call], Awaitable[None]]) -> None:
        with contextlib.suppress(OutcomeUnknown, Aborted):  # the client went away in the middle of a read
            await handle(self)
        self.down.send(None)

    def cancelled_by_client(self) -> None:
        self.break_off("the stream was closed here")

    def break_off(self, why: str) -> None:
        """The connection is gone: both ends learn it (the broker as the cancelling of its call)."""
        self._net.calls.pop(self, None)
        self.up.break_off(why)
        self.down.break_off(why)
        if self.task is not None and not self.task.done():
            self.server.process.call(self.task.cancel)


class MemoryServer:
    """A broker's server for clients, as `tinymq.rpc.RpcServer` is one: from `start` to `stop`."""

    def __init__(self, net: ClientNetwork, broker_id: int, process: Process, services: Services) -> None:
        self.broker_id = broker_id
        self.process = process
        self.address = ""
        self.listening = False
        self._net = net
        self._services = {
            "Broker": services.broker,
            "Admin": services.admin,
            "Channels": services.channels,
            "QueueService": services.queue,
        }

    async def start(self, host: str, port: int) -> int:
        self.address = f"{host}:{port}"
        self._net.listen(self)
        return port

    async def set_serving(self, serving: bool) -> None:
        pass  # grpc.health.v1 is gRPC's own

    async def stop(self, grace_s: float | None) -> None:
        self._net.leave(self)
        if grace_s is not None and self._net.calls_of(self):
            await asyncio.sleep(grace_s)
        for call in self._net.calls_of(self):
            call.break_off("the server has stopped")

    def servicer(self, path: str) -> Any:
        """What answers "tinymq.v1.Broker/Metadata" and the like."""
        service, name = path.rsplit(".", 1)[-1].split("/")
        return getattr(self._services[service], name)


class ClientNetwork:
    """Who listens where, and every call that is open. Belongs to the world, not to a process."""

    def __init__(self, loop: VirtualLoop, weather: Weather) -> None:
        self.weather = weather
        self.clock = VirtualClock(loop)
        self.calls: dict[Call, None] = {}
        self._servers: dict[str, MemoryServer] = {}
        self._clients = CLIENTS_FROM

    def connector(self) -> MemoryConnector:
        """Of a new client."""
        self._clients += 1
        return MemoryConnector(self, self._clients)

    @property
    def clients(self) -> range:
        """The numbers of all clients so far."""
        return range(CLIENTS_FROM + 1, self._clients + 1)

    def listen(self, server: MemoryServer) -> None:
        """A process begins to serve. What was connected to an earlier one, that vanished, learns of it."""
        for call in [c for c in self.calls if server.broker_id in (c.server.broker_id, c.client)]:
            call.break_off("connection reset by peer")
        self._servers[server.address] = server
        server.listening = True

    def leave(self, server: MemoryServer) -> None:
        server.listening = False
        if self._servers.get(server.address) is server:
            del self._servers[server.address]

    def calls_of(self, server: MemoryServer) -> list[Call]:
        return [call for call in self.calls if call.server is server]

    def crash(self, broker_id: int, silently: bool) -> None:
        """A broker's process is gone. With the whole machine, nobody is told."""
        for server in [s for s in self._servers.values() if s.broker_id == broker_id]:
            self.leave(server)
        if not silently:
            for call in [c for c in self.calls if broker_id in (c.server.broker_id, c.client)]:
                call.break_off("connection reset by peer")

    def reset(self, a: int, b: int) -> None:
        """Close what is open between a client and a broker, whichever is which."""
        for call in [c for c in self.calls if {c.client, c.server.broker_id} == {a, b}]:
            call.break_off("connection reset by peer")

    def healed(self) -> None:
        """Cuts have ended: what was held goes on."""
        for call in list(self.calls):
            call.up.schedule()
            call.down.schedule()

    def reach(self, client: int, address: str) -> MemoryServer | None:
        """Who answers there now: None while nobody can tell. Raises BrokerUnreachable when refused."""
        broker_id = int(address.rsplit(":", 1)[1])
        if self.weather.is_cut((client, broker_id)) or self.weather.is_cut((broker_id, client)):
            return None
        server = self._servers.get(address)
        if server is None:
            raise BrokerUnreachable(f"{address}: connection refused")
        return None if server.process.paused else server


class MemoryConnector:
    """A client's place in the network."""

    def __init__(self, net: ClientNetwork, number: int) -> None:
        self.number = number
        self._net = net

    def link(self, address: str) -> MemoryLink:
        return MemoryLink(self._net, self.number, address)


class MemoryLink:
    """A client's connection to one broker: see tinymq.client.ports.Link."""

    def __init__(self, net: ClientNetwork, client: int, address: str) -> None:
        self._net = net
        self._client = client
        self._address = address
        self._known: MemoryServer | None = None  # connected to it already

    @property
    def address(self) -> str:
        return self._address

    async def call(self, method: Method, request: Any, timeout_s: float) -> Any:
        return await self.ask(method.value, request, timeout_s)

    async def ask(self, path: str, request: Any, timeout_s: float, metadata: tuple[tuple[str, str], ...] = ()) -> Any:
        """Any unary call, by its path, such as "tinymq.v1.QueueService/ConsumeMessage". Raises what ended it as a
        status, BrokerUnreachable, OutcomeUnknown."""
        call: Call | None = None
        try:
            async with asyncio.timeout(timeout_s):
                call = await self._dial(timeout_s, metadata)
                servicer = call.server.servicer(path)
                call.serve(lambda served: _answer(served, servicer, type(request)))
                call.up.send(request.SerializeToString())
                data = await call.down.receive()
        except TimeoutError:
            raise OutcomeUnknown(f"{self._address}: no answer in time") from None
        finally:
            if call is not None:
                call.cancelled_by_client()
        if data is None:
            raise OutcomeUnknown(f"{self._address}: the broker ended the call")
        if data[:1] == _FAILED:
            raise from_wire(pb.Error.FromString(data[1:]))
        return _reply_of(path).FromString(data[1:])

    async def open_produce(self, timeout_s: float) -> ProduceCall:
        return ProduceCall(await self._open("Produce", timeout_s), self._address)

    async def open_fetch(self, timeout_s: float) -> FetchCall:
        return FetchCall(await self._open("Fetch", timeout_s), self._address)

    async def close(self) -> None:
        self._known = None

    async def _open(self, name: str, timeout_s: float) -> Call:
        try:
            async with asyncio.timeout(timeout_s):
                call = await self._dial()
        except TimeoutError:
            raise BrokerUnreachable(f"{self._address}: no connection within {timeout_s:.1f} s") from None
        servicer = call.server.servicer(f"tinymq.v1.Broker/{name}")
        call.serve(lambda served: _stream(served, servicer, _STREAMS[name]))
        return call

    async def _dial(self, timeout_s: float | None = None, metadata: tuple[tuple[str, str], ...] = ()) -> Call:
        """Connect, unless that was done: a round trip, or as long as nobody answers."""
        known = self._known
        server = self._net.reach(self._client, self._address) if known is not None and known.listening else None
        if server is None or server is not known:
            broker_id = int(self._address.rsplit(":", 1)[1])
            await self._net.clock.sleep(self._net.weather.round_trip_s(self._client, broker_id))
            while (server := self._net.reach(self._client, self._address)) is None:
                await self._net.clock.sleep(CONNECT_POLL_S)
            self._known = server
        return Call(self._net, self._client, server, timeout_s, metadata)


async def _answer(call: Call, servicer: Any, kind: Any) -> None:
    data = await call.up.receive()
    assert data is not None
    reply = await servicer(kind.FromString(data), ServerCall(call, kind))
    call.down.send(_DONE + reply.SerializeToString())


async def _stream(call: Call, servicer: Any, kind: Any) -> None:
    served = ServerCall(call, kind)
    await servicer(served.requests(), served)


class _StreamCall:
    """What a client's streams share."""

    def __init__(self, call: Call, address: str) -> None:
        self._call = call
        self._address = address

    async def send(self, data: bytes) -> None:
        up = self._call.up
        if up.broken is None:
            up.send(data)
            await up.room()
        if up.broken is not None:
            raise OutcomeUnknown(f"{self._address}: {up.broken}")

    async def receive(self) -> bytes:
        try:
            data = await self._call.down.receive()
        except OutcomeUnknown as error:
            raise OutcomeUnknown(f"{self._address}: {error.message}") from None
        if data is None:
            self._call.break_off("the broker ended the stream")
            raise OutcomeUnknown(f"{self._address}: the broker ended the stream")
        return data

    def cancel(self) -> None:
        self._call.cancelled_by_client()


class ProduceCall(_StreamCall):
    async def write(self, request: bytes) -> None:
        await self.send(request)

    async def read(self) -> pb.ProduceReply:
        return pb.ProduceReply.FromString(await self.receive())


class FetchCall(_StreamCall):
    async def write(self, request: pb.FetchRequest) -> None:
        await self.send(request.SerializeToString())

    async def read(self) -> Fetched:
        return read_fetched(await self.receive())


def _reply_of(path: str) -> Any:
    """What a unary call is answered with, by its path."""
    service, name = path.rsplit(".", 1)[-1].split("/")
    return GetMessageClass(pb.DESCRIPTOR.services_by_name[service].methods_by_name[name].output_type)


def make_server(net: ClientNetwork, broker_id: int, process: Process) -> Callable[..., MemoryServer]:
    """For `tinymq.app.Outside.server`."""

    def make(limits: Limits, services: Services) -> MemoryServer:
        return MemoryServer(net, broker_id, process, services)

    return make


class MemoryForwarding:
    """A broker's way to the client ports of the others: see tinymq.rpc.forwarding.Forwarding."""

    def __init__(self, net: ClientNetwork, broker_id: int) -> None:
        self._net = net
        self._broker_id = broker_id
        self._links: dict[str, MemoryLink] = {}
        self._closed = False

    async def ask(self, address: str, method: str, request: Any, timeout_s: float, metadata: Metadata = ()) -> Any:
        if self._closed:
            raise Closed("this broker stops")
        link = self._links.setdefault(address, MemoryLink(self._net, self._broker_id, address))
        return await link.ask(f"{SERVICE}/{method}", request, timeout_s, ((FORWARDED, "1"), *metadata))

    async def close(self) -> None:
        self._closed = True


def make_forwarding(net: ClientNetwork, broker_id: int) -> Callable[[Limits], MemoryForwarding]:
    """For `tinymq.app.Outside.forwarding`."""
    return lambda limits: MemoryForwarding(net, broker_id)
