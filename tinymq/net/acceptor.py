"""Listens on a port and accepts connections within bounds. Once they are accepted, asyncio serves them.

It replaces asyncio's own server, which has no bound. When no file descriptor is left, that server logs a hundred
tracebacks a second in Python 3.11, and tries again a hundred times as often.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable

import structlog

from tinymq.base.config import format_address
from tinymq.base.errors import InvalidConfig, PortInUse
from tinymq.net.connection_limits import ConnectionRefusal, Place, Places
from tinymq.net.descriptors import OUT_OF_RESOURCES
from tinymq.net.tls_failures import reason_of
from tinymq.net.tls_ports import HANDSHAKES_MAX, PortTls, speaks_tls

BACKLOG = 128
BURST_MAX = 32  # connections accepted in one turn of the loop
PAUSE_S = 0.2  # until the next attempt when there is no descriptor
LOG_EVERY_S = 10.0  # for each reason

logger = structlog.get_logger("tinymq.net.acceptor")

MakeProtocol = Callable[[Place], asyncio.BaseProtocol]
"""Makes the protocol of an accepted connection. The protocol calls the place's `leave` in `connection_lost`."""


class RefusalLog:
    """Logs that a port refuses connections: once in a while, with their number."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._unlogged: Counter[ConnectionRefusal] = Counter()
        self._logged_s: dict[ConnectionRefusal, float] = {}

    def note(self, reason: ConnectionRefusal, count: int = 1, last: str = "") -> None:
        """Note that `count` connections were refused just now. `last`: more about the last one."""
        self._unlogged[reason] += count
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s.get(reason, -LOG_EVERY_S) < LOG_EVERY_S:
            return
        self._logged_s[reason] = now_s
        places = self._places
        logger.warning(
            "connections_refused", port=places.port, reason=reason.value, count=self._unlogged.pop(reason),
            open=places.open, connections_max=places.connections_max, host_connections_max=places.host_connections_max,
            **({"last": last} if last else {}),
        )  # fmt: skip


class Acceptor:
    """Accepts connections on one port, from `start` to `close`. All calls on one loop."""

    def __init__(self, places: Places, make: MakeProtocol, tls: PortTls | None = None) -> None:
        """`tls`: None takes connections without TLS only."""
        self.places = places
        self._make = make
        self._tls = tls
        self._sockets: list[socket.socket] = []
        # Connections that asyncio does not serve yet, the oldest first: with TLS, those in its handshake.
        self._connecting: dict[asyncio.Task[None], Place] = {}
        self._paused: asyncio.TimerHandle | None = None
        self._log = RefusalLog(places)

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that are really bound. Only valid while the acceptor listens."""
        host, port = self._sockets[0].getsockname()[:2]
        return host, port

    async def start(self, host: str, port: int, *, setting: str, dual_stack: bool = False) -> int:
        """Listen, and return the port that is really bound. `dual_stack`: "::" also accepts IPv4, where the system can.

        Raises PortInUse, and InvalidConfig for an address that is not this machine's. Both name `setting`, where the
        address is configured.
        """
        try:
            return await self._listen(host, port, dual_stack)
        except OSError as error:
            where = format_address(host, port)
            if error.errno == errno.EADDRINUSE:
                hint = f"stop the process that listens there, or choose another {setting}"
                raise PortInUse(f"{setting}: {where} is in use", hint=hint) from error
            raise InvalidConfig(f"{setting}: cannot listen on {where}: {error.strerror or error}") from error

    async def _listen(self, host: str, port: int, dual_stack: bool) -> int:
        loop = asyncio.get_running_loop()
        if dual_stack and host == "::" and socket.has_dualstack_ipv6():
            self._sockets = [_listening(socket.AF_INET6, (host, port), v6_only=False)]
        else:
            addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            try:
                for family, address in dict.fromkeys((family, address) for family, _, _, _, address in addresses):
                    if self._sockets and not port:  # a free port, but the same one for all addresses of the name
                        address = (address[0], self.address[1], *address[2:])
                    self._sockets.append(_listening(family, address))
            except OSError:
                self.close()
                raise
        for sock in self._sockets:
            loop.add_reader(sock, self._accept, sock)
        return self.address[1]

    def close(self) -> None:
        """Stop accepting. Open connections go on."""
        if self._paused is not None:
            self._paused.cancel()
            self._paused = None
        if self._tls is not None:
            for task in list(self._connecting):
                task.cancel()
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(BURST_MAX):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    continue  # the connection ended before it was accepted
                self._pause()
                return
            place = self.places.take(str(address[0]) if isinstance(address, tuple) else "")
            if isinstance(place, ConnectionRefusal):
                sock.close()
                self._log.note(place)
            else:
                if self._tls is not None and len(self._connecting) >= HANDSHAKES_MAX:
                    self._end_a_handshake()
                task = asyncio.get_running_loop().create_task(self._connect(sock, place))
                self._connecting[task] = place
                task.add_done_callback(self._connecting.pop)

    async def _connect(self, sock: socket.socket, place: Place) -> None:
        sock.setblocking(False)
        try:
            context = await self._context_for(sock)
            loop = asyncio.get_running_loop()
            if self._tls is None or context is None:
                await loop.connect_accepted_socket(lambda: self._make(place), sock)
            else:
                await loop.connect_accepted_socket(
                    lambda: _AfterHandshake(lambda: self._make(place)), sock, ssl=context,
                    ssl_handshake_timeout=self._tls.handshake_s,
                )  # fmt: skip
        except ssl.SSLError as error:  # asyncio has closed the socket
            self.places.refuse(ConnectionRefusal.TLS)
            self._log.note(ConnectionRefusal.TLS, last=f"{place.host}: {reason_of(error)}")
            place.leave()
        except OSError:
            place.leave()
        except BaseException:
            place.leave()
            raise

    async def _context_for(self, sock: socket.socket) -> ssl.SSLContext | None:
        """Return the context of a connection's TLS; None: the connection has no TLS. Raises OSError if it must have it.

        The first byte is awaited in any case: a connection that sends nothing costs a socket and a task, while asyncio
        makes 300 KiB of buffers for one with TLS.
        """
        tls = self._tls
        if tls is None:
            return None
        try:
            async with asyncio.timeout(tls.handshake_s):
                encrypted = await speaks_tls(sock)
            if not encrypted and not tls.plain:
                self.places.refuse(ConnectionRefusal.PLAIN)
                self._log.note(ConnectionRefusal.PLAIN)
                raise ConnectionRefusedError("this port takes connections with TLS only")
        except BaseException:
            sock.close()  # asyncio does not know it yet
            raise
        return tls.context() if encrypted else None

    def _end_a_handshake(self) -> None:
        """End the oldest unfinished connection of the host that has most of them, so that other hosts' go on."""
        hosts = Counter(place.host for place in self._connecting.values())
        busiest = max(hosts.values())
        next(task for task, place in self._connecting.items() if hosts[place.host] == busiest).cancel()

    def _pause(self) -> None:
        """Without a descriptor, leave further connections in the system's queue for a while."""
        self.places.refuse(ConnectionRefusal.DESCRIPTORS)
        self._log.note(ConnectionRefusal.DESCRIPTORS)
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            loop.remove_reader(sock)
        if self._paused is None:
            self._paused = loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._paused = None
        for sock in self._sockets:
            asyncio.get_running_loop().add_reader(sock, self._accept, sock)


class _AfterHandshake(asyncio.Protocol):
    """Stands in for the protocol of a connection until TLS's handshake is done. asyncio wants a protocol before, and
    tells it nothing when the handshake fails."""

    def __init__(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = self._make()
        transport.set_protocol(made)
        made.connection_made(transport)


def _listening(family: int, address: tuple[object, ...], *, v6_only: bool = True) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(v6_only))
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
