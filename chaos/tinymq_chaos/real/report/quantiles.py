"""Quantiles of the durations of calls, by an HdrHistogram."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hdrh.histogram import HdrHistogram

LATENCY_US_MAX = 600_000_000
DIGITS = 3  # significant digits of the histogram


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The durations of calls that ended ok, from invocation to end."""

    count: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


class Quantiler:
    """Computes quantiles with one histogram, which it reuses: to create one costs more than to fill it."""

    def __init__(self) -> None:
        self._histogram = HdrHistogram(1, LATENCY_US_MAX, DIGITS)

    def of(self, times_s: Iterable[float]) -> Quantiles | None:
        """Return the quantiles of these durations; None if there are none."""
        self._histogram.reset()
        for time_s in times_s:
            self._histogram.record_value(max(1, min(round(time_s * 1e6), LATENCY_US_MAX)))
        count = self._histogram.get_total_count()
        if not count:
            return None
        values_us = self._histogram.get_percentile_to_value_dict((50.0, 99.0, 99.9, 100.0))
        return Quantiles(count, *(values_us[p] / 1000 for p in (50.0, 99.0, 99.9, 100.0)))
