"""The simulated network between clients and brokers: who listens, and which calls and streams are open.

Calls, streams, links and servers use it. It knows them by what it does to them, and imports none of them.

Clients have numbers from CLIENTS_FROM on, so that one set of methods cuts and slows links to clients and to brokers.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, Protocol

from tinymq.base.errors import BrokerUnreachable
from tinymq.simulation.link_conditions import NetworkConditions
from tinymq_chaos.sim.virtual.event_loop import SimProcess, VirtualClock, VirtualLoop

CLIENTS_FROM = 100


class Endpoint(Protocol):
    """A port of a broker's process."""

    broker_id: int
    process: SimProcess


class Server(Endpoint, Protocol):
    """The port for calls (servers.py)."""

    address: str
    listening: bool

    def servicer(self, path: str) -> Any:
        """Return the servicer of a path such as "tinymq.v1.Broker/Metadata"."""
        ...


class OneWay(Protocol):
    """The bytes that are on their way in one direction."""

    def schedule(self) -> None:
        """Deliver it when it is due."""
        ...


class OpenCall(Protocol):
    """A call (calls.py), or a stream (byte_streams.py), until it is over."""

    client: int

    @property
    def server(self) -> Endpoint: ...
    @property
    def up(self) -> OneWay: ...
    @property
    def down(self) -> OneWay: ...
    def break_off(self, why: str) -> None:
        """End both sides: the connection is gone."""
        ...


class StreamEnd(Protocol):
    """The broker's end of a stream."""

    def begin(self, protocol: asyncio.BufferedProtocol) -> None: ...


class OpenStream(OpenCall, Protocol):
    """A stream that a client has dialled."""

    @property
    def server_end(self) -> StreamEnd: ...


class Acceptor(Endpoint, Protocol):
    """The port for streams (stream_ports.py)."""

    def accept(self, connection: OpenStream) -> None:
        """Take a connection, or refuse it. Called in the broker's process."""
        ...

    def close(self) -> None: ...


class ClientNetwork:
    """All listening servers, open calls and streams of a world. No process owns it."""

    def __init__(self, loop: VirtualLoop, conditions: NetworkConditions, rng: random.Random) -> None:
        self.conditions = conditions
        self.clock = VirtualClock(loop)
        self.rng = rng  # where bytes of streams are cut
        self.calls: dict[OpenCall, None] = {}
        self.acceptors: dict[str, Acceptor] = {}  # open stream ports, by address
        self._servers: dict[str, Server] = {}
        self._clients = CLIENTS_FROM

    def add_client(self) -> int:
        """Return the number of a new client."""
        self._clients += 1
        return self._clients

    @property
    def clients(self) -> range:
        """Return the numbers of all clients so far."""
        return range(CLIENTS_FROM + 1, self._clients + 1)

    def listen(self, server: Server) -> None:
        """Let a process serve. Connections to an earlier process of the broker, which vanished, break now."""
        for call in [c for c in self.calls if server.broker_id in (c.server.broker_id, c.client)]:
            call.break_off("connection reset by peer")
        self._servers[server.address] = server
        server.listening = True

    def leave(self, server: Server) -> None:
        server.listening = False
        if self._servers.get(server.address) is server:
            del self._servers[server.address]

    def calls_of(self, server: Server) -> list[OpenCall]:
        return [call for call in self.calls if call.server is server]

    def crash(self, broker_id: int, silently: bool) -> None:
        """A broker's process is gone. If its machine is gone with it, no client is told."""
        for server in [s for s in self._servers.values() if s.broker_id == broker_id]:
            self.leave(server)
        for acceptor in [a for a in self.acceptors.values() if a.broker_id == broker_id]:
            acceptor.close()
        if not silently:
            for call in [c for c in self.calls if broker_id in (c.server.broker_id, c.client)]:
                call.break_off("connection reset by peer")

    def reset(self, a: int, b: int) -> None:
        """Close all open calls between a client and a broker, in either order."""
        for call in [c for c in self.calls if {c.client, c.server.broker_id} == {a, b}]:
            call.break_off("connection reset by peer")

    def healed(self) -> None:
        """Deliver messages that cuts held back."""
        for call in list(self.calls):
            call.up.schedule()
            call.down.schedule()

    def reach(self, client: int, address: str) -> Server | None:
        """Return the server that answers at an address. None: nothing answers. Raises BrokerUnreachable if it
        refuses."""
        broker_id = int(address.rsplit(":", 1)[1])
        if self.conditions.is_cut((client, broker_id)) or self.conditions.is_cut((broker_id, client)):
            return None
        server = self._servers.get(address)
        if server is None:
            raise BrokerUnreachable(f"{address}: connection refused")
        return None if server.process.paused else server
