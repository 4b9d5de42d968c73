"""A small HTTP server for read-only pages: GET and HEAD, one request per connection, everything bounded. h11 reads and
writes the protocol; this module adds deadlines and bounds. A connection is

    reading     until the request's head is there: at most REQUEST_BYTES_MAX bytes and REQUEST_S seconds
    answering   until the answer is made: reads nothing more
    closing     until it is written: together with answering at most ANSWER_S seconds

and a connection that is late is cut off. When more than `connections_max` are open, the oldest one that is still
sending its request is closed, so that a client that opens many and sends nothing keeps no other client out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import h11
import structlog

from tinymq.base.clock import Clock, Timer
from tinymq.net import descriptors
from tinymq.net.acceptor import Acceptor
from tinymq.net.connection_limits import ConnectionRefusal, Place, Places, host_of
from tinymq.net.tls_ports import PortTls

REQUEST_BYTES_MAX = 16 * 1024
REQUEST_S = 5.0
ANSWER_S = 30.0
TEXT = "text/plain; charset=utf-8"

logger = structlog.get_logger("tinymq.metrics")


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to one request."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


Route = Callable[[Mapping[str, str]], Awaitable[Response]]
"""Answers a request by its headers, whose names are in lower case."""

Admit = Callable[[str, Mapping[str, str], bool], Response | None]
"""Returns the refusal of a request, by the caller's host, the headers, and whether TLS protects it. None: it is
served."""


class HttpServer:
    """Listens from `start` to `stop`. All calls on one loop."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        clock: Clock,
        connections_max: int = descriptors.METRICS_CONNECTIONS_MAX,
        admit: Admit = lambda host, headers, encrypted: None,
        tls: PortTls | None = None,
        setting: str = "metrics_listen",
    ) -> None:
        """`setting`: where the address is configured, for errors."""
        self.routes = routes
        self._tls = tls
        self._setting = setting
        self.admit = admit
        self.clock = clock
        self.connections_max = connections_max
        self.places = Places("metrics", 2 * connections_max)  # closed connections leave with a delay
        self._open: dict[_Connection, None] = {}  # the oldest first
        self._acceptor: Acceptor | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the bound port. Raises PortInUse; InvalidConfig for an address of another machine."""
        acceptor = Acceptor(self.places, lambda place: _Connection(self, place), self._tls)
        bound = await acceptor.start(host, port, setting=self._setting)
        self._acceptor = acceptor
        return bound

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._acceptor is not None:
            self._acceptor.close()
        for connection in list(self._open):
            connection.abort()
        answering = list(self._answering)
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)

    # ---- of the connections ------------------------------------------------------------------------------

    def opened(self, connection: _Connection) -> None:
        self._open[connection] = None
        if len(self._open) > self.connections_max:
            self.places.refuse(ConnectionRefusal.FULL)
            next((each for each in self._open if each.reading), connection).abort()

    def closed(self, connection: _Connection) -> None:
        self._open.pop(connection, None)

    def answer(self, connection: _Connection, request: h11.Request) -> None:
        """Find the route, and send its answer."""
        path = request.target.decode("ascii", "replace").partition("?")[0]
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
        route = self.routes.get(path)
        refusal = self.admit(connection.host, headers, connection.encrypted)
        if refusal is not None:
            connection.send(refusal)
        elif route is None:
            connection.send(plain(HTTPStatus.NOT_FOUND, "there are " + ", ".join(self.routes)))
        elif request.method not in (b"GET", b"HEAD"):
            connection.send(plain(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD are", headers={"allow": "GET, HEAD"}))
        elif headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            connection.send(plain(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "a request here has no body"))
        else:
            task = asyncio.get_running_loop().create_task(self._answer(connection, path, route, headers))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, connection: _Connection, path: str, route: Route, headers: Mapping[str, str]) -> None:
        try:
            answer = await route(headers)
        except Exception:
            logger.exception("request_failed", path=path)
            answer = plain(HTTPStatus.INTERNAL_SERVER_ERROR, "the log of this process says why")
        connection.send(answer)


def plain(status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that says why there is no page."""
    return Response(status, f"{status.value} {status.phrase}: {message}\n".encode(), headers=headers or {})


class _Connection(asyncio.Protocol):
    """A connection: it reads one request, and sends one answer."""

    def __init__(self, server: HttpServer, place: Place) -> None:
        self.reading = True
        self._server = server
        self._place = place
        self.host = ""  # of the caller
        self.encrypted = False
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        self._head_only = False
        self._transport: asyncio.Transport | None = None
        self._timer: Timer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.host = host_of(str((transport.get_extra_info("peername") or ("",))[0]))
        self.encrypted = transport.get_extra_info("ssl_object") is not None
        self._limit(REQUEST_S)
        self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        if not self.reading or self._transport is None:
            return
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._end_reading()
            self.send(plain(HTTPStatus(error.error_status_hint), str(error)))
            return
        if isinstance(event, h11.Request):
            self._head_only = event.method == b"HEAD"
            self._end_reading()
            self._server.answer(self, event)

    def _end_reading(self) -> None:
        assert self._transport is not None
        self.reading = False
        self._transport.pause_reading()
        self._limit(ANSWER_S)

    def send(self, answer: Response) -> None:
        """Send the answer and end the connection. Do nothing if the connection is gone."""
        if self._transport is None or self._transport.is_closing():
            return
        headers = {
            "content-type": answer.content_type,
            "content-length": str(len(answer.body)),
            "connection": "close",
            **answer.headers,
        }
        status = answer.status
        head = h11.Response(status_code=status.value, reason=status.phrase, headers=list(headers.items()))
        events: list[h11.Event] = [head, h11.EndOfMessage()]
        if not self._head_only:
            events.insert(1, h11.Data(data=answer.body))
        self._transport.write(b"".join(self._http.send(event) or b"" for event in events))
        self._transport.close()

    def abort(self) -> None:
        """End the connection at once, and lose unsent bytes."""
        if self._transport is not None:
            self._transport.abort()
            self._server.closed(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._transport = self._timer = None
        self._server.closed(self)
        self._place.leave()

    def _limit(self, seconds: float) -> None:
        """End the connection if its present step takes longer than `seconds`."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._server.clock.call_later(seconds, self.abort)
