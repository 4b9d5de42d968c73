"""How long to wait for other brokers, from how they have answered so far. Pure; seconds of one monotonic clock.

Two things are measured from heartbeats. The longest *gap* between two of them lately says how long a silence must be to
mean something: no distribution is assumed, for what stretches gaps (a busy machine, a long pause, a retransmission) has
none. *Round trips* say how long an election takes. docs/adr/0009 has the figures.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.base.config import Timing

GAP_FACTOR = 1.5  # a silence this many times the longest gap lately is no gap any more
STRETCH_MAX = 2.5  # times Timing.gone_after_s, at most: with its default an isolated leader has 1.5 s
HALVED_AFTER_S = 30.0  # a long gap counts half after this long
ROUND_TRIP_MAX_S = 2.0  # slower than this is down, not slow


@dataclass(slots=True)
class Gaps:
    """Between heartbeats of one broker."""

    longest_s: float = 0.0  # lately: it shrinks by half in HALVED_AFTER_S

    def add(self, gap_s: float, timing: Timing) -> None:
        """One more. What lasted longer than any bound was an outage, and says nothing of the pace."""
        if gap_s <= timing.gone_after_s * STRETCH_MAX:
            self.longest_s = max(gap_s, self.longest_s * 0.5 ** (gap_s / HALVED_AFTER_S))

    def gone_after_s(self, timing: Timing) -> float:
        """After this silence it counts as gone: between `timing.gone_after_s` and STRETCH_MAX times that."""
        return min(max(self.longest_s * GAP_FACTOR, timing.gone_after_s), timing.gone_after_s * STRETCH_MAX)

    def doubted_after_s(self, timing: Timing) -> float:
        """After this silence nobody who misses it, too, is told no. Longer than any gap lately; invariant: at most
        `gone_after_s`."""
        return max(self.longest_s, timing.gone_after_s / 2)


@dataclass(slots=True)
class RoundTrips:
    """To one broker and back, smoothed as TCP does for its retransmissions (RFC 6298, section 2)."""

    smoothed_s: float = 0.0
    deviation_s: float = 0.0
    measured: bool = False

    def add(self, sample_s: float) -> None:
        """One more. What took longer than any bound had waited for a cut to heal, and says nothing of the pace."""
        if sample_s > ROUND_TRIP_MAX_S:
            return
        if not self.measured:
            self.smoothed_s, self.deviation_s, self.measured = sample_s, sample_s / 2, True
            return
        self.deviation_s += (abs(self.smoothed_s - sample_s) - self.deviation_s) / 4
        self.smoothed_s += (sample_s - self.smoothed_s) / 8

    @property
    def longest_s(self) -> float:
        """Hardly any takes longer. 0 before one was measured."""
        return min(self.smoothed_s + 4 * self.deviation_s, ROUND_TRIP_MAX_S)


def election_s(timing: Timing, round_trip_s: float) -> tuple[float, float]:
    """Between which two a candidate, or who gave its vote, waits before it stands (again).

    The least leaves a round trip for the answers on top of what syncs take; between the two lies another one, so that
    of two candidates the later mostly hears of the earlier before it stands.
    """
    return timing.election_min_s + round_trip_s, timing.election_max_s + 2 * round_trip_s
