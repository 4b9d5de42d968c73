"""The brokers' end of the simulated network, which replaces gRPC's server: listening servers and open calls.

Clients have numbers from CLIENTS_FROM on, so that one set of methods cuts and slows links to clients and to brokers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from tinymq.base.config import Limits
from tinymq.base.errors import BrokerUnreachable
from tinymq.rpc.server.grpc_tls import GrpcTls
from tinymq.rpc.server.server import Services
from tinymq.simulation.link_conditions import NetworkConditions
from tinymq_chaos.sim.network.byte_streams import StreamConnection
from tinymq_chaos.sim.network.calls import SimCall
from tinymq_chaos.sim.network.links import MemoryConnector
from tinymq_chaos.sim.network.stream_ports import MemoryAcceptor
from tinymq_chaos.sim.virtual.event_loop import SimProcess, VirtualClock, VirtualLoop

CLIENTS_FROM = 100


class MemoryServer:
    """A broker's server for clients, like `tinymq.rpc.RpcServer`: from `start` to `stop`."""

    places = None  # simulated connections take no file descriptors

    def __init__(self, net: ClientNetwork, broker_id: int, process: SimProcess, services: Services) -> None:
        self.broker_id = broker_id
        self.process = process
        self.address = ""
        self.listening = False
        self._net = net
        self._services = {
            "Broker": services.broker,
            "Admin": services.admin,
            "Channels": services.channels,
            "Groups": services.groups,
            "Workers": services.workers,
            "DeadLetters": services.dead_letters,
            "Schedules": services.schedules,
            "Transactions": services.transactions,
            "Users": services.users,
            "QueueService": services.queue,
        }

    async def start(self, host: str, port: int) -> int:
        self.address = f"{host}:{port}"
        self._net.listen(self)
        return port

    async def set_serving(self, serving: bool) -> None:
        pass  # grpc.health.v1 needs gRPC's own server

    async def stop(self, grace_s: float | None) -> None:
        self._net.leave(self)
        if grace_s is not None and self._net.calls_of(self):
            await asyncio.sleep(grace_s)
        for call in self._net.calls_of(self):
            call.break_off("the server has stopped")

    def servicer(self, path: str) -> Any:
        """Return the servicer of a path such as "tinymq.v1.Broker/Metadata"."""
        service, name = path.rsplit(".", 1)[-1].split("/")
        return getattr(self._services[service], name)


class ClientNetwork:
    """All listening servers, open calls and streams of a world. No process owns it."""

    def __init__(self, loop: VirtualLoop, conditions: NetworkConditions, rng: random.Random) -> None:
        self.conditions = conditions
        self.clock = VirtualClock(loop)
        self.rng = rng  # where bytes of streams are cut
        self.calls: dict[SimCall | StreamConnection, None] = {}
        self.acceptors: dict[str, MemoryAcceptor] = {}  # open stream ports, by address
        self._servers: dict[str, MemoryServer] = {}
        self._clients = CLIENTS_FROM

    def connector(self) -> MemoryConnector:
        """Return the connector of a new client."""
        self._clients += 1
        return MemoryConnector(self, self._clients)

    @property
    def clients(self) -> range:
        """Return the numbers of all clients so far."""
        return range(CLIENTS_FROM + 1, self._clients + 1)

    def listen(self, server: MemoryServer) -> None:
        """Let a process serve. Connections to an earlier process of the broker, which vanished, break now."""
        for call in [c for c in self.calls if server.broker_id in (c.server.broker_id, c.client)]:
            call.break_off("connection reset by peer")
        self._servers[server.address] = server
        server.listening = True

    def leave(self, server: MemoryServer) -> None:
        server.listening = False
        if self._servers.get(server.address) is server:
            del self._servers[server.address]

    def calls_of(self, server: MemoryServer) -> list[SimCall | StreamConnection]:
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

    def reach(self, client: int, address: str) -> MemoryServer | None:
        """Return the server that answers at an address. None: nothing answers. Raises BrokerUnreachable if it
        refuses."""
        broker_id = int(address.rsplit(":", 1)[1])
        if self.conditions.is_cut((client, broker_id)) or self.conditions.is_cut((broker_id, client)):
            return None
        server = self._servers.get(address)
        if server is None:
            raise BrokerUnreachable(f"{address}: connection refused")
        return None if server.process.paused else server


def make_server(net: ClientNetwork, broker_id: int, process: SimProcess) -> Callable[..., MemoryServer]:
    """Make the value of `tinymq.app.machine_env.MachineEnv.server`."""

    def make(limits: Limits, services: Services, tls: GrpcTls | None) -> MemoryServer:
        return MemoryServer(net, broker_id, process, services)

    return make
