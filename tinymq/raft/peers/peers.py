"""The other brokers: which are alive, which restarted, and which groups they lead. It decides nothing about a group."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from tinymq.base.clock import Clock, Timer
from tinymq.base.config import Timing
from tinymq.base.errors import TinymqError
from tinymq.base.types import GroupId
from tinymq.proto import peer_pb2 as pb
from tinymq.raft.net.transport import Channel, Transport
from tinymq.raft.peers.cluster_time import ClusterTime
from tinymq.raft.peers.failure_detector import FailureDetector, Verdict
from tinymq.raft.peers.heartbeats import Heartbeats
from tinymq.raft.peers.leader_hints import LeaderHints, announcement, read_announcement

logger = structlog.get_logger("tinymq.raft")

TICK_S_MIN = 0.001  # between two checks, because a timer may fire early by a rounding error

Led = Iterable[tuple[GroupId, int]]
"""The groups that this broker leads, each with the term."""


class Peers:
    """Sends and takes heartbeats, and calls back on the loop. Set the callbacks before `start`."""

    def __init__(self, broker_id: int, transport: Transport, clock: Clock, timing: Timing) -> None:
        self.failure_detector = FailureDetector(timing)
        self.time = ClusterTime(broker_id, clock, self.failure_detector)
        self.on_alive: Callable[[int, bool], None] = lambda peer, restarted: None  # (broker, did it restart?)
        self.on_gone: Callable[[int], None] = lambda peer: None
        self.on_deaf: Callable[[int], None] = lambda peer: None  # it is heard, but does not hear us
        self.on_stepped_down: Callable[[int, GroupId, int], None] = lambda peer, group, term: None
        self.on_here: Callable[[int, str], None] = lambda peer, address: (
            None
        )  # the host:port at which it can be dialled
        self.here: Callable[[], str] = lambda: ""  # our own host:port; "": do not tell it
        self._broker_id = broker_id
        self._transport = transport
        self._clock = clock
        self._timing = timing
        self._heartbeats = Heartbeats(self.failure_detector)
        self._leaders = LeaderHints()
        self._reached: set[int] = set()  # peers to which a control connection is open
        self._pulse: Timer | None = None
        self._due_at = self._beat_at = float("inf")  # monotonic: when the timer fires; when heartbeats are due

    def start(self) -> None:
        """Send heartbeats from now on, and notice when those of others stop."""
        self._beat_at = self._clock.monotonic()
        self._tick()

    def _tick(self) -> None:
        """The timer: send heartbeats when they are due, and give verdicts when they are due."""
        now = self._clock.monotonic()
        self._notice_standstill(now)
        if now >= self._beat_at:
            self._beat_at = now + self._timing.heartbeat_s
            self._beat_all(now)
        for peer in self.failure_detector.silent(now):
            self._gone(peer, "no heartbeat")
        self.time.look()
        for peer in self.failure_detector.deaf(now):
            logger.warning("broker_deaf", broker=peer)
            self.on_deaf(peer)
        self._due_at = min(self._beat_at, self.failure_detector.next_verdict_at())
        self._pulse = self._clock.call_later(max(TICK_S_MIN, self._due_at - now), self._tick)

    def _notice_standstill(self, now: float) -> None:
        """Hazard 15: a process that was stopped ignores silences until it has read the messages that arrived in
        between.
        """
        late_s = now - self._due_at
        if late_s > self._timing.heartbeat_s:
            self._due_at = now
            self.failure_detector.stood_still(late_s)

    def stop(self) -> None:
        """Say goodbye, so that the other brokers need not wait for a silence."""
        if self._pulse is not None:
            self._pulse.cancel()
            self._heartbeats.stopping = True
            self._beat_all(self._clock.monotonic())

    def _beat_all(self, now: float) -> None:
        wall_us = self._clock.wall_us()
        for peer in self._reached:
            self._send(peer, self._heartbeats.next(peer, wall_us, now))

    def _send(self, peer: int, message: pb.Peer) -> None:
        self._transport.send(peer, Channel.CONTROL, message)

    # ---- what is known -----------------------------------------------------------------------------------

    def alive(self, broker_id: int) -> bool:
        return broker_id == self._broker_id or self.failure_detector.alive(broker_id)

    def count_alive(self) -> int:
        """Count the live brokers, this one included."""
        return 1 + self.failure_detector.count_alive()

    def leader_of(self, group: GroupId) -> tuple[int, int] | None:
        """Return (broker, term) as announced, or None.

        A silent broker is remembered but not named: it may still lead.
        """
        known = self._leaders.leader_of(group)
        return known if known is not None and self.alive(known[0]) else None

    # ---- what this broker says ------------------------------------------------------------------------------

    def leads(self, group: GroupId, term: int) -> None:
        """Tell every broker that this one leads the group now."""
        self._leaders.note(group, self._broker_id, term)
        for peer in self._reached:
            self._send(peer, announcement([(group, term)]))

    def stepped_down(self, group: GroupId, term: int, replicas: Iterable[int]) -> None:
        """Tell the group's other replicas, until they acknowledge it, that this broker no longer leads the group."""
        for peer in replicas:
            if peer != self._broker_id:
                self._heartbeats.stepped_down(peer, group, term)

    def forget(self, group: GroupId) -> None:
        self._leaders.forget(group)

    # ---- what happens -----------------------------------------------------------------------------------------

    def reached(self, peer: int, led: Led) -> None:
        """The control connection to `peer` is open."""
        self._reached.add(peer)
        if here := self.here():
            self._send(peer, pb.Peer(here=pb.Here(peer_address=here)))
        # Send the heartbeat first: a receiver that learns of a restart from it forgets which groups this broker led
        # before.
        self._send(peer, self._heartbeats.next(peer, self._clock.wall_us(), self._clock.monotonic()))
        self._send(peer, announcement(led))

    def lost(self, peer: int) -> None:
        """The control connection is closed. That is no verdict yet, because it is dialled again at once."""
        self._reached.discard(peer)

    def refused(self, peer: int, error: TinymqError) -> None:
        """If the machine answers and no process listens, the broker is gone at once (docs/adr/0004)."""
        if error.detail.get("refused") == "True" and self.failure_detector.refused(peer) is not None:
            self._gone(peer, "its port refuses connections")

    def announced(self, peer: int, leaders: pb.Leaders) -> None:
        for group, term in read_announcement(leaders):
            self._leaders.note(group, peer, term)

    def heard(self, peer: int, beat: pb.Heartbeat) -> None:
        who = self._transport.identity(peer)
        if who is None:
            return
        now = self._clock.monotonic()
        self._notice_standstill(now)
        heard = self._heartbeats.heard(peer, who.session, beat, now)
        self.time.look()
        if heard.verdict is not None:
            restarted = heard.verdict is Verdict.RESTARTED
            logger.info("broker_alive", broker=peer, restarted=restarted)
            if restarted:
                self._leaders.gone(peer)
            self.on_alive(peer, restarted)
        for group, term in heard.stepped_down:
            self.on_stepped_down(peer, group, term)
        if heard.stopping and self.failure_detector.refused(peer) is not None:
            self._gone(peer, "it stops")

    def _gone(self, peer: int, why: str) -> None:
        logger.warning("broker_gone", broker=peer, reason=why)
        self.time.look()
        self.on_gone(peer)
