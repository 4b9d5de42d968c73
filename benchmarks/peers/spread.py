"""Several measurements as one text: their median, and the least to the most. Exact percentiles."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float], form: str = "{:,.0f}") -> str:
    """Such as "45,000 (41,000–49,000)". One value stands alone."""
    median = form.format(statistics.median(values))
    if len(values) == 1:
        return median
    return f"{median} ({form.format(min(values))}–{form.format(max(values))})"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of all are. Raises IndexError when there are none."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]
