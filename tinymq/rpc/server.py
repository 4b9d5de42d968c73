"""The gRPC server: one port for clients, with bounds, health and reflection."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tinymq.config import Limits, format_address
from tinymq.errors import PortInUse
from tinymq.rpc.admin import AdminService
from tinymq.rpc.metering import Metering
from tinymq.rpc.services import BrokerService, register

HANDLED_MAX = 4096  # calls at once, over all connections


def options(limits: Limits) -> list[tuple[str, int]]:
    """What every server is bound by. Pings let both ends find out that the other is gone."""
    return [
        ("grpc.max_receive_message_length", limits.grpc_message_bytes_max),
        ("grpc.max_send_message_length", limits.grpc_message_bytes_max),
        ("grpc.max_concurrent_streams", limits.connection_streams_max),
        ("grpc.so_reuseport", 0),  # a port in use is an error, not a second listener
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]


class RpcServer:
    """Serves from `start` to `stop`. NOT_SERVING until told otherwise."""

    def __init__(self, limits: Limits, broker: BrokerService, admin: AdminService) -> None:
        self._server = grpc.aio.server(
            interceptors=[Metering(broker.meter)], options=options(limits), maximum_concurrent_rpcs=HANDLED_MAX
        )
        self._health = health.aio.HealthServicer()
        self._services = register(self._server, broker, admin)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self, host: str, port: int) -> int:
        """Listen; the port really bound. Raises PortInUse."""
        address = format_address(host, port)
        try:
            bound = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise PortInUse(f"cannot listen on {address}: {error}", hint="another process listens there") from None
        await self.set_serving(False)
        await self._server.start()
        return bound

    async def set_serving(self, serving: bool) -> None:
        """What grpc.health.v1 answers, for the process ("") and for each service."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._services):
            await self._health.set(name, status)

    async def stop(self, grace_s: float | None) -> None:
        """Take no new calls, end the open ones within `grace_s` (None: at once), close the port."""
        await self._server.stop(grace_s)
