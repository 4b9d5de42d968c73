"""The failure detector: it takes heartbeats and returns verdicts on which brokers are alive. Pure.

One heartbeat per pair of brokers feeds the timers of all their groups, so that a group that sleeps does not wake into
an election (ARCHITECTURE.md: Idle partitions cost nothing). A *session* is one process start. A new session ends all
leaderships of the old process. `adaptive_timeouts` measures how long a silence must be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum

from tinymq.base.config import Timing
from tinymq.raft.peers.adaptive_timeouts import HeartbeatGaps, RoundTrips, election_s

NEVER = float("inf")
CLOCKS_KEPT = 4  # the quickest of so many heartbeats tells a broker's clock: a slow one makes it look late


class Verdict(Enum):
    """A change in what is known of a broker."""

    ALIVE = "alive"  # it was gone, or unknown
    RESTARTED = "restarted"  # another process: its session is another one
    GONE = "gone"


@dataclass(slots=True)
class PeerLife:
    """One other broker, as its heartbeats show it."""

    alive: bool = False
    session: int | None = None
    heard_at: float = -NEVER
    sequence: int = 0  # the newest one heard from it; our next heartbeat echoes it
    hears_us: bool = False  # as far as its echoes prove; invariant: False unless alive
    echo: int = 0  # the newest of our sequences that it has echoed
    echoed_at: float = -NEVER
    excused: bool = False  # a standstill of this process was subtracted from the present silence already
    clocks_us: deque[int] = field(default_factory=lambda: deque(maxlen=CLOCKS_KEPT))  # its wall less our monotonic time
    gaps: HeartbeatGaps = field(default_factory=HeartbeatGaps)
    round_trips: RoundTrips = field(default_factory=RoundTrips)


class FailureDetector:
    """Gives verdicts on other brokers. Times are of one monotonic clock, which nothing here reads."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._peers: dict[int, PeerLife] = {}

    def peer(self, broker_id: int) -> PeerLife:
        life = self._peers.get(broker_id)
        if life is None:
            life = self._peers[broker_id] = PeerLife()
        return life

    # ---- what happens ---------------------------------------------------------------------------------------

    def heard(self, broker_id: int, session: int, now: float) -> Verdict | None:
        """Take a heartbeat. Returns a verdict if the heartbeat changes it."""
        life = self.peer(broker_id)
        verdict = None if life.alive else Verdict.ALIVE
        if life.session not in (None, session):
            verdict = Verdict.RESTARTED
        elif life.session == session:
            life.gaps.add(now - life.heard_at, self._timing)
        if verdict is not None:
            life.hears_us, life.echoed_at = True, now  # until it fails to prove that
            life.clocks_us.clear()
        if life.session != session:
            life.sequence = life.echo = 0
        life.alive, life.session, life.heard_at, life.excused = True, session, now, False
        return verdict

    def echoed(self, broker_id: int, echo: int, round_trip_s: float, now: float) -> None:
        """Its heartbeat proves that it has heard our heartbeat `echo`."""
        life = self.peer(broker_id)
        if echo > life.echo:
            life.echo, life.echoed_at, life.hears_us = echo, now, True
            if round_trip_s >= 0:
                life.round_trips.add(round_trip_s)

    def refused(self, broker_id: int) -> Verdict | None:
        """Count the broker as gone at once: its machine answers, but its port refuses connections."""
        life = self.peer(broker_id)
        if not life.alive:
            return None
        life.alive = life.hears_us = False
        return Verdict.GONE

    def stood_still(self, seconds: float) -> None:
        """Excuse all silences, because this process did not run for `seconds` and has messages left to read.

        Each silence is excused once. Otherwise a process that pauses repeatedly would never notice a dead broker.
        """
        for life in self._peers.values():
            if life.alive and not life.excused:
                life.heard_at += seconds
                life.echoed_at += seconds
                life.excused = True

    def silent(self, now: float) -> list[int]:
        """Return the brokers that have been silent for too long. Each is reported once."""
        gone = [b for b, life in self._peers.items() if life.alive and now >= self._gone_at(life)]
        for broker_id in gone:
            life = self._peers[broker_id]
            life.alive = life.hears_us = False
        return gone

    def deaf(self, now: float) -> list[int]:
        """Return the brokers that are heard, but for too long have not proven that they hear us.

        Each is reported once.
        """
        deaf = [b for b, life in self._peers.items() if life.hears_us and now >= self._deaf_at(life)]
        for broker_id in deaf:
            self._peers[broker_id].hears_us = False
        return deaf

    # ---- what is known --------------------------------------------------------------------------------------

    def count_alive(self) -> int:
        return sum(life.alive for life in self._peers.values())

    def ages_s(self, now: float) -> dict[int, float]:
        """Map every broker that was ever heard to the seconds since it was heard last."""
        return {b: max(0.0, now - life.heard_at) for b, life in self._peers.items() if life.heard_at > -NEVER}

    def alive(self, broker_id: int) -> bool:
        life = self._peers.get(broker_id)
        return life is not None and life.alive

    def heard_by(self, broker_id: int) -> bool:
        """Is the broker alive, and does it hear us?"""
        life = self._peers.get(broker_id)
        return life is not None and life.hears_us

    def hears(self, broker_id: int, now: float) -> bool:
        """Was the broker heard so lately that no other broker can have a reason to replace it?"""
        life = self._peers.get(broker_id)
        return life is not None and life.alive and now < life.heard_at + life.gaps.doubted_after_s(self._timing)

    def silence_s(self, broker_id: int, now: float) -> float:
        """Return the seconds since the broker was last heard; infinite: it never was."""
        life = self._peers.get(broker_id)
        return NEVER if life is None else max(0.0, now - life.heard_at)

    def next_verdict_at(self) -> float:
        """Return when the next broker has been silent or deaf for too long, if nothing is heard before."""
        lives = [life for life in self._peers.values() if life.alive]
        return min((min(self._gone_at(life), self._deaf_at(life)) for life in lives), default=NEVER)

    def all_alive(self) -> list[int]:
        """Return the ids of the other live brokers, in order."""
        return sorted(broker_id for broker_id, life in self._peers.items() if life.alive)

    def election_s(self, brokers: Iterable[int]) -> tuple[float, float]:
        """Return the shortest and the longest wait in seconds before a campaign, given the round trips to `brokers`."""
        lives = [life for broker_id in brokers if (life := self._peers.get(broker_id)) is not None]
        live = [life.round_trips.longest_s for life in lives if life.alive]
        return election_s(self._timing, max(live, default=0.0))

    def clocks_us(self, brokers: Collection[int]) -> list[int]:
        """For each live broker of `brokers`, return its wall clock minus our monotonic clock."""
        lives = [self._peers[broker_id] for broker_id in brokers if broker_id in self._peers]
        return [max(life.clocks_us) for life in lives if life.alive and life.clocks_us]

    def _gone_at(self, life: PeerLife) -> float:
        return life.heard_at + life.gaps.gone_after_s(self._timing)

    def _deaf_at(self, life: PeerLife) -> float:
        """Return the silence of echoes after which a broker is deaf.

        An echo is up to a heartbeat and a round trip old.
        """
        if not life.hears_us:
            return NEVER
        patience_s = life.gaps.gone_after_s(self._timing) + self._timing.heartbeat_s
        return life.echoed_at + patience_s
