"""The append clock, which gives the append times of one leader in one term. Pure.

The clock starts at the later of two times: the append time of the previous entry, and the cluster's time
(cluster_time.py). Then it follows the leader's monotonic clock, slewed by at most 1 % towards the cluster's time. It
never goes back.

A leader that does not know the cluster's time starts at the append time of the previous entry. Its append times may
then be too early, by up to the time for which the group had no leader. So its NOOP says that the time is unknown. When
the leader learns the time, it catches up once, with another NOOP (noop.py). It never relies on its own wall clock
alone.
"""

from __future__ import annotations

SLEW_MAX = 0.01


class AppendClock:
    """The append clock of one term of one leader. `cluster_us` is None while the cluster's time is unknown."""

    __slots__ = ("_last_us", "_monotonic", "_now_us", "jump_us", "known")

    def __init__(self, predecessor_us: int, cluster_us: int | None, monotonic: float) -> None:
        self.known = cluster_us is not None  # append times can be trusted
        self.jump_us = 0 if cluster_us is None else max(0, cluster_us - predecessor_us)  # when the time became known
        self._now_us = float(predecessor_us + self.jump_us)
        self._last_us = predecessor_us
        self._monotonic = monotonic

    def learn(self, cluster_us: int, monotonic: float) -> None:
        """Catch up with the cluster's time, which has become known."""
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
