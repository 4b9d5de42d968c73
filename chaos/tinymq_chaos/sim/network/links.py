"""The client's end of the simulated network, which replaces gRPC's: the same serialised messages over virtual links.

It has a client's `Connector` (tinymq.client.net.ports), a broker's link to the other brokers, and calls by the path of
a method, as programs without tinymq's client make them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from tinymq.base.errors import BrokerUnreachable, OutcomeUnknown
from tinymq.client.net.ports import Fetched, Metadata, PackedBatch
from tinymq.client.net.wire import join, read_fetched
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import from_wire
from tinymq.proto.methods import METHODS, Method, method_of
from tinymq_chaos.sim.network.calls import DONE, FAILED, ServerCall, SimCall
from tinymq_chaos.sim.network.client_network import ClientNetwork, Server

CONNECT_POLL_S = 0.05  # between two attempts to connect

_STREAMS: dict[str, Any] = {
    "Broker/Produce": pb.ProduceRequest,
    "Broker/Fetch": pb.FetchRequest,
    "Workers/Work": pb.WorkRequest,
}


class MemoryConnector:
    """A client's place in the network."""

    def __init__(self, net: ClientNetwork, number: int) -> None:
        self.number = number
        self._net = net

    def link(self, address: str) -> MemoryLink:
        return MemoryLink(self._net, self.number, address)


def client_connector(net: ClientNetwork) -> MemoryConnector:
    """Return the connector of a new client."""
    return MemoryConnector(net, net.add_client())


class MemoryLink:
    """A client's connection to one broker: see tinymq.client.net.ports.Link."""

    def __init__(self, net: ClientNetwork, client: int, address: str) -> None:
        self._net = net
        self._client = client
        self._address = address
        self._known: Server | None = None  # the server that this link is connected to

    @property
    def address(self) -> str:
        return self._address

    async def call(
        self, request: Message, timeout_s: float, *, method: Method | None = None, metadata: Metadata = ()
    ) -> Any:
        path = (method or method_of(request)).path[1:]
        return await self.ask(path, request, timeout_s, metadata)

    async def ask(self, path: str, request: Any, timeout_s: float, metadata: Metadata = ()) -> Any:
        """Make a unary call by its path, such as "tinymq.v1.QueueService/ConsumeMessage".

        Raises the error of the call's status, BrokerUnreachable, or OutcomeUnknown.
        """
        call: SimCall | None = None
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
        if data[:1] == FAILED:
            raise from_wire(pb.Error.FromString(data[1:]))
        return METHODS[f"/{path}"].reply.FromString(data[1:])

    async def open_produce(self, timeout_s: float) -> ProduceCall:
        return ProduceCall(await self._open("Broker/Produce", timeout_s), self._address)

    async def open_fetch(self, timeout_s: float) -> FetchCall:
        return FetchCall(await self._open("Broker/Fetch", timeout_s), self._address)

    async def open_work(self, timeout_s: float) -> WorkCall:
        return WorkCall(await self._open("Workers/Work", timeout_s), self._address)

    async def open_blocking(self, timeout_s: float) -> None:
        return None  # the simulation has no threads

    async def close(self) -> None:
        self._known = None

    async def _open(self, name: str, timeout_s: float) -> SimCall:
        try:
            async with asyncio.timeout(timeout_s):
                call = await self._dial()
        except TimeoutError:
            raise BrokerUnreachable(f"{self._address}: no connection within {timeout_s:.1f} s") from None
        servicer = call.server.servicer(f"tinymq.v1.{name}")
        call.serve(lambda served: _stream(served, servicer, _STREAMS[name]))
        return call

    async def _dial(self, timeout_s: float | None = None, metadata: Metadata = ()) -> SimCall:
        """Connect, if the link is not connected: one round trip, or until a broker answers."""
        known = self._known
        server = self._net.reach(self._client, self._address) if known is not None and known.listening else None
        if server is None or server is not known:
            broker_id = int(self._address.rsplit(":", 1)[1])
            await self._net.clock.sleep(self._net.conditions.round_trip_s(self._client, broker_id))
            while (server := self._net.reach(self._client, self._address)) is None:
                await self._net.clock.sleep(CONNECT_POLL_S)
            self._known = server
        return SimCall(self._net, self._client, server, timeout_s, metadata)


async def _answer(call: SimCall, servicer: Any, kind: Any) -> None:
    data = await call.up.receive()
    assert data is not None
    reply = await servicer(kind.FromString(data), ServerCall(call, kind))
    call.down.send(DONE + reply.SerializeToString())


async def _stream(call: SimCall, servicer: Any, kind: Any) -> None:
    served = ServerCall(call, kind)
    await servicer(served.requests(), served)


class _StreamCall:
    """The common part of a client's streams."""

    def __init__(self, call: SimCall, address: str) -> None:
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
    async def write(self, batches: Sequence[PackedBatch]) -> None:
        await self.send(join(batches))

    async def read(self) -> pb.ProduceReply:
        return pb.ProduceReply.FromString(await self.receive())


class FetchCall(_StreamCall):
    received_bytes = 0  # messages arrive whole

    async def write(self, request: pb.FetchRequest) -> None:
        await self.send(request.SerializeToString())

    async def read(self) -> Fetched:
        return read_fetched(await self.receive())


class WorkCall(_StreamCall):
    async def write(self, request: pb.WorkRequest) -> None:
        await self.send(request.SerializeToString())

    async def read(self) -> pb.WorkReply:
        return pb.WorkReply.FromString(await self.receive())

    async def finish(self) -> None:
        self._call.up.send(None)


class AnyBroker:
    """Unary calls by their paths, each to any one of several brokers: see ../workloads/context.py, Caller."""

    def __init__(self, links: Sequence[MemoryLink], rng: random.Random) -> None:
        self._links = links
        self._rng = rng

    async def ask(self, path: str, request: Any, timeout_s: float) -> Any:
        return await self._rng.choice(self._links).ask(path, request, timeout_s)


def make_connector(net: ClientNetwork, broker_id: int) -> Callable[..., MemoryConnector]:
    """Make the value of `tinymq.app.machine_env.MachineEnv.connector`, for the client in the broker's gateway."""
    return lambda limits, tls: MemoryConnector(net, broker_id)
