"""The two ports for clients, gRPC's and the stream port. Both open and close together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from tinymq.base.config import ANY_HOST, BrokerConfig, Limits, format_address, is_loopback, parse_address
from tinymq.net.connection_limits import Places
from tinymq.rpc.server.grpc_tls import GrpcTls
from tinymq.rpc.server.server import Services
from tinymq.rpc.server.stream_server import StreamServer


class Server(Protocol):
    """A server of all services (tinymq.rpc.server.server.RpcServer)."""

    @property
    def places(self) -> Places | None:
        """The places of its connections. None: its connections take no file descriptors."""
        ...

    async def start(self, host: str, port: int) -> int: ...
    async def set_serving(self, serving: bool) -> None: ...
    async def stop(self, grace_s: float | None) -> None: ...


MakeServer = Callable[[Limits, Services, GrpcTls | None], Server]


class ClientPorts:
    """From `start` to `stop`."""

    def __init__(self, config: BrokerConfig, server: Server, streams: StreamServer) -> None:
        self.server = server
        self.streams = streams if config.stream_listen else None
        self._config = config
        self._port = 0
        self._stream_port = 0

    @property
    def address(self) -> str:
        """The address that clients dial, host:port."""
        host, _ = parse_address(self._config.listen)
        return self._config.advertise or format_address(host, self._port)

    @property
    def stream_address(self) -> str:
        """The address of the stream port, host:port. "" if clients cannot reach it: they use `address` for all."""
        if not self._stream_port or self._config.stream_advertise:
            return self._config.stream_advertise if self._stream_port else ""
        own, _ = parse_address(self.address)
        host, _ = parse_address(self._config.stream_listen)
        if is_loopback(host) and not is_loopback(own):
            return ""  # clients on other machines would look for it on their own
        return format_address(own if host in ANY_HOST else host, self._stream_port)

    @property
    def places(self) -> list[Places]:
        """The places of every port that accepts connections."""
        optional_places = [self.server.places, self.streams.places if self.streams is not None else None]
        return [places for places in optional_places if places is not None]

    async def start(self) -> None:
        """Listen. Raises PortInUse, InvalidConfig; call `stop` also then."""
        if self.streams is not None:  # first: the gRPC port tells clients its address
            self._stream_port = await self.streams.start(*parse_address(self._config.stream_listen))
        self._port = await self.server.start(*parse_address(self._config.listen))

    async def set_serving(self, serving: bool) -> None:
        """Set the health that grpc.health.v1 reports."""
        await self.server.set_serving(serving)

    async def stop(self, grace_s: float | None) -> None:
        """End what is open within `grace_s` (None: at once), and close both."""
        ports = [port for port in (self.server, self.streams) if port is not None]
        await asyncio.gather(*(port.stop(grace_s) for port in ports))
