"""The gRPC server: all services on one port, with bounds, health and reflection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tinymq.access.stream_age import GRPC_AGE_SHARE, GRPC_GRACE_SHARE
from tinymq.base.config import Limits, format_address
from tinymq.base.errors import PortInUse
from tinymq.net import descriptors
from tinymq.net.connection_limits import Places
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.rpc.common.fetch_codec import FetchAnswer
from tinymq.rpc.common.metering import Metering
from tinymq.rpc.common.relayed import LOOPBACK
from tinymq.rpc.common.reply_stream import quiet_departures
from tinymq.rpc.common.request_bounds import RequestBounds
from tinymq.rpc.server.client_connections import ClientConnections
from tinymq.rpc.server.first_byte_relay import FirstByteRelay
from tinymq.rpc.server.foreign_services import ForeignServices
from tinymq.rpc.server.grpc_tls import GrpcTls
from tinymq.rpc.services.admin import AdminService
from tinymq.rpc.services.broker import BrokerService
from tinymq.rpc.services.channels import ChannelsService
from tinymq.rpc.services.dead_letters import DeadLettersService
from tinymq.rpc.services.groups import GroupsService
from tinymq.rpc.services.half_messages import HalfMessagesService
from tinymq.rpc.services.schedules import SchedulesService
from tinymq.rpc.services.transactions import TransactionsService
from tinymq.rpc.services.users import UsersService
from tinymq.rpc.services.workers import WorkersService

HANDLED_MAX = 4096  # calls at once, over all connections
HANDSHAKE_S = 10.0  # from accepting a connection to its first HTTP/2 settings
IDLE_S = 300.0  # without a call; tinymq's client connects again when necessary
ANSWERS_S = 2.0  # for waiting calls: a stop wakes them, and they end


def ages(age_s_max: float) -> list[tuple[str, int]]:
    """Return the options by which connections end in time. gRPC tells its clients, which make another one, and begin
    new calls there."""
    if math.isinf(age_s_max):
        return []
    return [
        ("grpc.max_connection_age_ms", max(1, int(age_s_max * GRPC_AGE_SHARE * 1000))),
        ("grpc.max_connection_age_grace_ms", max(1, int(age_s_max * GRPC_GRACE_SHARE * 1000))),
    ]


def options(limits: Limits, connections_max: int) -> list[tuple[str, int]]:
    """Return the channel options of every server. Pings let both ends find out that the other is gone."""
    return [
        ("grpc.max_allowed_incoming_connections", connections_max),  # the server closes any further connection at once
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
        ("grpc.max_connection_idle_ms", int(IDLE_S * 1000)),
        ("grpc.max_receive_message_length", limits.grpc_message_bytes_max),
        ("grpc.max_send_message_length", limits.grpc_message_bytes_max),
        ("grpc.max_concurrent_streams", limits.connection_streams_max),
        ("grpc.so_reuseport", 0),  # a port in use is an error, not a second listener
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]


@dataclass(frozen=True, slots=True)
class Services:
    """The services of a broker for clients."""

    broker: BrokerService
    admin: AdminService
    channels: ChannelsService
    groups: GroupsService
    workers: WorkersService
    dead_letters: DeadLettersService
    schedules: SchedulesService
    transactions: TransactionsService
    half_messages: HalfMessagesService
    users: UsersService
    queue: pb_grpc.QueueServiceServicer  # tinymq.gateway.queue_service


class RpcServer:
    """Serves from `start` to `stop`. Its health is NOT_SERVING until `set_serving`."""

    def __init__(self, limits: Limits, services: Services, tls: GrpcTls | None = None) -> None:
        """`tls`: None serves without TLS only."""
        quiet_departures()
        connections_max = descriptors.share(descriptors.limit(), limits.connections_max).clients
        self.places = Places("clients", connections_max, descriptors.host_share(connections_max))
        self._connections = ClientConnections(self.places)
        self._tls = tls
        self._relay = FirstByteRelay(self.places) if tls is not None and tls.plain else None
        self._calls = Metering(services.broker.meter)
        self._server = grpc.aio.server(
            interceptors=[ForeignServices(services.broker.gate), self._calls, RequestBounds()],
            options=[*options(limits, connections_max), *(ages(tls.age_s_max) if tls is not None else ())],
            maximum_concurrent_rpcs=HANDLED_MAX,
        )
        self._health = health.aio.HealthServicer()
        self._services = _register(self._server, services)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port that is bound. Raises PortInUse."""
        if self._relay is None:
            bound = self._listen(format_address(host, port), self._tls)
            await self._serve()
            self._connections.start(bound)
            return bound
        inner = format_address(LOOPBACK, 0)
        ports = self._listen(inner, None), self._listen(inner, self._tls)
        await self._serve()
        return await self._relay.start(host, port, *ports)

    def _listen(self, address: str, tls: GrpcTls | None) -> int:
        try:
            if tls is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, tls.credentials())
        except RuntimeError as error:
            raise PortInUse(f"cannot listen on {address}: {error}", hint="another process listens there") from None

    async def _serve(self) -> None:
        await self.set_serving(False)
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        """Set what grpc.health.v1 answers, for the process ("") and for each service."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._services):
            await self._health.set(name, status)

    async def stop(self, grace_s: float | None) -> None:
        """Wait for open calls, end the streams within `grace_s`, and close the port. None: end all at once."""
        self._connections.stop()
        if self._relay is not None:
            self._relay.stop()
        if grace_s is not None:
            await self._calls.answered(ANSWERS_S)
        await self._server.stop(grace_s)
        if self._relay is not None:
            self._relay.abort()


def _register(server: grpc.aio.Server, services: Services) -> tuple[str, ...]:
    """Add all services to the server, and return their full names."""
    add: dict[str, tuple[Any, object]] = {
        "Broker": (pb_grpc.add_BrokerServicer_to_server, services.broker),
        "Admin": (pb_grpc.add_AdminServicer_to_server, services.admin),
        "Channels": (pb_grpc.add_ChannelsServicer_to_server, services.channels),
        "Groups": (pb_grpc.add_GroupsServicer_to_server, services.groups),
        "DeadLetters": (pb_grpc.add_DeadLettersServicer_to_server, services.dead_letters),
        "Schedules": (pb_grpc.add_SchedulesServicer_to_server, services.schedules),
        "Transactions": (pb_grpc.add_TransactionsServicer_to_server, services.transactions),
        "HalfMessages": (pb_grpc.add_HalfMessagesServicer_to_server, services.half_messages),
        "Users": (pb_grpc.add_UsersServicer_to_server, services.users),
        "Workers": (pb_grpc.add_WorkersServicer_to_server, services.workers),
        "QueueService": (pb_grpc.add_QueueServiceServicer_to_server, services.queue),
    }
    for add_to_server, service in add.values():
        add_to_server(service, server)
    packed = grpc.stream_stream_rpc_method_handler(
        services.broker.Fetch,
        request_deserializer=pb.FetchRequest.FromString,
        response_serializer=FetchAnswer.SerializeToString,
    )
    broker = pb.DESCRIPTOR.services_by_name["Broker"].full_name
    server.add_registered_method_handlers(broker, {"Fetch": packed})  # replaces the generated handler
    return tuple(pb.DESCRIPTOR.services_by_name[name].full_name for name in add)
