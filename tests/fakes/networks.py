"""Two networks with one interface, TCP over loopback and memory, and a recorder of a transport's callbacks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tinymq.base.clock import Clock, SystemClock
from tinymq.base.config import Limits
from tinymq.base.errors import TinymqError
from tinymq.base.types import PeerAddress
from tinymq.format.feature_level import FIRST_LEVEL
from tinymq.proto import peer_pb2
from tinymq.raft.net.tcp import TcpTransport
from tinymq.raft.net.transport import Channel, Invitation, PeerIdentity
from tinymq.simulation.memory_network import MemoryNetwork
from tinymq.simulation.memory_transport import MemoryTransport

DEADLINE_S = 10.0
SECRET = b"one secret for all of a cluster!"
CLUSTER = b"cluster-cluster-"


@dataclass(frozen=True, slots=True)
class Identity:
    broker_id: int
    incarnation: bytes
    cluster_id: bytes | None
    feature_level: int = FIRST_LEVEL


class Recorder:
    """The callbacks of one transport, in order; `until` waits for a condition on them."""

    def __init__(self, transport: TcpTransport | MemoryTransport) -> None:
        self.messages: list[tuple[int, peer_pb2.Peer, bytes]] = []
        self.connected: list[tuple[int, Channel, PeerIdentity]] = []
        self.disconnected: list[tuple[int, Channel, str]] = []
        self.refused: list[tuple[int, TinymqError]] = []
        self.rejected: list[TinymqError] = []
        self.invited: list[tuple[int, Invitation | TinymqError]] = []
        self.identities: list[PeerIdentity | None] = []  # of the sender, at each message
        self._transport = transport
        self._changed = asyncio.Event()
        transport.on_message = self._on_message
        transport.on_connected = self._noting(self.connected)
        transport.on_disconnected = self._noting(self.disconnected)
        transport.on_refused = self._noting(self.refused)
        transport.on_invited = self._noting(self.invited)
        transport.on_rejected = lambda where, error: self._note(self.rejected, error)

    async def until(self, holds: Callable[[], object]) -> None:
        """Return when `holds` is true; it is checked after each callback."""
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    @property
    def sequences(self) -> list[int]:
        """Of the heartbeats received."""
        return [m.heartbeat.sequence for _, m, _ in self.messages if m.HasField("heartbeat")]

    def _on_message(self, peer: int, message: peer_pb2.Peer, body: bytes | memoryview) -> None:
        self.identities.append(self._transport.identity(peer))
        self._note(self.messages, (peer, message, bytes(body)))

    def _noting(self, where: list[Any]) -> Callable[..., None]:
        return lambda *arguments: self._note(where, arguments)

    def _note(self, where: list[Any], what: object) -> None:
        where.append(what)
        self._changed.set()


@dataclass(slots=True)
class End:
    """One broker of a test: its transport, and the recorded callbacks."""

    broker_id: int
    transport: Any  # TcpTransport or MemoryTransport: mypy sees Transport where it matters
    events: Recorder
    identity: Identity

    @property
    def address(self) -> PeerAddress:
        return PeerAddress(self.broker_id, *self.transport.address)

    def send(self, peer: int, sequence: int, channel: Channel = Channel.CONTROL, body: tuple[bytes, ...] = ()) -> bool:
        return bool(self.transport.send(peer, channel, heartbeat(sequence), body))


def heartbeat(sequence: int) -> peer_pb2.Peer:
    return peer_pb2.Peer(heartbeat=peer_pb2.Heartbeat(sequence=sequence))


class TcpNetwork:
    """Brokers that talk over real loopback sockets."""

    def __init__(self, clock: Clock | None = None, limits: Limits | None = None) -> None:
        self.ends: list[End] = []
        self._clock = clock or SystemClock()
        self._limits = limits or Limits()

    def make(
        self,
        broker_id: int,
        *,
        secret: bytes = SECRET,
        cluster_id: bytes | None = CLUSTER,
        session: int = 1,
        port: int | None = None,
    ) -> End:
        """A transport that is not started yet."""
        end = End(broker_id, None, None, Identity(broker_id, bytes([broker_id]) * 16, cluster_id))  # type: ignore[arg-type]
        end.transport = self._transport(end, secret, session, port)
        end.events = Recorder(end.transport)
        self.ends.append(end)
        return end

    def _transport(self, end: End, secret: bytes, session: int, port: int | None) -> TcpTransport | MemoryTransport:
        rng = random.Random(end.broker_id)
        listen = ("127.0.0.1", port or 0)
        return TcpTransport(
            lambda: end.identity, secret, session, listen, clock=self._clock, rng=rng, limits=self._limits
        )

    async def stop(self) -> None:
        for end in self.ends:
            await end.transport.stop()


class InMemoryNetwork(TcpNetwork):
    """The same on a MemoryNetwork."""

    def __init__(self, clock: Clock | None = None, limits: Limits | None = None) -> None:
        super().__init__(clock, limits)
        self.network = MemoryNetwork(self._clock, random.Random(7), self._limits)

    def _transport(self, end: End, secret: bytes, session: int, port: int | None) -> TcpTransport | MemoryTransport:
        return self.network.transport(lambda: end.identity, secret, session, port or 0)


async def started(network: TcpNetwork, *broker_ids: int) -> list[End]:
    """Brokers of one cluster, all connected to all."""
    ends = [network.make(broker_id) for broker_id in broker_ids]
    for end in ends:
        await end.transport.start()
    for end in ends:
        for other in ends:
            end.transport.set_peer(other.address)
    for end in ends:
        await connected(end, *(other for other in ends if other is not end))
    return ends


async def connected(end: End, *others: End) -> None:
    """Check that both channels from `end` to each of `others` are open."""
    await end.events.until(
        lambda: all(end.transport.connected(other.broker_id, channel) for other in others for channel in Channel)
    )
