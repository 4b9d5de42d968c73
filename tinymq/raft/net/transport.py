"""The messages between brokers: the transport's protocol, and the values that cross it. No I/O here.

Two implementations pass the one contract suite (tests/raft/net/test_transport_contract.py): `TcpTransport`
(tcp.py) and the in-memory `MemoryNetwork` (tinymq/simulation/memory_network.py).

Per pair of brokers and direction there is one connection per channel. A broker dials the connections
that it sends on, and receives on those that it accepted. So the two directions fail independently, as
on a real network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

from tinymq.base.config import Limits
from tinymq.base.errors import TinymqError, WrongBroker
from tinymq.base.retry import Backoff
from tinymq.base.types import PeerAddress
from tinymq.base.value import value
from tinymq.format.feature_level import FIRST_LEVEL
from tinymq.proto import peer_pb2

HEAD_BYTES_MAX = 1 << 20  # the protobuf part of a frame; a body is bounded by Limits.peer_frame_bytes_max
CONTROL_BUFFER_BYTES_MAX = 8 << 20  # unsent on a control connection: far more than its peer would read in time
HANDSHAKES_MAX = 64  # strangers at once; one more, and the oldest is dropped
HANDSHAKE_TIMEOUT_S = 5.0  # from dialling or accepting to the end of the handshake
UNACKNOWLEDGED_S = 3.0  # data without an acknowledgment for so long end their connection, which is dialled again
REDIAL = Backoff(0.02, 1.0)  # after failed attempts to connect, and a quarter more or less at random
UNFORMED_POLL_S = 0.05  # a broker without a cluster checks at this interval whether it has joined one
JOIN_RETRY_S = 0.5  # a broker without a cluster asks each peer for its cluster at this interval


class Channel(IntEnum):
    """Two connections per direction, so that a heartbeat never waits behind a megabyte."""

    CONTROL = 0  # votes, acks, heartbeats, commit notices, requests
    BULK = 1  # entries


@value
class PeerIdentity:
    """The identity that a peer has proven in a handshake."""

    broker_id: int
    incarnation: bytes  # of its data directory, 16 bytes
    session: int  # random per process start: another one means that it restarted
    feature_level: int = FIRST_LEVEL  # the level that its build knows


@value
class Invitation:
    """The cluster that a broker without one joins, as one of its peers has proven it."""

    cluster_id: bytes
    first_entry: bytes  # of the metadata group, a packed frame
    voters: tuple[PeerAddress, ...] = ()  # of the metadata group; only in the answer to a broker that knew no broker id


class LocalIdentity(Protocol):
    """This broker's own identity; `log.store.Identity` is one."""

    @property
    def broker_id(self) -> int: ...

    @property
    def incarnation(self) -> bytes: ...

    @property
    def cluster_id(self) -> bytes | None:
        """The cluster's id.

        None: the broker belongs to no cluster, accepts no peer, and dials to learn of a cluster.
        """
        ...

    @property
    def feature_level(self) -> int:
        """The cluster's feature level, as known here. Peers that do not know it are refused."""
        ...


def out_bytes_max(limits: Limits, channel: Channel) -> int:
    """Bytes that one connection may hold unsent; above that, send() returns False."""
    return limits.peer_buffer_bytes_max if channel is Channel.BULK else CONTROL_BUFFER_BYTES_MAX


OnMessage = Callable[[int, peer_pb2.Peer, "bytes | memoryview"], None]
OnConnected = Callable[[int, Channel, PeerIdentity], None]
OnDisconnected = Callable[[int, Channel, str], None]
OnRefused = Callable[[int, TinymqError], None]
OnRejected = Callable[[str, TinymqError], None]
OnInvited = Callable[[int, "Invitation | TinymqError"], None]
Invite = Callable[[PeerIdentity], Invitation]
Admit = Callable[[PeerIdentity], None]


