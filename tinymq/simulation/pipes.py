"""One open connection of a `MemoryNetwork`: how it opens, and the messages in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tinymq.base.clock import Timer
from tinymq.base.errors import Closed, TinymqError
from tinymq.proto import peer_pb2
from tinymq.raft.net.handshake import Handshake, HandshakeState
from tinymq.raft.net.transport import Channel

if TYPE_CHECKING:
    from tinymq.simulation.memory_transport import MemoryTransport

DELIVERED_MAX = 256  # messages that a connection remembers while it is stale


@dataclass(slots=True)
class Sent:
    """One message in transit."""

    head: bytes
    body: bytes
    due_s: float
    sent_s: float


@dataclass(slots=True, eq=False)
class Pipe:
    """One open connection: what `source` sends, `target` receives."""

    source: MemoryTransport
    target: MemoryTransport
    channel: Channel
    shake: Handshake  # the dialer's, OPEN
    accepted: Handshake  # the acceptor's, OPEN
    open: bool = True
    queue: deque[Sent] = field(default_factory=deque)
    queued_bytes: int = 0  # invariant: heads and bodies in queue
    delivered: deque[tuple[peer_pb2.Peer, bytes]] = field(
        default_factory=lambda: deque(maxlen=DELIVERED_MAX)
    )  # kept while the link is stale
    scheduled: bool = False  # a delivery is due
    dead: bool = False  # nothing passes any more, and neither end is told
    timer: Timer | None = None  # of the next delivery
    patience: Timer | None = None  # ends the connection if its oldest message does not arrive
    direction: tuple[int, int] = field(init=False)  # (from, to) as numbers of machines

    def __post_init__(self) -> None:
        self.direction = self.source.number, self.target.number

    def repeat(self, message: peer_pb2.Peer, body: bytes) -> None:
        """Deliver a message once more, if the connection is still open."""
        if self.open:
            self.target.deliver(self, message, body)


def shake(dialer: Handshake, acceptor: Handshake, rejected: Callable[[TinymqError], None]) -> TinymqError | None:
    """Exchange the messages of a handshake until both ends are open. Returns the dialer's error if one end refuses."""
    ends = (acceptor, dialer)
    message = dialer.first_message
    turn = 0
    while message is not None:
        try:
            message = ends[turn].receive(message)
        except TinymqError as error:
            if ends[turn] is dialer:
                rejected(acceptor.silence())
                return error
            rejected(error)
            return _told(dialer, acceptor.farewell)
        turn = 1 - turn
    assert dialer.state is acceptor.state is (HandshakeState.WELCOMED if dialer.joining else HandshakeState.OPEN)
    return None


def _told(dialer: Handshake, farewell: bytes | None) -> TinymqError:
    if farewell is not None:
        try:
            dialer.receive(farewell)
        except TinymqError as error:
            return error
    return Closed("the peer closed in the middle of the handshake")
