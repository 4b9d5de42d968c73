"""Figures from times: percentiles, and the pause around a failover."""

from __future__ import annotations

import pytest

from examples.flights.acks import Times

MS = 1_000_000


def _times(pairs: list[tuple[int, int]]) -> Times:
    times = Times(len(pairs))
    for i, (sent, acknowledged) in enumerate(pairs):
        times.sent_ns[i], times.acknowledged_ns[i] = sent * MS, acknowledged * MS
    return times


def test_latency_of_what_was_acknowledged() -> None:
    latency = _times([(1, 1 + n) for n in range(1, 101)] + [(5, 0)]).latency()
    assert latency.p50_ms == pytest.approx(50, rel=0.01)
    assert latency.p99_ms == pytest.approx(99, rel=0.01)
    assert latency.max_ms == pytest.approx(100, rel=0.01)


def test_the_longest_silence_is_looked_for_after_the_kill_alone() -> None:
    times = _times([(1, 10), (1, 110), (1, 120), (1, 180), (1, 185), (1, 0), (1, 400)])
    assert times.longest_silence_s(range(6), after_ns=125 * MS) == pytest.approx(0.060)
    assert times.longest_silence_s(range(6), after_ns=5 * MS) == pytest.approx(0.100)
    assert times.longest_silence_s([0], after_ns=0) == 0.0
