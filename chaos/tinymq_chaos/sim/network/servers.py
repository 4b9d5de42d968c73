"""Who listens for clients, and what is open to them: the brokers' end of the network in the place of gRPC's server.

Clients have numbers from CLIENTS_FROM on, so that links between them and brokers are cut and slowed by the same calls
as those between brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tinymq.base.config import Limits
from tinymq.base.errors import BrokerUnreachable
from tinymq.rpc.server.server import Services
from tinymq.simulation.link_conditions import NetworkConditions
from tinymq_chaos.sim.network.calls import SimCall
from tinymq_chaos.sim.network.links import MemoryConnector
from tinymq_chaos.sim.virtual.event_loop import SimProcess, VirtualClock, VirtualLoop

CLIENTS_FROM = 100


class MemoryServer:
    """A broker's server for clients, as `tinymq.rpc.RpcServer` is one: from `start` to `stop`."""

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

    def __init__(self, loop: VirtualLoop, conditions: NetworkConditions) -> None:
        self.conditions = conditions
        self.clock = VirtualClock(loop)
        self.calls: dict[SimCall, None] = {}
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

    def calls_of(self, server: MemoryServer) -> list[SimCall]:
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
        if self.conditions.is_cut((client, broker_id)) or self.conditions.is_cut((broker_id, client)):
            return None
        server = self._servers.get(address)
        if server is None:
            raise BrokerUnreachable(f"{address}: connection refused")
        return None if server.process.paused else server


def make_server(net: ClientNetwork, broker_id: int, process: SimProcess) -> Callable[..., MemoryServer]:
    """For `tinymq.app.broker_app.MachineEnv.server`."""

    def make(limits: Limits, services: Services) -> MemoryServer:
        return MemoryServer(net, broker_id, process, services)

    return make
