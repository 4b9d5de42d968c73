"""The times at which each flight was sent and acknowledged, and figures from them. Pure: reads no clock."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from hdrh.histogram import HdrHistogram

LATENCY_US_MAX = 600_000_000
DIGITS = 3


@dataclass(frozen=True, slots=True)
class Latency:
    """From send() to acknowledgement, in milliseconds."""

    p50_ms: float
    p99_ms: float
    max_ms: float


class Times:
    """Nanoseconds per flight; 0: not yet. The producing thread and the client's callbacks fill them in."""

    def __init__(self, flights: int) -> None:
        self.sent_ns = array("q", bytes(8 * flights))
        self.acknowledged_ns = array("q", bytes(8 * flights))

    def latency(self) -> Latency:
        """Percentiles over all acknowledged flights."""
        histogram = HdrHistogram(1, LATENCY_US_MAX, DIGITS)
        pairs = zip(self.sent_ns, self.acknowledged_ns, strict=True)
        for took_us, count in Counter((done - sent) // 1000 for sent, done in pairs if done).items():
            histogram.record_value(max(1, min(took_us, LATENCY_US_MAX)), count)
        p50, p99, largest = (histogram.get_value_at_percentile(p) / 1000 for p in (50, 99, 100))
        return Latency(p50, p99, largest)

    def longest_silence_s(self, flights: Iterable[int], after_ns: int) -> float:
        """Return the longest time between two consecutive acknowledgements of `flights`, the second after `after_ns`:
        the time for which their partition accepted no writes.
        """
        times = sorted({time for i in flights if (time := self.acknowledged_ns[i])})
        gaps = (later - earlier for earlier, later in pairwise(times) if later > after_ns)
        return max(gaps, default=0) / 1e9
