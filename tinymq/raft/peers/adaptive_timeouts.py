"""How long the failure detector waits for other brokers, from their heartbeats so far. Pure; monotonic seconds.

It measures two things. The longest recent *gap* between two heartbeats says how long a silence must be to mean
something. No distribution is assumed, because what stretches gaps (a busy machine, a long pause, a retransmission)
follows none. *Round trips* say how long an election takes. docs/adr/0009 has the figures.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinymq.base.config import Timing

GAP_FACTOR = 1.5  # a silence that is this many times longer than the longest recent gap is an outage
STRETCH_MAX = 2.5  # times Timing.gone_after_s, at most: by default, an isolated leader steps down within 1.5 s
HALVED_AFTER_S = 30.0  # after this long, a long gap counts half
ROUND_TRIP_MAX_S = 2.0  # a slower broker counts as down


@dataclass(slots=True)
class HeartbeatGaps:
    """The gaps between heartbeats of one broker."""

    longest_s: float = 0.0  # recently: it shrinks by half in HALVED_AFTER_S

    def add(self, gap_s: float, timing: Timing) -> None:
        """Add one gap. A gap beyond every bound was an outage, and says nothing about the pace of heartbeats."""
        if gap_s <= timing.gone_after_s * STRETCH_MAX:
            self.longest_s = max(gap_s, self.longest_s * 0.5 ** (gap_s / HALVED_AFTER_S))

    def gone_after_s(self, timing: Timing) -> float:
        """Return the silence after which the broker counts as gone.

        It is between `timing.gone_after_s` and STRETCH_MAX times that.
        """
        return min(max(self.longest_s * GAP_FACTOR, timing.gone_after_s), timing.gone_after_s * STRETCH_MAX)

    def doubted_after_s(self, timing: Timing) -> float:
        """Return the silence after which we stop vetoing a peer's pre-vote.

        It is at least the longest recent gap. Invariant: at most `gone_after_s`.
        """
        return max(self.longest_s, timing.gone_after_s / 2)


@dataclass(slots=True)
class RoundTrips:
    """The round trips to one broker, smoothed as TCP does for its retransmissions (RFC 6298, section 2)."""

    smoothed_s: float = 0.0
    deviation_s: float = 0.0
    measured: bool = False

    def add(self, sample_s: float) -> None:
        """Add one round trip. A sample above ROUND_TRIP_MAX_S is ignored: it spans a network cut."""
        if sample_s > ROUND_TRIP_MAX_S:
            return
        if not self.measured:
            self.smoothed_s, self.deviation_s, self.measured = sample_s, sample_s / 2, True
            return
        self.deviation_s += (abs(self.smoothed_s - sample_s) - self.deviation_s) / 4
        self.smoothed_s += (sample_s - self.smoothed_s) / 8

    @property
    def longest_s(self) -> float:
        """A bound that hardly any round trip exceeds, in seconds. 0 before one was measured."""
        return min(self.smoothed_s + 4 * self.deviation_s, ROUND_TRIP_MAX_S)


def election_s(timing: Timing, round_trip_s: float) -> tuple[float, float]:
    """Return the shortest and the longest wait in seconds before a candidate, or a voter, campaigns (again).

    The shortest one leaves a round trip for the answers, besides the time for syncs. The longest one is another round
    trip longer, so that of two candidates the later one mostly hears of the earlier one before it campaigns.
    """
    return timing.election_min_s + round_trip_s, timing.election_max_s + 2 * round_trip_s
