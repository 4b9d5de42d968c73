"""One broker's end of a `MemoryNetwork`: the peers that it dials, and its callbacks.

This module has the broker's view. memory_network.py moves the messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tinymq.base.clock import Timer
from tinymq.base.errors import BrokerUnreachable, Closed, DeadlineExceeded, TinymqError, UnsupportedVersion
from tinymq.base.types import PeerAddress
from tinymq.format.feature_level import KNOWN_LEVEL
from tinymq.proto import peer_pb2
from tinymq.raft.net.handshake import ANYBODY, Credentials
from tinymq.raft.net.transport import (
    HANDSHAKE_TIMEOUT_S,
    JOIN_RETRY_S,
    REDIAL,
    UNFORMED_POLL_S,
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

if TYPE_CHECKING:
    from tinymq.simulation.memory_network import MemoryNetwork
    from tinymq.simulation.pipes import Pipe

Key = tuple[int, Channel]


class MemoryTransport:
    """`Transport` in tinymq/raft/net/transport.py has its contract. Made by `MemoryNetwork.transport`."""

    def __init__(
        self,
        network: MemoryNetwork,
        identity: Callable[[], LocalIdentity],
        secret: bytes,
        session: int,
        address: tuple[str, int],
        number: int | None = None,
    ) -> None:
        self.on_message: OnMessage | None = None
        self.on_connected: OnConnected | None = None
        self.on_disconnected: OnDisconnected | None = None
        self.on_refused: OnRefused | None = None
        self.on_rejected: OnRejected | None = None
        self.on_invited: OnInvited | None = None
        self.invite: Invite | None = None
        self.hears: Callable[[int], bool] = lambda peer: False
        self.address = address
        self.broker_id = identity().broker_id
        self.number = self.broker_id if number is None else number  # of its machine on the links
        self._network = network
        self._identity = identity
        self._secret = secret
        self._session = session
        self.known_level = KNOWN_LEVEL  # the level of the build that this broker claims to run
        self.silent = False  # its machine is off: a message to it is neither accepted nor refused
        self._running = False
        self._stopped = False
        self._peers: dict[int, PeerAddress] = {}
        self._outgoing: dict[Key, Pipe] = {}
        self._incoming: dict[Key, Pipe] = {}
        self._redials: dict[Key, Timer] = {}  # attempts that wait, or that a cut has swallowed
        self._failures: dict[Key, int] = {}  # to connect, in a row
        self._waits: set[Key] = set()  # the last attempt has failed, and the next one has not begun
        self._ask_s: dict[int, float] = {}  # a peer may be asked for its cluster again from then on
        self._proven: dict[int, PeerIdentity] = {}  # identities of peers, from the last handshake with each

    # ---- Transport -----------------------------------------------------------------------------------

    def send(
        self, peer: int, channel: Channel, message: peer_pb2.Peer, body: Sequence[bytes | memoryview] = ()
    ) -> bool:
        pipe = self._outgoing.get((peer, channel))
        return pipe is not None and pipe.open and self._network.send(pipe, message.SerializeToString(), b"".join(body))

    def connected(self, peer: int, channel: Channel) -> bool:
        pipe = self._outgoing.get((peer, channel))
        return pipe is not None and pipe.open

    def identity(self, peer: int) -> PeerIdentity | None:
        return self._proven.get(peer)

    def buffered_bytes(self, peer: int, channel: Channel) -> int:
        pipe = self._outgoing.get((peer, channel))
        return pipe.queued_bytes if pipe is not None else 0

    def set_peer(self, address: PeerAddress) -> None:
        peer = address.broker_id
        if peer == self.broker_id or self._stopped or self._peers.get(peer) == address:
            return
        self._peers[peer] = address
        if self._running:
            for channel in Channel:
                self.reset(peer, channel)

    def remove_peer(self, broker_id: int) -> None:
        self._peers.pop(broker_id, None)
        self._proven.pop(broker_id, None)
        for channel in Channel:
            self._cancel((broker_id, channel))
            for pipes in (self._outgoing, self._incoming):
                pipe = pipes.get((broker_id, channel))
                if pipe is not None:
                    self._network.close(pipe, Closed("the peer was removed"))

    def turn_away(self, below: int) -> None:
        for peer, identity in self._proven.items():
            if identity.feature_level < below:
                for pipes in (self._outgoing, self._incoming):
                    for channel in Channel:
                        pipe = pipes.get((peer, channel))
                        if pipe is not None:
                            self._network.close(pipe, UnsupportedVersion(f"it does not know feature level {below}"))

    def reset(self, peer: int, channel: Channel) -> None:
        if not self._running or peer not in self._peers:
            return
        pipe = self._outgoing.get((peer, channel))
        if pipe is not None:
            self._network.close(pipe, Closed("reset"))
        self._dial_after((peer, channel), 0.0)

    async def start(self) -> None:
        assert not self._running
        assert not self._stopped
        self._network.listen(self)
        self._running = True
        for peer in self._peers:
            for channel in Channel:
                self._dial_after((peer, channel), 0.0)

    async def stop(self) -> None:
        self.shut()

    # ---- called by the network ----------------------------------------------------------------------

    def shut(self) -> None:
        """Close every connection at once."""
        self._end()
        self._network.leave(self)

    def fall_silent(self) -> None:
        """End without telling any peer."""
        self._end()
        self.silent = True

    def _end(self) -> None:
        self._running = False
        self._stopped = True
        for key in list(self._redials):
            self._cancel(key)

    def credentials(self) -> Credentials:
        """This broker's part in a handshake."""
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

    def admit(self, dialer: PeerIdentity) -> None:
        """Raise the reason why a dialer is refused."""
        check_only_one(self._proven.get(dialer.broker_id), dialer, heard=self.hears(dialer.broker_id))

    def accepted(self, pipe: Pipe) -> None:
        """A peer's connection is open. It replaces an older one."""
        key = (pipe.source.broker_id, pipe.channel)
        older = self._incoming.get(key)
        self._incoming[key] = pipe
        if older is not None:
            self._network.close(older, Closed("a newer connection took its place"))
        assert pipe.accepted.peer is not None
        self._prove(pipe.accepted.peer)
        for channel in Channel:  # a peer that reaches us can most likely be reached: dial it now
            if (pipe.source.broker_id, channel) in self._waits:
                self._dial_after((pipe.source.broker_id, channel), 0.0)

    def rejected(self, source: MemoryTransport, reason: TinymqError) -> None:
        """A connection attempt was turned away."""
        asyncio.get_running_loop().call_soon(self._report_rejected, "{}:{}".format(*source.address), reason)

    def deliver(self, pipe: Pipe, message: peer_pb2.Peer, body: bytes) -> None:
        """A message has arrived."""
        if self._running and self.on_message is not None:
            self.on_message(pipe.source.broker_id, message, body)

    def forget(self, pipe: Pipe) -> None:
        """An accepted connection has ended."""
        key = (pipe.source.broker_id, pipe.channel)
        if self._incoming.get(key) is pipe:
            del self._incoming[key]

    def lost(self, pipe: Pipe, reason: TinymqError) -> None:
        """A dialled connection has ended."""
        key = (pipe.target.broker_id, pipe.channel)
        if self._outgoing.get(key) is pipe:
            del self._outgoing[key]
        if not self._running:
            return
        if self.on_disconnected is not None:
            self.on_disconnected(*key, reason.message)
        if key[0] in self._peers and key not in self._redials and key not in self._outgoing:
            self._dial_after(key, 0.0)

    # ---- dialling ------------------------------------------------------------------------------------

    def _dial_after(self, key: Key, delay_s: float) -> None:
        self._cancel(key)
        delay_s += self._network.round_trip_s(self.number, key[0])
        if delay_s > 0:
            self._redials[key] = self._network.clock.call_later(delay_s, lambda: self._dial(key))
        else:
            self._redials[key] = asyncio.get_running_loop().call_soon(self._dial, key)

    def _dial(self, key: Key) -> None:
        self._redials.pop(key, None)
        self._waits.discard(key)
        address = self._peers.get(key[0])
        if not self._running or address is None:
            return
        if not self._identity().cluster_id:
            self._dial_after(key, UNFORMED_POLL_S)
            self._ask(key, address)
            return
        result = self._network.dial(self, key[0], (address.host, address.port), key[1])
        if result is None:
            silence = DeadlineExceeded(f"broker {key[0]} did not answer in {HANDSHAKE_TIMEOUT_S:g} s")
            self._redials[key] = self._network.clock.call_later(
                HANDSHAKE_TIMEOUT_S, lambda: self._refused(key, silence)
            )
            self._network.wait_for_heal(self, *key, lambda: self._dial_after(key, 0.0))
        elif isinstance(result, TinymqError):
            self._refused(key, result)
        else:
            assert not isinstance(result, Invitation)
            self._opened(key, result)

    def _ask(self, key: Key, address: PeerAddress) -> None:
        """Ask the peer for its cluster, because this broker belongs to none."""
        peer, channel = key
        now = self._network.clock.monotonic()
        if channel is not Channel.CONTROL or now < self._ask_s.get(peer, now):
            return
        self._ask_s[peer] = now + JOIN_RETRY_S
        answer = self._network.dial(self, peer, (address.host, address.port), channel)
        if answer is None:
            answer = DeadlineExceeded(f"broker {peer} did not answer")
        if self.on_invited is not None and isinstance(answer, Invitation | TinymqError):
            self.on_invited(peer, answer)

    async def ask(self, host: str, port: int) -> Invitation:
        answer = self._network.dial(self, ANYBODY, (host, port), Channel.CONTROL)
        if isinstance(answer, Invitation):
            return answer
        await self._network.clock.sleep(HANDSHAKE_TIMEOUT_S if answer is None else 0.0)
        raise answer if isinstance(answer, TinymqError) else DeadlineExceeded(f"{host}:{port} did not answer")

    def _opened(self, key: Key, pipe: Pipe) -> None:
        self._failures.pop(key, None)
        self._outgoing[key] = pipe
        assert pipe.shake.peer is not None
        self._prove(pipe.shake.peer)
        if self.on_connected is not None:
            self.on_connected(*key, pipe.shake.peer)

    def _refused(self, key: Key, error: TinymqError) -> None:
        self._failures[key] = self._failures.get(key, 0) + 1
        self._dial_after(key, REDIAL.pause_s(self._failures[key]) * self._network.rng.uniform(0.75, 1.25))
        self._waits.add(key)
        if self.on_refused is not None:
            self.on_refused(key[0], error)

    def _cancel(self, key: Key) -> None:
        self._waits.discard(key)
        timer = self._redials.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _prove(self, peer: PeerIdentity) -> None:
        before = self._proven.get(peer.broker_id)
        self._proven[peer.broker_id] = peer
        if before is None or before == peer:
            return
        # The peer has another session or incarnation: connections to its former process are dead.
        for channel in Channel:
            accepted = self._incoming.get((peer.broker_id, channel))
            dialled = self._outgoing.get((peer.broker_id, channel))
            if accepted is not None and accepted.accepted.peer != peer:
                self._network.close(accepted, BrokerUnreachable("the peer has restarted"))
            if dialled is not None and dialled.shake.peer != peer:
                self._network.close(dialled, BrokerUnreachable("the peer has restarted"))

    def _report_rejected(self, where: str, reason: TinymqError) -> None:
        if self._running and self.on_rejected is not None:
            self.on_rejected(where, reason)
