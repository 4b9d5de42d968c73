"""Failure verdicts come when they are due, and never right after a pause of our own process."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import pytest

from tests.fakes.manual_clock import ManualClock
from tests.raft.harness import Cluster, simulate
from tests.raft.values import GROUP
from tinymq.base.config import Timing
from tinymq.proto import peer_pb2 as pb
from tinymq.raft import Host
from tinymq.raft.net.transport import Channel, PeerIdentity
from tinymq.raft.peers.leader_hints import announcement
from tinymq.raft.peers.peers import Peers


class StoppableClock(ManualClock):
    def stand_still(self, seconds: float) -> None:
        """SIGSTOP and SIGCONT: time passes, then every due timer runs, in order."""
        self._now_s += seconds
        self._timers = [(max(at, self._now_s), number, timer) for at, number, timer in self._timers]
        heapq.heapify(self._timers)


class Wire:
    """The part of a transport that Peers uses: brokers 2 and 3 are connected, in session 7 by default."""

    def __init__(self) -> None:
        self.session = 7
        self.sent: list[tuple[int, pb.Peer]] = []

    def send(
        self, peer: int, channel: Channel, message: pb.Peer, body: Sequence[bytes | memoryview] = ()
    ) -> bool:  # fmt: skip
        self.sent.append((peer, message))
        return True

    def identity(self, peer: int) -> PeerIdentity:
        return PeerIdentity(peer, b"i" * 16, self.session)


class Bench:
    def __init__(self) -> None:
        self.clock = StoppableClock()
        self.wire = Wire()
        self.timing = Timing()
        self.gone: list[tuple[int, float]] = []
        self.deaf: list[tuple[int, float]] = []
        self.neighbours = Peers(1, self.wire, self.clock, self.timing)  # type: ignore[arg-type]
        self.neighbours.on_gone = lambda peer: self.gone.append((peer, self.clock.monotonic()))
        self.neighbours.on_deaf = lambda peer: self.deaf.append((peer, self.clock.monotonic()))
        self.neighbours.start()
        self.neighbours.reached(2, [])
        self._sequence = 0

    def restart(self) -> None:
        """Replace broker 2's process; the new one numbers its heartbeats from the beginning."""
        self.wire.session += 1
        self._sequence = 0

    def beat(self, echo: int | None = None) -> float:
        """Deliver broker 2's next heartbeat, and return the time of its arrival."""
        self._sequence += 1
        newest = max((m.heartbeat.sequence for _, m in self.wire.sent), default=0)
        self.neighbours.heard(2, pb.Heartbeat(sequence=self._sequence, echo=newest if echo is None else echo))
        return self.clock.monotonic()

    def beats(self, count: int, echo: int | None = None) -> float:
        for _ in range(count):
            self.clock.advance(self.timing.heartbeat_s)
            heard_at = self.beat(echo)
        return heard_at


def test_leader_hints_follow_the_heartbeat_of_a_restarted_process() -> None:
    """In the other order the hint would be lost: a new session makes a peer forget that broker's leaderships."""
    bench, other = Bench(), Bench()
    bench.beat()
    bench.restart()
    other.wire.sent.clear()
    other.neighbours.reached(2, [(GROUP, 3)])
    for _, message in other.wire.sent:
        if message.HasField("leaders"):
            bench.neighbours.announced(2, message.leaders)
        if message.HasField("heartbeat"):
            bench.neighbours.heard(2, message.heartbeat)
    assert bench.neighbours.leader_of(GROUP) == (2, 3)


def test_a_restarted_broker_leads_nothing_until_it_announces_it() -> None:
    """A restart ends the broker's leaderships even if it is quicker than any failure verdict."""
    b = Bench()
    b.beats(20)
    b.neighbours.announced(2, announcement([(GROUP, 3)]).leaders)
    b.beats(20)
    assert b.neighbours.leader_of(GROUP) == (2, 3)
    b.restart()
    b.beat()
    assert b.gone == []
    assert b.neighbours.leader_of(GROUP) is None
    b.neighbours.announced(2, announcement([(GROUP, 4)]).leaders)
    assert b.neighbours.leader_of(GROUP) == (2, 4)


