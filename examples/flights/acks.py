"""When each flight was sent and acknowledged, and what follows from that. Pure: no clock is read here."""

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
    """Nanoseconds per flight; 0: not yet. Filled in by the producing thread and the client's callbacks."""

    def __init__(self, flights: int) -> None:
        self.sent_ns = array("q", bytes(8 * flights))
        self.acknowledged_ns = array("q", bytes(8 * flights))

    def latency(self) -> Latency:
        """Over all that were acknowledged."""
        histogram = HdrHistogram(1, LATENCY_US_MAX, DIGITS)
        pairs = zip(self.sent_ns, self.acknowledged_ns, strict=True)
        for took_us, count in Counter((done - sent) // 1000 for sent, done in pairs if done).items():
            histogram.record_value(max(1, min(took_us, LATENCY_US_MAX)), count)
        p50, p99, largest = (histogram.get_value_at_percentile(p) / 1000 for p in (50, 99, 100))
        return Latency(p50, p99, largest)

    def longest_silence_s(self, flights: Iterable[int], after_ns: int) -> float:
        """The longest time between two acknowledgements of `flights` that follow one another, of which the
        second came after `after_ns`: how long their partition took no writes."""
        times = sorted({time for i in flights if (time := self.acknowledged_ns[i])})
        gaps = (later - earlier for earlier, later in pairwise(times) if later > after_ns)
        return max(gaps, default=0) / 1e9