def check_only_one(known: PeerIdentity | None, dialer: PeerIdentity, *, heard: bool) -> None:
    """Check that a dialer is not a second process of a broker. Pure. Raises WrongBroker.

    `known` is the identity that the broker has proven last, and `heard` whether its heartbeats still arrive. Only
    dialers are refused: the process that answers at the broker's address takes the place of the other one.
    """
    if known is not None and known.session != dialer.session and heard:
        raise WrongBroker(
            f"another process of broker {dialer.broker_id} is heard: unless that has just ended, two brokers have this"
            " number, and one of them must stop"
        )


class Transport(Protocol):
    """One broker's end of the network. All of it belongs to the broker's loop; no call blocks.

    Order: messages of one connection arrive in the order of their sends, each at most once, and none
    is lost unless the connection is. Between channels, and across a reconnection, there is no order
    and messages may be lost. Messages of a connection are never delivered after a newer connection of the same peer and
    channel was accepted, or after the peer proved another session. A second process of a peer that is heard is refused
    when it dials.

    Callbacks are made from the loop, never from inside a call into the transport; one that raises is
    the caller's broken invariant and is not caught.
    """

    on_message: OnMessage | None  # (peer, message, body); the receiver may keep the body
    on_connected: OnConnected | None  # (peer, channel, its proven identity): send() works from now on
    on_disconnected: (
        OnDisconnected | None
    )  # (peer, channel, reason): unsent messages are lost; the peer is dialled again
    on_refused: OnRefused | None  # (peer, error): an attempt to dial it failed
    on_rejected: OnRejected | None  # (remote address, error): a dialer was refused
    on_invited: OnInvited | None  # (peer, its cluster, or the error): only while we belong to no cluster
    hears: Callable[[int], bool]  # whether heartbeats of a peer arrive; then no second process of it may connect
    invite: Invite | None  # returns what a broker without a cluster is told, or raises the reason of a refusal

    def send(
        self, peer: int, channel: Channel, message: peer_pb2.Peer, body: Sequence[bytes | memoryview] = ()
    ) -> bool:
        """Send one message with the concatenation of `body`, soon and in order.

        False, and nothing is sent, when the peer is not connected on this channel or its unsent bytes are
        at their bound. True promises nothing but order. `message` is encoded before this returns; `body`
        is kept by reference until sent, so its content must not change.
        """
        ...

    def connected(self, peer: int, channel: Channel) -> bool:
        """Would a send find a connection?"""
        ...

    def identity(self, peer: int) -> PeerIdentity | None:
        """Return the identity that the peer proved last, in either direction; None before its first handshake.

        In `on_message` it is the sender's own: a new session is known before its first message arrives.
        """
        ...

    def buffered_bytes(self, peer: int, channel: Channel) -> int:
        """Count the bytes that send() accepted and the operating system has not taken yet; 0 when not connected."""
        ...

    def set_peer(self, address: PeerAddress) -> None:
        """Dial this broker at this address until it is removed. A changed address replaces the connection.

        This broker's own id is passed over, so that a list of voters can be given whole. A broker that is not set here
        may still dial us if it proves the secret, so brokers join without restarts.
        """
        ...

    def remove_peer(self, broker_id: int) -> None:
        """Close all connections with this broker, and never dial it again. An unknown broker is ignored."""
        ...

    def turn_away(self, below: int) -> None:
        """Close all connections with peers whose build does not know feature level `below`, in both directions.

        Their next handshakes fail only if this broker's identity has the new level.
        """
        ...

    async def ask(self, host: str, port: int) -> Invitation:
        """Ask the broker that listens at this address, once, which cluster it belongs to.

        Only a broker without a cluster may call this, between `start` and `stop`. Raises BrokerUnreachable,
        DeadlineExceeded, or the other end's refusal.
        """
        ...

    def reset(self, peer: int, channel: Channel) -> None:
        """Close the connection on which we send, and dial again at once. Unsent messages are lost."""
        ...

    async def start(self) -> None:
        """Listen, and dial the peers that were set so far. Raises PortInUse."""
        ...

    async def stop(self) -> None:
        """Close everything. No callback follows, and send() returns False from then on."""
        ...
