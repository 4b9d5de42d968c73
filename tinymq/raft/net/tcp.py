"""`Transport` over framed TCP: the set of connections, and dialling them again.

Peers, dialers and their callbacks belong here. One socket is connection.py, the proof of identity is handshake.py, and
bytes are framing.py.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from tinymq.base.clock import Clock
from tinymq.base.config import Limits, format_address
from tinymq.base.errors import BrokerUnreachable, Closed, TinymqError, UnsupportedVersion
from tinymq.base.types import PeerAddress
from tinymq.format.feature_level import KNOWN_LEVEL, check_member
from tinymq.net.connection_limits import Places
from tinymq.net.framing import Chunk
from tinymq.net.tls_failures import reason_of
from tinymq.net.tls_ports import PortTls
from tinymq.proto import peer_pb2
from tinymq.raft.net.connection import Connection
from tinymq.raft.net.dialer import Dialer
from tinymq.raft.net.handshake import ANYBODY, NONCE_BYTES, Credentials, Handshake
from tinymq.raft.net.listener import Listener
from tinymq.raft.net.transport import (
    HANDSHAKE_TIMEOUT_S,
    JOIN_RETRY_S,
    Channel,
    Invitation,
    Invite,
    LocalIdentity,
    OnConnected,
    OnDisconnected,
    OnInvited,
    OnMessage,
    OnRefused,
    OnRejected,
    PeerIdentity,
    check_only_one,
)

DIALERS_SHARE = (0.7, 0.9)  # of a connection's age

logger = structlog.get_logger("tinymq.raft.net.transport")


@dataclass(frozen=True, slots=True)
class PeerTls:
    """Mutual TLS between brokers, below the handshake. Each side's certificate names its broker."""

    accepts: Callable[[], ssl.SSLContext]  # asked for each connection; wants a certificate of the dialer
    dials: Callable[[], ssl.SSLContext]  # asked for each connection; checks names only if it says so
    plain: bool = False  # takes connections without TLS, too, and dials so where TLS finds no answer
    age_s_max: float = math.inf  # of a connection: then the dialer makes another one


