"""Append times of one term, purely (architecture decision 15).

A term's stamps start at the greater of the entry before and the lower median of the live brokers' wall
clocks, then follow the leader's monotonic clock, slewed by at most 1 % towards that median: one wrong
clock neither trims everything nor freezes leases, and stamps never go back.
"""

from __future__ import annotations

from collections.abc import Sequence

SLEW_MAX = 0.01


def lower_median(values: Sequence[int]) -> int:
    """The middle value; of an even number the lower of the two middle ones."""
    return sorted(values)[(len(values) - 1) // 2]


class TermStamps:
    """The stamps of one term of one leader."""

    __slots__ = ("_last_us", "_monotonic", "_now_us")

    def __init__(self, predecessor_us: int, median_us: int, monotonic: float) -> None:
        self._now_us = float(max(predecessor_us, median_us))
        self._last_us = predecessor_us
        self._monotonic = monotonic

    def stamp(self, median_us: int, monotonic: float) -> int:
        """The append time for an entry made now."""
        passed_us = max(0.0, monotonic - self._monotonic) * 1e6
        self._monotonic = monotonic
        slew_us = max(-SLEW_MAX * passed_us, min(SLEW_MAX * passed_us, median_us - (self._now_us + passed_us)))
        self._now_us += passed_us + slew_us
        self._last_us = max(self._last_us, int(self._now_us))
        return self._last_us