def test_heartbeats_keep_their_interval_beside_other_timers() -> None:
    b = Bench()
    b.beats(20)
    b.wire.sent.clear()
    b.clock.advance(2.0)
    assert len(b.wire.sent) == pytest.approx(2.0 / b.timing.heartbeat_s, abs=1)


def test_the_failure_verdict_does_not_wait_for_the_next_heartbeat() -> None:
    b = Bench()
    b.clock.advance(0.037)
    heard_at = b.beats(20)
    b.clock.advance(5.0)
    assert b.gone == [(2, pytest.approx(heard_at + b.timing.gone_after_s))]


def test_a_broker_that_does_not_hear_us_is_reported() -> None:
    b = Bench()
    heard_at = b.beats(20)
    b.beats(20, echo=3)
    assert b.deaf == [(2, pytest.approx(heard_at + b.timing.gone_after_s + b.timing.heartbeat_s))]
    assert b.gone == []


@pytest.mark.parametrize("timer_first", [True, False])
@pytest.mark.parametrize("seconds", [0.5, 1.0, 2.0, 6.0])
def test_after_a_pause_messages_are_read_before_timeouts_are_judged(seconds: float, timer_first: bool) -> None:
    """Hazard 15. The bytes that waited in the sockets are read right before or right after the timers run."""
    b = Bench()
    b.beats(20)
    b.clock.stand_still(seconds)
    if timer_first:
        b.clock.advance(0.0)
    for _ in range(3):
        b.beat()
    heard_at = b.beats(20)
    assert b.gone == b.deaf == []
    b.clock.advance(5.0)
    assert b.gone == [(2, pytest.approx(heard_at + b.timing.gone_after_s))]


def test_dead_brokers_are_noticed_after_a_pause() -> None:
    b = Bench()
    b.beats(20)
    b.clock.advance(0.3)
    b.clock.stand_still(6.0)
    risen_at = b.clock.monotonic()
    b.clock.advance(5.0)
    assert b.gone == [(2, pytest.approx(risen_at + 0.3, abs=0.11))]


def test_a_busy_loop_notices_dead_brokers() -> None:
    """Every timer runs late: only one such pause is subtracted from a silence."""
    b = Bench()
    heard_at = b.beats(20)
    while not b.gone and b.clock.monotonic() < heard_at + 5.0:
        b.clock.stand_still(0.35)
        b.clock.advance(0.0)
    assert b.gone[0][1] < heard_at + 1.5


def test_a_brokers_address_is_announced_first_on_each_connection() -> None:
    b = Bench()
    assert not any(message.HasField("here") for _, message in b.wire.sent), "it does not know"
    b.neighbours.here = lambda: "10.0.0.1:7170"
    for _ in range(2):
        b.wire.sent.clear()
        b.neighbours.reached(3, [])
        peer, first = b.wire.sent[0]
        assert (peer, first.here.peer_address) == (3, "10.0.0.1:7170")
        b.neighbours.lost(3)


def test_another_brokers_address_is_passed_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        told: list[tuple[int, int, str]] = []
        real = Host.start

        async def start(host: Host) -> None:
            me = host.broker_id
            host.introduce(lambda: f"memory:{me}", lambda peer, where: told.append((me, peer, where)))
            await real(host)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Host, "start", start)
            await cluster.start()
            await cluster.until(lambda: len(told) == 6, 2.0)
            assert sorted(told) == [(a, b, f"memory:{b}") for a in (1, 2, 3) for b in (1, 2, 3) if a != b]
            cluster.network.reset(1, 2)
            await cluster.until(lambda: len(told) == 8, 2.0)

    simulate(scenario, start=False)
