"""A broker's HTTP port for monitoring, and the meter behind it. Without `metrics_listen` a broker has neither.

/metrics   for Prometheus (docs/metrics.md)
/status    the broker as JSON; 200 while it runs, else 503

While callers are checked, both need a token, unless the port listens on loopback only (doorkeeper.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus

from prometheus_client import CollectorRegistry, ProcessCollector

from tinymq.base.clock import Clock
from tinymq.base.config import format_address, is_loopback, parse_address
from tinymq.base.meter import Meter, Unmetered
from tinymq.metrics.doorkeeper import Doorkeeper
from tinymq.metrics.http import HttpServer, Response
from tinymq.metrics.measures import Measures
from tinymq.metrics.page import render
from tinymq.metrics.state import StateCollector
from tinymq.metrics.status import describe, dump
from tinymq.metrics.watched import Application, Watched
from tinymq.net import descriptors
from tinymq.net.connection_limits import Places
from tinymq.net.tls_ports import PortTls
from tinymq.raft import Group, Host
from tinymq.rpc.common.broker_state import BrokerState


class Endpoint:
    """Listens from `start` to `stop`. Every broker has one, with `metrics_listen` or without."""

    def __init__(self, app: Application, clock: Clock) -> None:
        self.address = ""  # of the port, host:port; "" while it does not listen
        self._watched = Watched(app)
        self._clock = clock
        self._began_s = clock.monotonic()
        self.server: HttpServer | None = None
        self._registry = CollectorRegistry()  # each broker has its own, because brokers share a process in tests
        self._measures: Measures | None = None
        self._in_turn = asyncio.Lock()  # the port renders one page at a time
        if app.config.metrics_listen:
            self._measures = Measures(self._registry, clock)
            self._registry.register(StateCollector(self._watched, self._measures, clock))
            ProcessCollector(registry=self._registry)

    @property
    def meter(self) -> Meter:
        """The meter to which the broker reports its work."""
        return self._measures if self._measures is not None else Unmetered()

    async def start(self, host: Host, tls: PortTls | None = None) -> None:
        """Listen if `metrics_listen` is set. On loopback it listens without TLS: nothing leaves the machine. Raises
        PortInUse, InvalidConfig."""
        self._watched.host = host
        listen = self._watched.app.config.metrics_listen
        if listen:
            name, port = parse_address(listen)
            shares = descriptors.share(descriptors.limit(), self._watched.app.config.limits.connections_max)
            routes = {"/metrics": self._metrics, "/status": self._status}
            doorkeeper = Doorkeeper(self._watched.app.serving.gate, is_loopback(name))
            local = is_loopback(name)
            self.server = HttpServer(routes, self._clock, shares.metrics, doorkeeper.admit, None if local else tls)
            self.address = format_address(name, await self.server.start(name, port))
            self._watched.app.serving.metrics_address = self.address

    async def stop(self) -> None:
        """Close the port. Does nothing if the port is closed."""
        server, self.server = self.server, None
        if server is not None:
            await server.stop()

    @property
    def places(self) -> Places | None:
        """The places of the port's connections, while it listens."""
        return self.server.places if self.server is not None else None

    def group_changed(self, group: Group) -> None:
        """Note that the role, term or leader of a replica may have changed."""
        if self._measures is not None:
            self._measures.group_changed(group)

    async def _pause(self) -> None:
        await self._clock.sleep(0)

    async def _metrics(self, headers: Mapping[str, str]) -> Response:
        async with self._in_turn:
            body, content_type = await render(self._registry, headers.get("accept", ""), self._pause)
        return Response(HTTPStatus.OK, body, content_type)

    async def _status(self, headers: Mapping[str, str]) -> Response:
        async with self._in_turn:
            document = await describe(
                self._watched,
                uptime_s=self._clock.monotonic() - self._began_s,
                wall_time_s=self._clock.wall_us() / 1e6,
                errors=self._measures.errors() if self._measures is not None else {},
                pause=self._pause,
            )
        runs = self._watched.app.serving.state is BrokerState.RUNNING
        return Response(
            HTTPStatus.OK if runs else HTTPStatus.SERVICE_UNAVAILABLE, dump(document), "application/json; charset=utf-8"
        )
