"""Which brokers are alive, purely: heartbeats in, verdicts out.

One heartbeat per pair of brokers feeds the timers of all their groups (architecture decision 14), so that
a group that sleeps does not wake into an election. A *session* is one process start: a new one means that
whatever the old process led, it leads no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What just became known of a broker."""

    ALIVE = "alive"  # was gone, or unknown
    RESTARTED = "restarted"  # another session: another process
    GONE = "gone"


@dataclass(slots=True)
class PeerLife:
    """One other broker, as heard."""

    alive: bool = False
    session: int | None = None
    heard_at: float = float("-inf")
    sequence: int = 0  # newest heard from it; echoed back
    echoed_at: float = float("-inf")  # when it last proved to hear us
    wall_offset_us: int = 0  # its wall clock less ours, when last heard


class Liveness:
    """Verdicts on other brokers. Times are of one monotonic clock; nothing here reads it."""

    def __init__(self, gone_after_s: float) -> None:
        self._gone_after_s = gone_after_s
        self._peers: dict[int, PeerLife] = {}

    def peer(self, broker_id: int) -> PeerLife:
        return self._peers.setdefault(broker_id, PeerLife())

    def alive(self, broker_id: int) -> bool:
        life = self._peers.get(broker_id)
        return life is not None and life.alive

    def heard(self, broker_id: int, session: int, now: float) -> Verdict | None:
        """A heartbeat came."""
        life = self.peer(broker_id)
        verdict = None if life.alive else Verdict.ALIVE
        if life.session not in (None, session):
            verdict = Verdict.RESTARTED
        life.alive, life.session, life.heard_at = True, session, now
        return verdict

    def refused(self, broker_id: int) -> Verdict | None:
        """Its port refuses connections: on a machine that answers, no process listens. Gone at once."""
        life = self.peer(broker_id)
        if not life.alive:
            return None
        life.alive = False
        return Verdict.GONE

    def silent(self, now: float) -> list[int]:
        """Brokers that have been silent for too long; each is reported once."""
        gone = [b for b, life in self._peers.items() if life.alive and now - life.heard_at > self._gone_after_s]
        for broker_id in gone:
            self._peers[broker_id].alive = False
        return gone

    def wall_offsets_us(self) -> list[int]:
        """How far the live brokers' wall clocks are ahead of ours; without ourselves."""
        return [life.wall_offset_us for life in self._peers.values() if life.alive]
