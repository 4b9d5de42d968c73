"""One open connection of a `MemoryNetwork`, and the messages in it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tinymq.base.clock import Timer
from tinymq.proto import peer_pb2
from tinymq.raft.net.handshake import Handshake
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
    timer: Timer | None = None
    direction: tuple[int, int] = field(init=False)  # (from, to) as numbers of machines

    def __post_init__(self) -> None:
        self.direction = self.source.number, self.target.number

    def repeat(self, message: peer_pb2.Peer, body: bytes) -> None:
        """Deliver a message once more, if the connection is still open."""
        if self.open:
            self.target.deliver(self, message, body)
