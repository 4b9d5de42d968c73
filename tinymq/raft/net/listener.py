"""The accepting half of TCP between brokers: strangers until they prove their identity, then their messages.

Accepted connections, one per peer and channel, and a bound on strangers belong here. Dialling (link.py) and what a
peer's identity means to other connections (tcp.py) do not.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable

import structlog

from tinymq.base.clock import Clock
from tinymq.base.config import Limits
from tinymq.base.errors import BrokerUnreachable, Closed, NotReady, QuotaExceeded, TinymqError
from tinymq.net import descriptors
from tinymq.net.acceptor import Acceptor
from tinymq.net.connection_limits import Place, Places
from tinymq.net.framing import Chunk
from tinymq.net.tls_ports import PortTls
from tinymq.net.unfinished_frames import FrameRoom
from tinymq.proto import peer_pb2
from tinymq.raft.net.connection import Connection
from tinymq.raft.net.handshake import Handshake
from tinymq.raft.net.transport import HANDSHAKES_MAX, Channel

REJECTIONS_LOGGED_MAX = 256  # different ones; after that the set is cleared

logger = structlog.get_logger("tinymq.raft.net.transport")


class Listener:
    """Accepts connections. A newer one of the same peer and channel closes the older one.

    Hazard 3: what an older connection still holds must not be taken after a message of a newer one.
    """

    def __init__(
        self,
        handshake: Callable[[], Handshake],
        limits: Limits,
        clock: Clock,
        *,
        age_s_max: float = math.inf,
        on_open: Callable[[Connection], None],
        on_message: Callable[[Connection, peer_pb2.Peer, Chunk], None],
        on_rejected: Callable[[str, TinymqError], None],
    ) -> None:
        """`age_s_max`: of a connection, at which it is ended if the dialer has not done so."""
        self.accepted: dict[tuple[int, Channel], Connection] = {}
        self._handshake = handshake
        self._limits = limits
        self._clock = clock
        self._age_s_max = age_s_max
        self._on_open = on_open
        self._on_message = on_message
        self._on_rejected = on_rejected
        self.places = Places("peers", descriptors.share(descriptors.limit(), limits.connections_max).peers)
        self._strangers_max = max(1, min(HANDSHAKES_MAX, self.places.connections_max // 2))
        self._strangers: dict[Connection, Place] = {}  # connections without a completed handshake, oldest first
        self._taken: dict[Connection, Place] = {}  # the places of all accepted connections
        self._room = FrameRoom(limits.peer_unfinished_bytes_max)
        self._logged: set[tuple[str, str]] = set()  # (host, code) of rejections: each is logged once
        self._acceptor: Acceptor | None = None
        self._stopped = False

    @property
    def started(self) -> bool:
        """Does it listen, or did it?"""
        return self._acceptor is not None

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that are really bound; only while started."""
        assert self._acceptor is not None
        return self._acceptor.address

    async def start(self, host: str, port: int, tls: PortTls | None) -> None:
        """Listen. Raises PortInUse, and InvalidConfig for an address that is not this machine's."""
        assert self._acceptor is None
        acceptor = Acceptor(self.places, self._accept, tls)
        await acceptor.start(host, port, setting="peer_listen")
        self._acceptor = acceptor

    async def stop(self) -> None:
        """Close everything, without a callback."""
        self._stopped = True
        if self._acceptor is not None:
            self._acceptor.close()
        connections = [*self.accepted.values(), *self._strangers]
        for connection in connections:
            connection.close(Closed("this broker stops"))
        await asyncio.gather(*(connection.lost for connection in connections))

    def _accept(self, place: Place) -> Connection:
        connection = Connection(
            self._handshake(),
            self._limits,
            self._clock,
            on_open=self._opened,
            on_message=self._on_message,
            on_lost=self._lost,
            room=self._room,
        )
        self._taken[connection] = self._strangers[connection] = place
        if len(self._strangers) > self._strangers_max:
            self._oldest_stranger().close(QuotaExceeded("too many connections without a handshake"))
        if self._stopped:
            connection.close(Closed("this broker stops"))
        return connection

    def _oldest_stranger(self) -> Connection:
        """Return the oldest connection without a handshake of the host that has most of them, so that other hosts'
        handshakes go on."""
        hosts = Counter(place.host for place in self._strangers.values())
        most = max(hosts.values())
        return next(each for each, place in self._strangers.items() if hosts[place.host] == most)

    def _opened(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        key = (connection.peer.broker_id, connection.handshake.channel)
        older = self.accepted.get(key)
        self.accepted[key] = connection
        if older is not None:
            older.close(Closed("a newer connection has replaced it"))
        connection.end_after(self._age_s_max)
        self._on_open(connection)

    def _lost(self, connection: Connection, reason: TinymqError) -> None:
        self._strangers.pop(connection, None)
        self._taken.pop(connection).leave()
        if connection.opened:
            key = (connection.peer.broker_id, connection.handshake.channel)
            if self.accepted.get(key) is connection:
                del self.accepted[key]
        if self._stopped or isinstance(reason, Closed | BrokerUnreachable):
            return  # an ordinary end of a connection
        self._log(connection.remote, reason)
        self._on_rejected(connection.remote, reason)

    def _log(self, remote: str, reason: TinymqError) -> None:
        host = remote.rpartition(":")[0]
        if (host, reason.code) in self._logged:
            return
        if len(self._logged) >= REJECTIONS_LOGGED_MAX:
            self._logged.clear()
        self._logged.add((host, reason.code))
        log = (
            logger.info if isinstance(reason, NotReady) else logger.warning
        )  # it belongs to no cluster yet, which is nothing unusual
        log("peer turned away", remote=remote, code=reason.code, reason=reason.message, hint=reason.hint)
