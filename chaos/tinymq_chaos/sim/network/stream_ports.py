"""The stream port in the simulated network: its acceptor, and the links of clients that dial it.

`tinymq.rpc.server.stream_server` and `tinymq.client.net.streams` are the code that ships. Only their sockets are
replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from tinymq.base.clock import Clock
from tinymq.base.config import Limits, parse_address
from tinymq.client.net.streams import BrokerLink, check_welcome
from tinymq.net.acceptor import MakeProtocol
from tinymq.net.client_tls import ClientTls
from tinymq.net.connection_limits import ConnectionRefusal, Places
from tinymq.net.frame_socket import FrameSocket
from tinymq.net.frame_stream import FrameStream
from tinymq.net.tls_ports import PortTls
from tinymq.proto import tinymq_pb2 as pb
from tinymq_chaos.sim.network.blocking_streams import BlockingStream
from tinymq_chaos.sim.network.byte_streams import StreamConnection
from tinymq_chaos.sim.network.client_network import ClientNetwork, OpenStream
from tinymq_chaos.sim.network.links import CONNECT_POLL_S, MemoryConnector

if TYPE_CHECKING:
    from tinymq_chaos.sim.virtual.event_loop import SimProcess
    from tinymq_chaos.sim.virtual.user_threads import UserThreads

STREAM_PORTS = 10_000  # broker N's stream port is so much more than N


class MemoryAcceptor:
    """A broker's stream port, like `tinymq.net.acceptor.Acceptor`: from `start` to `close`."""

    def __init__(
        self, net: ClientNetwork, broker_id: int, process: SimProcess, places: Places, make: MakeProtocol
    ) -> None:
        self.broker_id = broker_id
        self.process = process
        self.address = ""
        self._net = net
        self._places = places
        self._make = make

    async def start(self, host: str, port: int, *, setting: str, dual_stack: bool = False) -> int:
        self.address = f"{host}:{port}"
        self._net.acceptors[self.address] = self
        return port

    def close(self) -> None:
        if self._net.acceptors.get(self.address) is self:
            del self._net.acceptors[self.address]

    def accept(self, connection: OpenStream) -> None:
        """Take a connection, or refuse it because there is no place. Called in the broker's process."""
        place = self._places.take(f"client-{connection.client}")
        if isinstance(place, ConnectionRefusal):
            connection.break_off("connection reset by peer")
            return
        protocol = self._make(place)
        assert isinstance(protocol, FrameStream)
        connection.server_end.begin(protocol)


class SimLink(BrokerLink):
    """A client's link. A thread gets a simulated stream in place of a socket."""

    threads: UserThreads

    async def _dial_blocking(self, where: str, hello: pb.StreamHello, timeout_s: float) -> FrameSocket:
        host, port = parse_address(where)
        most = self._limits.grpc_message_bytes_max
        async with asyncio.timeout(timeout_s):
            made: Any = await self._connect(lambda: cast(Any, BlockingStream(self.threads, most)), host, port, None)
            try:
                check_welcome(await made.greet(hello.SerializeToString()))
            except BaseException:
                made.close()
                raise
        return cast(FrameSocket, made)


class StreamConnector:
    """A client's place in the network, for clients that use the stream port of brokers that have one."""

    def __init__(
        self, net: ClientNetwork, calls: MemoryConnector, limits: Limits, clock: Clock, threads: UserThreads
    ) -> None:
        self._threads = threads
        self._net = net
        self._calls = calls
        self._limits = limits
        self._clock = clock

    def link(self, address: str) -> SimLink:
        link = SimLink(self._calls.link(address), self._limits, "", self._clock, connect=self.connect)
        link.threads = self._threads
        return link

    async def connect(
        self, make: Callable[[], FrameStream], host: str, port: int, tls: ClientTls | None = None
    ) -> FrameStream:
        """Connect as TCP does: a round trip, or until something answers. A paused process has accepted it, too."""
        net, client, broker_id = self._net, self._calls.number, port - STREAM_PORTS
        await net.clock.sleep(net.conditions.round_trip_s(client, broker_id))
        while net.conditions.is_cut((client, broker_id)) or net.conditions.is_cut((broker_id, client)):
            await net.clock.sleep(CONNECT_POLL_S)
        acceptor = net.acceptors.get(f"{host}:{port}")
        if acceptor is None:
            raise ConnectionRefusedError(f"{host}:{port}: connection refused")
        connection, protocol = StreamConnection(net, client, acceptor, net.rng), make()
        acceptor.process.call(lambda: acceptor.accept(connection))
        connection.client_end.begin(protocol)
        return protocol


def make_acceptor(
    net: ClientNetwork, broker_id: int, process: SimProcess
) -> Callable[[Places, MakeProtocol, PortTls | None], MemoryAcceptor]:
    """Make the value of `tinymq.app.broker_app.MachineEnv.acceptor`."""
    return lambda places, make, tls: MemoryAcceptor(net, broker_id, process, places, make)