class TcpTransport:
    """One broker's framed TCP. `transport.Transport` has its contract.

    `identity` is called at every handshake, so a broker that joins a cluster later dials from then on. `rng` only
    spreads the attempts to dial. Nonces come from `token_bytes`, which must be unpredictable outside tests.
    """

    def __init__(
        self,
        identity: Callable[[], LocalIdentity],
        secret: bytes,
        session: int,
        listen: tuple[str, int],
        clock: Clock,
        rng: random.Random,
        limits: Limits,
        *,
        tls: PeerTls | None = None,
        token_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        assert secret, "an empty secret proves nothing"
        self.on_message: OnMessage | None = None
        self.on_connected: OnConnected | None = None
        self.on_disconnected: OnDisconnected | None = None
        self.on_refused: OnRefused | None = None
        self.on_rejected: OnRejected | None = None
        self.on_invited: OnInvited | None = None
        self.invite: Invite | None = None
        self.hears: Callable[[int], bool] = lambda peer: False
        self._identity = identity
        self._secret = secret
        self._session = session
        self._listen = listen
        self._clock = clock
        self._rng = rng
        self._limits = limits
        self._tls = tls
        self._token_bytes = token_bytes
        self.known_level = KNOWN_LEVEL  # the level of the build that this broker claims to run
        self._stopped = False
        self._dialers: dict[tuple[int, Channel], Dialer] = {}
        self._proven: dict[int, PeerIdentity] = {}
        self._listener = Listener(
            lambda: Handshake.accept(self._credentials(), token_bytes(NONCE_BYTES), self.invite, self._admit),
            limits,
            clock,
            age_s_max=tls.age_s_max if tls is not None else math.inf,
            on_open=self._accepted,
            on_message=self._received,
            on_rejected=self._rejected,
        )

    # ---- Transport -----------------------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that are really bound; only while started."""
        return self._listener.address

    def send(self, peer: int, channel: Channel, message: peer_pb2.Peer, body: Sequence[Chunk] = ()) -> bool:
        dialer = self._dialers.get((peer, channel))
        if dialer is None or dialer.connection is None:
            return False
        return dialer.connection.send(message.SerializeToString(), body)

    def connected(self, peer: int, channel: Channel) -> bool:
        dialer = self._dialers.get((peer, channel))
        return dialer is not None and dialer.connection is not None and not dialer.connection.closing

    def identity(self, peer: int) -> PeerIdentity | None:
        return self._proven.get(peer)

    def buffered_bytes(self, peer: int, channel: Channel) -> int:
        dialer = self._dialers.get((peer, channel))
        return dialer.connection.buffered_bytes if dialer is not None and dialer.connection is not None else 0

    def set_peer(self, address: PeerAddress) -> None:
        if address.broker_id == self._identity().broker_id or self._stopped:
            return
        for channel in Channel:
            key = (address.broker_id, channel)
            dialer = self._dialers.get(key)
            if dialer is None:
                dialer = self._dialers[key] = Dialer(address, channel, self._clock, self._rng, self._dial)
                if self._listener.started:
                    dialer.start()
            elif dialer.address != address:
                dialer.address = address
                dialer.reset("the peer's address has changed")

    def remove_peer(self, broker_id: int) -> None:
        for channel in Channel:
            dialer = self._dialers.pop((broker_id, channel), None)
            if dialer is not None:
                dialer.stop("the peer was removed")
            connection = self._listener.accepted.get((broker_id, channel))
            if connection is not None:
                connection.close(Closed("the peer was removed"))
        self._proven.pop(broker_id, None)

    def turn_away(self, below: int) -> None:
        for peer, identity in self._proven.items():
            if identity.feature_level < below:
                for channel in Channel:
                    self._close((peer, channel), UnsupportedVersion(f"it does not know feature level {below}"))

    def _close(self, key: tuple[int, Channel], reason: TinymqError) -> None:
        """Close the peer's connections on this channel, in both directions. The dialer connects again."""
        dialer = self._dialers.get(key)
        for connection in (self._listener.accepted.get(key), dialer.connection if dialer is not None else None):
            if connection is not None:
                connection.close(reason)

    def reset(self, peer: int, channel: Channel) -> None:
        dialer = self._dialers.get((peer, channel))
        if dialer is not None:
            dialer.reset("reset")

    @property
    def places(self) -> Places:
        """The places of the connections that other brokers have opened."""
        return self._listener.places

    async def start(self) -> None:
        assert not self._stopped
        tls = PortTls(self._tls.accepts, self._tls.plain, HANDSHAKE_TIMEOUT_S) if self._tls is not None else None
        await self._listener.start(*self._listen, tls)
        for dialer in self._dialers.values():
            dialer.start()

    async def stop(self) -> None:
        self._stopped = True
        dialers = list(self._dialers.values())
        self._dialers.clear()
        for dialer in dialers:
            dialer.stop("this broker stops")
        opened = [dialer.connection for dialer in dialers if dialer.connection is not None]
        await self._listener.stop()
        await asyncio.gather(*(dialer.wait_stopped() for dialer in dialers), *(c.lost for c in opened))

    # ---- dialling ------------------------------------------------------------------------------------

    async def _dial(self, dialer: Dialer) -> bool | None:
        """Make one attempt to connect, and return when its connection ends.

        Return whether it opened; None: there is no cluster yet.
        """
        me = self._credentials()
        if not me.cluster_id:
            await self._ask(dialer, me)
            return None
        address = dialer.address

        def opened(connection: Connection) -> None:
            if not self._prove(connection):
                return
            dialer.connection = connection
            dialer.refusal = ""
            if self._tls is not None:
                # A part of the age, so that the acceptor need not end it, and not all of them at once.
                connection.end_after(self._tls.age_s_max * self._rng.uniform(*DIALERS_SHARE), drain=True)
            if self.on_connected is not None and not self._stopped:
                self.on_connected(address.broker_id, dialer.channel, connection.peer)

        def lost(connection: Connection, reason: TinymqError) -> None:
            if dialer.connection is connection:
                dialer.connection = None
            if self._stopped or not connection.opened:
                return
            if self.on_disconnected is not None:
                self.on_disconnected(address.broker_id, dialer.channel, reason.message)

        # The attempt returns when the connection has ended. One that never opened was refused, or reached no broker.
        connection = await self._attempt(address, dialer.channel, me, opened, lost, plain=dialer.dials_plain)
        if not connection.opened:
            self._refused(dialer, connection.lost.result())
        # A cluster that moves to TLS has brokers without it. After each failure the other way is tried.
        dialer.dials_plain = (
            self._tls is not None and self._tls.plain and not connection.opened and not dialer.dials_plain
        )
        return connection.opened

    async def _ask(self, dialer: Dialer, me: Credentials) -> None:
        """This broker belongs to no cluster, so ask for the peer's. It asks once in a while, on one of its dialers."""
        if dialer.channel is not Channel.CONTROL or self._clock.monotonic() < dialer.ask_at:
            return
        connection = await self._attempt(dialer.address, dialer.channel, me, lambda _: None, lambda _, __: None)
        dialer.ask_at = self._clock.monotonic() + JOIN_RETRY_S
        if self.on_invited is not None and not self._stopped:
            answer = connection.handshake.invitation or connection.lost.result()
            self.on_invited(dialer.address.broker_id, answer)

    async def ask(self, host: str, port: int) -> Invitation:
        me = replace(self._credentials(), cluster_id=b"")
        address = PeerAddress(ANYBODY, host, port)
        connection = await self._attempt(address, Channel.CONTROL, me, lambda _: None, lambda _, __: None)
        if connection.handshake.invitation is None:
            raise connection.lost.result()
        return connection.handshake.invitation

    async def _attempt(
        self, address: PeerAddress, channel: Channel, me: Credentials, on_open: Callable[[Connection], None],
        on_lost: Callable[[Connection, TinymqError], None], *, plain: bool = False,
    ) -> Connection:  # fmt: skip
        """Dial, and wait until the attempt or the connection that it made has ended."""
        where = format_address(address.host, address.port)
        connection = Connection(
            Handshake.dial(me, address.broker_id, channel, self._token_bytes(NONCE_BYTES)),
            self._limits,
            self._clock,
            remote=where if address.broker_id == ANYBODY else f"broker {address.broker_id} at {where}",
            on_open=on_open,
            on_message=_no_message,
            on_lost=on_lost,
        )
        attempt = asyncio.ensure_future(self._connect(address, connection, None if plain else self._tls))
        try:
            await asyncio.wait([connection.lost])
        finally:
            attempt.cancel()
            connection.close(Closed("dialling was given up"))
        return connection

    def _refused(self, dialer: Dialer, error: TinymqError) -> None:
        peer = dialer.address.broker_id
        if dialer.refusal != error.code:  # a peer that is down is dialled for hours: say it once
            dialer.refusal = error.code
            logger.warning(
                "peer not reached", peer=peer, channel=dialer.channel.name, code=error.code, reason=error.message,
                hint=error.hint,
            )  # fmt: skip
        if self.on_refused is not None and not self._stopped:
            self.on_refused(peer, error)

    async def _connect(self, address: PeerAddress, connection: Connection, tls: PeerTls | None) -> None:
        try:
            context = tls.dials() if tls is not None else None
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                address.host,
                address.port,
                ssl=context,
                server_hostname=address.host if context is not None else None,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if context is not None else None,
            )
        except ssl.SSLError as error:
            connection.close(BrokerUnreachable(f"{connection.remote}: {reason_of(error)}"))
        except (OSError, UnicodeError) as error:  # invalid host names raise UnicodeError
            refused = isinstance(error, ConnectionRefusedError)
            connection.close(BrokerUnreachable(f"{connection.remote}: {error}", refused=refused))

    # ---- what connections tell -----------------------------------------------------------------------

    def _received(self, connection: Connection, message: peer_pb2.Peer, body: Chunk) -> None:
        if self.on_message is not None:
            self.on_message(connection.peer.broker_id, message, body)

    def _rejected(self, remote: str, reason: TinymqError) -> None:
        if self.on_rejected is not None:
            self.on_rejected(remote, reason)

    def _accepted(self, connection: Connection) -> None:
        """Dial a broker at once when it reaches us: it is probably reachable, too, and need not wait."""
        if not self._prove(connection):
            return
        for channel in Channel:
            dialer = self._dialers.get((connection.peer.broker_id, channel))
            if dialer is not None:
                dialer.hurry()

    def _admit(self, dialer: PeerIdentity) -> None:
        check_only_one(self._proven.get(dialer.broker_id), dialer, heard=self.hears(dialer.broker_id))

    def _prove(self, connection: Connection) -> bool:
        """Remember the peer's identity, and close connections of older processes of that broker. False: the feature
        level was raised while the peer was connecting, and the peer does not know the new one."""
        peer = connection.peer
        try:
            check_member(peer.broker_id, peer.feature_level, self._identity().feature_level)
        except UnsupportedVersion as error:
            connection.close(error)
            return False
        known = self._proven.get(peer.broker_id)
        self._proven[peer.broker_id] = peer
        if known is None or known == peer:
            return True
        for channel in Channel:
            accepted = self._listener.accepted.get((peer.broker_id, channel))
            dialer = self._dialers.get((peer.broker_id, channel))
            for other in (accepted, dialer.connection if dialer else None):
                if other is not None and other is not connection and other.peer != peer:
                    other.close(BrokerUnreachable("the peer has restarted"))
        return True

    def _credentials(self) -> Credentials:
        me = self._identity()
        return Credentials(
            broker_id=me.broker_id,
            incarnation=me.incarnation,
            cluster_id=me.cluster_id or b"",
            session=self._session,
            secret=self._secret,
            protocol_min=me.feature_level,
            protocol_max=self.known_level,
        )


def _no_message(connection: Connection, message: peer_pb2.Peer, body: Chunk) -> None:
    raise AssertionError("a dialled connection delivers nothing")
