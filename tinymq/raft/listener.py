"""The accepting half of TCP between brokers: strangers, until they prove who they are, and what they then send.

What belongs here: accepted connections, one per peer and channel, and a bound on strangers. What may not:
dialling (link.py), and what a peer's identity means to other connections (tcp.py).
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable

import structlog

from tinymq.clock import Clock
from tinymq.config import Limits, format_address
from tinymq.errors import BrokerUnreachable, Closed, InvalidConfig, NotReady, PortInUse, QuotaExceeded, TinymqError
from tinymq.framing import Chunk
from tinymq.proto import peer_pb2
from tinymq.raft.connection import Connection
from tinymq.raft.handshake import Handshake
from tinymq.raft.transport import HANDSHAKE_TIMEOUT_S, HANDSHAKES_MAX, Channel

BACKLOG = 128
REJECTIONS_LOGGED_MAX = 256  # different ones; then logging them begins anew

logger = structlog.get_logger("tinymq.raft.transport")


class Listener:
    """Accepts connections. A newer one of the same peer and channel closes the older (pysyncobj hazard 3:
    what an older connection still holds must not be believed after a newer one has spoken)."""

    def __init__(
        self,
        handshake: Callable[[], Handshake],
        limits: Limits,
        clock: Clock,
        *,
        on_open: Callable[[Connection], None],
        on_message: Callable[[Connection, peer_pb2.Peer, Chunk], None],
        on_rejected: Callable[[str, TinymqError], None],
    ) -> None:
        self.accepted: dict[tuple[int, Channel], Connection] = {}
        self._handshake = handshake
        self._limits = limits
        self._clock = clock
        self._on_open = on_open
        self._on_message = on_message
        self._on_rejected = on_rejected
        self._strangers: dict[Connection, None] = {}  # accepted and not yet open; the oldest first
        self._logged: set[tuple[str, str]] = set()  # (host, code) of rejections: each is logged once
        self._server: asyncio.Server | None = None
        self._stopped = False

    @property
    def started(self) -> bool:
        """Whether it listens, or has."""
        return self._server is not None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port really bound; only while started."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Listen. Raises PortInUse, and InvalidConfig for an address that is not this machine's."""
        assert self._server is None
        where = format_address(host, port)
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._accept,
                host,
                port,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if tls else None,
                backlog=BACKLOG,
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(f"{where} is in use", hint="stop what listens there, or choose another port") from error
            raise InvalidConfig(f"cannot listen on {where}: {error.strerror or error}") from error

    async def stop(self) -> None:
        """Close everything; nothing is told of it."""
        self._stopped = True
        if self._server is not None:
            self._server.close()
        connections = [*self.accepted.values(), *self._strangers]
        for connection in connections:
            connection.close(Closed("this broker stops"))
        await asyncio.gather(*(connection.lost for connection in connections))

    def _accept(self) -> Connection:
        connection = Connection(
            self._handshake(),
            self._limits,
            self._clock,
            on_open=self._opened,
            on_message=self._on_message,
            on_lost=self._lost,
        )
        self._strangers[connection] = None
        if len(self._strangers) > HANDSHAKES_MAX:
            next(iter(self._strangers)).close(QuotaExceeded("too many connections without a handshake"))
        if self._stopped:
            connection.close(Closed("this broker stops"))
        return connection

    def _opened(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        key = (connection.peer.broker_id, connection.handshake.channel)
        older = self.accepted.get(key)
        self.accepted[key] = connection
        if older is not None:
            older.close(Closed("a newer connection took its place"))
        self._on_open(connection)

    def _lost(self, connection: Connection, reason: TinymqError) -> None:
        self._strangers.pop(connection, None)
        if connection.opened:
            key = (connection.peer.broker_id, connection.handshake.channel)
            if self.accepted.get(key) is connection:
                del self.accepted[key]
        if self._stopped or isinstance(reason, Closed | BrokerUnreachable):
            return  # an end like any other
        self._log(connection.remote, reason)
        self._on_rejected(connection.remote, reason)

    def _log(self, remote: str, reason: TinymqError) -> None:
        host = remote.rpartition(":")[0]
        if (host, reason.code) in self._logged:
            return
        if len(self._logged) >= REJECTIONS_LOGGED_MAX:
            self._logged.clear()
        self._logged.add((host, reason.code))
        log = logger.info if isinstance(reason, NotReady) else logger.warning  # it waits for its cluster, as we do
        log("peer turned away", remote=remote, code=reason.code, reason=reason.message, hint=reason.hint)
