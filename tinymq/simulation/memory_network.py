"""A network in memory: the `Transport` of tests and of the simulator, on whatever time its clock keeps.

It passes the contract suite of `TcpTransport`, and has the faults of a real network on order: cuts, delays, resets, and
lost and doubled messages, which TCP never has and a careful receiver survives. Messages are encoded and decoded, and
handshakes take place, so brokers share no object.

A cut holds the messages sent into it, as TCP does, and delivers them when it is healed, unless the connection was
closed meanwhile: its end closes it when a message has not arrived for UNACKNOWLEDGED_S. Dialling into a cut waits.
Everything follows from the order of calls, the clock and `rng`.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from tinymq.base.clock import Clock
from tinymq.base.config import Limits
from tinymq.base.errors import BrokerUnreachable, PortInUse, TinymqError
from tinymq.base.types import GroupId
from tinymq.proto import peer_pb2
from tinymq.raft.net.handshake import ANYBODY, NONCE_BYTES, Handshake
from tinymq.raft.net.transport import UNACKNOWLEDGED_S, Channel, Invitation, LocalIdentity, out_bytes_max
from tinymq.simulation.link_conditions import NetworkConditions
from tinymq.simulation.memory_transport import MemoryTransport
from tinymq.simulation.pipes import Pipe, Sent, shake

HOST = "memory"
FREE_PORTS_FROM = 1 << 16  # above every port that a caller names

_REMEMBERED = frozenset({"install_snapshot"})  # on every link, stale or not: there are few
_REPEATED = (
    frozenset({"request_vote", "vote", "append_ack", "commit_notice", "install_snapshot_ack", "snapshot_chunk"})
    | _REMEMBERED
)

Matching = Callable[[peer_pb2.Peer], bool]
OnDelivered = Callable[[int, int, Channel, peer_pb2.Peer, bytes], None]


@dataclass(slots=True)
class _Rule:
    """An order to lose or double messages."""

    source: int
    target: int
    channel: Channel | None
    matching: Matching | None
    times: int  # each message is delivered so often: 0 or 2 times
    left: int  # the rule is for so many messages more


class MemoryNetwork:
    """Makes one `Transport` per broker. It must be used on the running loop of its brokers."""

    def __init__(
        self, clock: Clock, rng: random.Random, limits: Limits | None = None,
        conditions: NetworkConditions | None = None,
    ) -> None:  # fmt: skip
        """`conditions`: those of the links, if other networks share the links; None: conditions of its own."""
        self.on_delivered: OnDelivered | None = None  # called with (from, to, channel, message, body) before delivery
        self.queued_bytes_max = 0  # the most that any one connection has ever queued
        self.clock = clock
        self.rng = rng
        self._limits = limits or Limits()
        self._context = contextvars.copy_context()
        self._free_port = FREE_PORTS_FROM
        self._listening: dict[tuple[str, int], MemoryTransport] = {}
        self._pipes: dict[Pipe, None] = {}
        self._conditions = conditions or NetworkConditions(clock, rng)
        self._silent: dict[tuple[str, int], MemoryTransport] = {}  # of machines that are off
        self._rules: list[_Rule] = []
        self._waiting: dict[MemoryTransport, dict[tuple[int, Channel], Callable[[], None]]] = {}

    def transport(
        self, identity: Callable[[], LocalIdentity], secret: bytes, session: int, port: int | None = None,
        number: int | None = None,
    ) -> MemoryTransport:  # fmt: skip
        """A broker's end, listening at ("memory", its broker id) unless given another port, 0 for any.

        `number`: of its machine on the links; None: its broker id. A second process with that id has another one.
        """
        if port == 0:
            self._free_port += 1
            port = self._free_port
        address = (HOST, identity().broker_id if port is None else port)
        return MemoryTransport(self, identity, secret, session, address, number)

    # ---- faults --------------------------------------------------------------------------------------

    def cut(self, a: int, b: int, both: bool = True) -> None:
        """Hold everything that is sent from `a` to `b`, and also back if `both`."""
        self._conditions.cut(_directions(a, b, both))

    def isolate(self, a: int, others: Iterable[int]) -> None:
        """Cut `a` from each of `others`, both ways."""
        for b in others:
            if b != a:
                self.cut(a, b)

    def heal(self, a: int | None = None, b: int | None = None) -> None:
        """End the cuts between `a` and `b`, both ways; without arguments all of them."""
        self._conditions.heal(None if a is None or b is None else _directions(a, b, True))
        self.healed()

    def healed(self) -> None:
        """Deliver held messages, and repeat attempts that waited, where cuts have ended."""
        for pipe in list(self._pipes):
            self._schedule(pipe)
        for transport, attempts in list(self._waiting.items()):
            for key, attempt in list(attempts.items()):
                if not self._is_cut(transport.number, *key):
                    del attempts[key]
                    attempt()

    def delay(self, a: int, b: int, seconds: float, jitter_s: float = 0.0, both: bool = True) -> None:
        """Let messages take `seconds` from now on, and up to `jitter_s` more. Their order is kept."""
        for direction in _directions(a, b, both):
            conditions = self._conditions.of(direction)
            conditions.seconds, conditions.jitter_s = seconds, jitter_s

    def drop_next(
        self, a: int, b: int, channel: Channel | None = None, count: int = 1, matching: Matching | None = None
    ) -> None:
        """Lose the next `count` messages from `a` to `b` (that match). Unlike with TCP, the connection stays."""
        self._rules.append(_Rule(a, b, channel, matching, 0, count))

    def duplicate_next(self, a: int, b: int, count: int = 1, matching: Matching | None = None) -> None:
        """Deliver the next `count` control messages from `a` to `b` (that match) twice."""
        self._rules.append(_Rule(a, b, Channel.CONTROL, matching, 2, count))

    def deliver_again(self, target: int, matching: Matching) -> None:
        """Deliver messages to `target` once more, all of them now, if they match and their connection is still open.

        These are the groups' messages that were sent while links were stale, and every InstallSnapshot. A test calls
        this at the worst moment.
        """
        for pipe in [p for p in self._pipes if p.target.number == target]:
            for message, body in [again for again in pipe.delivered if matching(again[0])]:
                self._soon(partial(pipe.repeat, message, body))

    def reset(self, a: int, b: int) -> None:
        """Close every connection between the two. Messages in transit are lost, and both brokers dial again."""
        for pipe in [p for p in self._pipes if set(p.direction) == {a, b}]:
            self.close(pipe, BrokerUnreachable("connection reset"))

    def has_lost(self, a: int, b: int) -> bool:
        """Return whether some connection from a to b carries nothing any more, and neither end is told."""
        return any(pipe.dead and pipe.direction == (a, b) for pipe in self._pipes)

    def lose_connection(self, a: int, b: int, channel: Channel) -> bool:
        """Let the connection from `a` to `b` carry nothing any more, and tell neither end, as a forgetful router does.

        False: there is none. `end_lost` ends it, as the kernel does at last; so does anybody who closes it.
        """
        found = [p for p in self._pipes if p.direction == (a, b) and p.channel is channel and not p.dead]
        for pipe in found:
            pipe.dead = True
        return bool(found)

    def end_lost(self, a: int, b: int, channel: Channel) -> None:
        """Close the lost connection from `a` to `b`, if it is still there."""
        for pipe in [p for p in self._pipes if p.direction == (a, b) and p.channel is channel and p.dead]:
            self.close(pipe, BrokerUnreachable("connection timed out"))

    def crash(self, number: int) -> None:
        """End the transports of a machine from outside, as the death of its process does."""
        for transport in [t for t in self._listening.values() if t.number == number]:
            transport.shut()

    def power_off(self, number: int) -> None:
        """Switch a machine off: no peer is told, and nothing at its address answers or refuses, until a transport
        listens there again.

        Bytes on the wire arrive. Bytes that a cut holds, or a lost packet delays, were in the machine's memory.
        """
        for transport in [t for t in self._listening.values() if t.number == number]:
            del self._listening[transport.address]
            self._waiting.pop(transport, None)
            self._silent[transport.address] = transport
            transport.fall_silent()
            for pipe in [p for p in self._pipes if p.source is transport]:
                self._lose_unsent(pipe)

    def waiting_bytes(self, a: int, b: int, group: GroupId) -> int:
        """Bytes of one group's entries that `a` has sent to `b` and that have not arrived."""
        topic, partition = group.topic_id, group.partition
        waiting = 0
        for pipe in self._pipes:
            if pipe.direction == (a, b) and pipe.channel is Channel.BULK and pipe.queued_bytes:
                for sent in pipe.queue:
                    named = peer_pb2.Peer.FromString(sent.head).append.group
                    if (named.topic_id, named.partition) == (topic, partition):
                        waiting += len(sent.body)
        return waiting

    def connected(self, a: int, b: int, channel: Channel) -> bool:
        """Whether a connection from `a` to `b` passes messages."""
        return any(p.direction == (a, b) and p.channel is channel and not self._is_held(p) for p in self._pipes)

    @property
    def idle(self) -> bool:
        """Whether no message is in transit or held."""
        return not any(pipe.queue for pipe in self._pipes)

    # ---- called by transports ------------------------------------------------------------------------

    def listen(self, transport: MemoryTransport) -> None:
        """Accept connections at the transport's address. Raises PortInUse."""
        if transport.address in self._listening:
            raise PortInUse("{}:{} is in use".format(*transport.address))
        self._listening[transport.address] = transport
        older = self._silent.pop(transport.address, None)
        if older is not None:
            for pipe in [p for p in self._pipes if older in (p.source, p.target)]:
                self.close(pipe, BrokerUnreachable("connection reset: the machine has restarted"))
            self.healed()

    def leave(self, transport: MemoryTransport) -> None:
        """Close every connection of this transport."""
        if self._listening.get(transport.address) is transport:
            del self._listening[transport.address]
        self._waiting.pop(transport, None)
        for pipe in [p for p in self._pipes if transport in (p.source, p.target)]:
            self.close(pipe, BrokerUnreachable(f"broker {transport.broker_id} closed the connection"))

    def dial(
        self, source: MemoryTransport, peer: int, address: tuple[str, int], channel: Channel
    ) -> Pipe | Invitation | TinymqError | None:
        """Try to connect once. Returns an open pipe, or the error, or None if a cut swallows the attempt.

        If the source belongs to no cluster, or asks ANYBODY, the result is an invitation instead of a pipe.
        """
        target = self._listening.get(address)
        whom = target.number if target is not None and peer in (ANYBODY, target.broker_id) else peer
        if self._is_cut(source.number, whom, channel) or address in self._silent:
            return None
        if target is None:
            return BrokerUnreachable("broker {} at {}:{}: connection refused".format(peer, *address), refused=True)
        me = source.credentials() if peer != ANYBODY else replace(source.credentials(), cluster_id=b"")
        dialer = Handshake.dial(me, peer, channel, self.rng.randbytes(NONCE_BYTES))
        acceptor = Handshake.accept(target.credentials(), self.rng.randbytes(NONCE_BYTES), target.invite, target.admit)
        error = shake(dialer, acceptor, lambda reason: target.rejected(source, reason))
        if error is not None:
            return error
        if dialer.invitation is not None:
            return dialer.invitation
        pipe = Pipe(source, target, channel, dialer, acceptor)
        self._pipes[pipe] = None
        target.accepted(pipe)
        return pipe

    def wait_for_heal(self, source: MemoryTransport, peer: int, channel: Channel, attempt: Callable[[], None]) -> None:
        """Call `attempt` when the cut between the two is healed."""
        self._waiting.setdefault(source, {})[peer, channel] = attempt

    def round_trip_s(self, a: int, b: int) -> float:
        """The seconds that a handshake takes."""
        return self._conditions.round_trip_s(a, b)

    def send(self, pipe: Pipe, head: bytes, body: bytes) -> bool:
        """Send one message. Returns False if the pipe is full."""
        size = len(head) + len(body)
        assert size <= self._limits.peer_frame_bytes_max, "a frame over its bound"
        if pipe.queue and pipe.queued_bytes + size > out_bytes_max(self._limits, pipe.channel):
            return False
        for _ in range(self._times(pipe, head)):
            now_s = self.clock.monotonic()
            due_s = now_s + self._conditions.transit_s(pipe.direction)
            if pipe.queue:
                due_s = max(due_s, pipe.queue[-1].due_s)
            pipe.queue.append(Sent(head, body, due_s, now_s))
            pipe.queued_bytes += size
            self.queued_bytes_max = max(self.queued_bytes_max, pipe.queued_bytes)
        self._schedule(pipe)
        if pipe.patience is None and pipe.queue:
            pipe.patience = self.clock.call_later(UNACKNOWLEDGED_S, partial(self._lose_patience, pipe))
        return True

    def close(self, pipe: Pipe, reason: TinymqError) -> None:
        """End a connection for both ends. Its messages in transit are lost."""
        if not pipe.open:
            return
        pipe.open = False
        del self._pipes[pipe]
        pipe.queue.clear()
        pipe.queued_bytes = 0
        for timer in (pipe.timer, pipe.patience):
            if timer is not None:
                timer.cancel()
        pipe.target.forget(pipe)
        self._soon(lambda: pipe.source.lost(pipe, reason))

    def _soon(self, call: Callable[[], None]) -> None:
        """Run `call` in the network's own context: a message arrives even if its sender is stopped meanwhile."""
        asyncio.get_running_loop().call_soon(call, context=self._context.copy())

    # ---- inside --------------------------------------------------------------------------------------

    def _is_cut(self, a: int, b: int, channel: Channel) -> bool:
        ways = (a, b), (b, a)  # without an answer it is no connection
        return any(self._conditions.is_cut(way) or self._conditions.is_part_cut(way, channel) for way in ways)

    def _lose_unsent(self, pipe: Pipe) -> None:
        """Take what the sender's machine still holds out of a connection."""
        held, wire = self._is_held(pipe), self._conditions.of(pipe.direction)
        latest_s = self.clock.monotonic() + wire.seconds + wire.jitter_s
        pipe.queue = deque(sent for sent in pipe.queue if not held and sent.due_s <= latest_s)
        pipe.queued_bytes = sum(len(sent.head) + len(sent.body) for sent in pipe.queue)

    def _maybe_again(self, pipe: Pipe, message: peer_pb2.Peer, body: bytes) -> None:
        """Let a message between two replicas arrive once more, much later, if the link is stale."""
        kind = message.WhichOneof("message")
        if kind not in (_REPEATED if self._conditions.of(pipe.direction).stale else _REMEMBERED):
            return
        pipe.delivered.append((message, body))
        late_s = self._conditions.again_after_s(pipe.direction)
        if late_s is not None:
            self.clock.call_later(late_s, partial(self._again, pipe, message, body))

    def _again(self, pipe: Pipe, message: peer_pb2.Peer, body: bytes) -> None:
        """Deliver a message once more: on its connection, or on the one that the same two processes have instead."""
        same = (pipe.source, pipe.target, pipe.channel)
        present = [p for p in self._pipes if (p.source, p.target, p.channel) == same]
        if present:
            present[0].repeat(message, body)

    def _is_held(self, pipe: Pipe) -> bool:
        cut = self._conditions.is_cut(pipe.direction) or self._conditions.is_part_cut(pipe.direction, pipe.channel)
        return cut or pipe.target.silent or pipe.dead

    def _times(self, pipe: Pipe, head: bytes) -> int:
        """The number of times that this message is delivered."""
        for rule in self._rules:
            if (rule.source, rule.target) != pipe.direction or rule.channel not in (None, pipe.channel):
                continue
            if rule.matching is None or rule.matching(peer_pb2.Peer.FromString(head)):
                rule.left -= 1
                if rule.left == 0:
                    self._rules.remove(rule)
                return rule.times
        return self._conditions.copies(pipe.direction) if pipe.channel is Channel.CONTROL else 1

    def _schedule(self, pipe: Pipe) -> None:
        if pipe.scheduled or not pipe.queue or self._is_held(pipe):
            return
        pipe.scheduled = True
        wait_s = pipe.queue[0].due_s - self.clock.monotonic()
        if wait_s > 0:
            pipe.timer = self.clock.call_later(wait_s, partial(self._deliver, pipe))
        else:
            self._soon(partial(self._deliver, pipe))

    def _lose_patience(self, pipe: Pipe) -> None:
        """End a connection whose oldest message has not arrived in UNACKNOWLEDGED_S, as the system does."""
        pipe.patience = None
        if not pipe.queue:
            return
        left_s = pipe.queue[0].sent_s + UNACKNOWLEDGED_S - self.clock.monotonic()
        if left_s <= 0:
            self.close(pipe, BrokerUnreachable("connection timed out"))
        else:
            pipe.patience = self.clock.call_later(left_s, partial(self._lose_patience, pipe))

    def _deliver(self, pipe: Pipe) -> None:
        pipe.scheduled = False
        pipe.timer = None
        now = self.clock.monotonic()
        for _ in range(len(pipe.queue)):
            if not pipe.queue or self._is_held(pipe) or pipe.queue[0].due_s > now:
                break  # the pipe was closed or cut, or the message is not due yet
            sent = pipe.queue.popleft()
            pipe.queued_bytes -= len(sent.head) + len(sent.body)
            message = peer_pb2.Peer.FromString(sent.head)
            if self.on_delivered is not None:
                self.on_delivered(*pipe.direction, pipe.channel, message, sent.body)
            pipe.target.deliver(pipe, message, sent.body)
            self._maybe_again(pipe, message, sent.body)
        self._schedule(pipe)


def _directions(a: int, b: int, both: bool) -> set[tuple[int, int]]:
    return {(a, b), (b, a)} if both else {(a, b)}
