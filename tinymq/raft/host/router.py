"""Passes the messages and connections of other brokers to a group, to the peers, or to a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import structlog

from tinymq.base.errors import TinymqError
from tinymq.base.types import GroupId
from tinymq.proto import peer_pb2 as pb
from tinymq.raft.net.transport import Channel, PeerIdentity, Transport
from tinymq.raft.peers.peers import Peers
from tinymq.raft.peers.requests import Requests
from tinymq.raft.replica.group import Group
from tinymq.raft.replica.replica import RaftReplica
from tinymq.raft.rules.messages import from_wire

logger = structlog.get_logger("tinymq.raft")


class Router:
    """The transport's callbacks. `guarded` makes a call into a group, and ends its replica if the call raises."""

    def __init__(
        self, transport: Transport, peers: Peers, requests: Requests, groups: Mapping[GroupId, Group],
        guarded: Callable[[Group, Callable[[], None]], None],
    ) -> None:  # fmt: skip
        self._transport = transport
        self._peers = peers
        self._requests = requests
        self._groups = groups
        self._guarded = guarded

    def listen(self) -> None:
        """Take the transport's messages from now on."""
        self._transport.on_message = self.on_message
        self._transport.on_connected = self._on_connected
        self._transport.on_disconnected = self._on_disconnected
        self._transport.on_refused = self._peers.refused

    def on_message(self, peer: int, head: pb.Peer, body: bytes | memoryview) -> None:
        try:
            self._take(peer, head, body)
        except TinymqError as error:  # the peer sent nonsense; a group's own errors end at `guarded`
            logger.warning("message_refused", peer=peer, error=error.code, reason=str(error))
            self._transport.reset(peer, Channel.BULK)

    def _take(self, peer: int, head: pb.Peer, body: bytes | memoryview) -> None:
        match head.WhichOneof("message"):
            case "heartbeat":
                self._peers.heard(peer, head.heartbeat)
            case "leaders":
                self._peers.announced(peer, head.leaders)
            case "here":
                self._peers.on_here(peer, head.here.peer_address)
            case "request" | "reply":
                self._requests.received(peer, head, bytes(body))
            case _:
                self._on_raft(peer, head, body)

    def _on_raft(self, peer: int, head: pb.Peer, body: bytes | memoryview) -> None:
        received = from_wire(head, body)
        group = None if received is None else self._groups.get(received[0])
        if received is None or group is None:
            return  # the group is not open here yet, or gone: its leader asks again
        message = received[1]
        self._guarded(group, lambda: group.replica.receive(peer, message, head.recovery_epoch))

    def _on_connected(self, peer: int, channel: Channel, who: PeerIdentity) -> None:
        if channel is Channel.CONTROL:
            self._peers.reached(peer, [(g.id, g.term) for g in self._groups.values() if g.is_leader])
            self.each_with(peer, lambda replica: replica.control_connected(peer))
            return
        self.each_with(peer, lambda replica: replica.peer_alive(peer))

    def _on_disconnected(self, peer: int, channel: Channel, reason: str) -> None:
        if channel is Channel.CONTROL:
            self._peers.lost(peer)
            self._requests.lost(peer)
            return
        self.each_with(peer, lambda replica: replica.connection_lost(peer))

    def each_with(self, peer: int, call: Callable[[RaftReplica], None]) -> None:
        """Call `call` for every group that `peer` has a replica of, and for every group that it may observe.

        An exception in one group ends that group's replica, and the others are called all the same.
        """
        for group in list(self._groups.values()):
            if group.membership.replica(peer) is not None or group.replica.state.env.observed:
                self._guarded(group, partial(call, group.replica))
