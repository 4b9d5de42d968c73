"""The brokers' end of the simulated network, which replaces gRPC's server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tinymq.base.config import Limits
from tinymq.rpc.server.grpc_tls import GrpcTls
from tinymq.rpc.server.server import Services
from tinymq_chaos.sim.network.client_network import ClientNetwork
from tinymq_chaos.sim.virtual.event_loop import SimProcess


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
            "HalfMessages": services.half_messages,
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


def make_server(net: ClientNetwork, broker_id: int, process: SimProcess) -> Callable[..., MemoryServer]:
    """Make the value of `tinymq.app.machine_env.MachineEnv.server`."""

    def make(limits: Limits, services: Services, tls: GrpcTls | None) -> MemoryServer:
        return MemoryServer(net, broker_id, process, services)

    return make
