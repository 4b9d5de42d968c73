"""The append times that one leader gives in one term: the append clock. Pure.

The clock starts at the later of two times: the append time of the entry before, and the cluster's time
(cluster_time.py). Then it follows the leader's monotonic clock, slewed by at most 1 % towards the cluster's time. It
never goes back.

A leader that does not know the cluster's time starts at the append time of the entry before. Its append times may be
too early then, by as long as nobody led. So it says in its NOOP that the time is not known, and catches up once, with
another NOOP, when it learns the time (noop.py). Its own wall clock is never enough.
"""

from __future__ import annotations

SLEW_MAX = 0.01


class TermStamps:
    """The append clock of one term of one leader. Times of the cluster are None while they are not known."""

    __slots__ = ("_last_us", "_monotonic", "_now_us", "jump_us", "known")

    def __init__(self, predecessor_us: int, cluster_us: int | None, monotonic: float) -> None:
        self.known = cluster_us is not None  # append times are not too early
        self.jump_us = 0 if cluster_us is None else max(0, cluster_us - predecessor_us)  # made when it became known
        self._now_us = float(predecessor_us + self.jump_us)
        self._last_us = predecessor_us
        self._monotonic = monotonic

    def learn(self, cluster_us: int, monotonic: float) -> None:
        """The cluster's time is known now: catch up with it."""
        before_us = self.stamp(None, monotonic)
        self.jump_us = max(0, cluster_us - before_us)
        self._now_us = float(before_us + self.jump_us)
        self.known = True

    def stamp(self, cluster_us: int | None, monotonic: float) -> int:
        """The append time for an entry made now."""
        passed_us = max(0.0, monotonic - self._monotonic) * 1e6
        self._monotonic = monotonic
        self._now_us += passed_us
        if cluster_us is not None and self.known:
            most_us = SLEW_MAX * passed_us
            self._now_us += max(-most_us, min(most_us, cluster_us - self._now_us))
        self._last_us = max(self._last_us, int(self._now_us))
        return self._last_us
