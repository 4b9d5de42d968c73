"""The report at the end: a table of figures, and one line with the verdict. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from examples.flights.acks import Latency
from examples.flights.compare import Verdict


@dataclass(frozen=True, slots=True)
class Measured:
    """All figures of one run. Rates count only keys and values, in units of 10^6 bytes."""

    records: int
    bytes: int
    produce_s: float
    latency: Latency
    silence_s: float
    killed: int
    caught_up_s: float
    read_s: float
    replicas_equal: int
    replicas: int
    leaders_first: Mapping[int, int]  # partition -> broker, when the topic was new
    leaders_last: Mapping[int, int]


def rows(m: Measured, topic: str) -> list[tuple[str, str]]:
    """The summary table."""
    return [
        ("records", f"{m.records:,}"),
        ("produced", f"{m.records / m.produce_s:,.0f} records/s, {m.bytes / 1e6 / m.produce_s:.1f} MB/s"),
        ("acknowledged after", f"p50 {m.latency.p50_ms:.0f} ms, p99 {m.latency.p99_ms:.0f} ms (queueing included)"),
        (f"{topic}/0 took no writes for", f"{m.silence_s:.2f} s, when broker {m.killed} was killed"),
        ("caught up", f"{m.caught_up_s:.1f} s after the last acknowledgement"),
        ("read from followers", f"{m.records / m.read_s:,.0f} records/s, {m.bytes / 1e6 / m.read_s:.1f} MB/s"),
        ("replicas equal", f"{m.replicas_equal} of {m.replicas}, byte for byte"),
        (f"leaders of {topic}/0 to {len(m.leaders_first) - 1}, at first", _leaders(m.leaders_first)),
        ("at the end", _leaders(m.leaders_last)),
    ]


def last_line(verdict: Verdict, differences: Sequence[str]) -> str:
    """`ok: …` when nothing differs."""
    counts = (
        f"{verdict.acknowledged} flights acknowledged, {verdict.read} read from followers, "
        f"{verdict.lost} lost, {verdict.twice} twice"
    )
    return f"ok: {counts}" if verdict.same and not differences else f"not ok: {counts}"


def _leaders(leaders: Mapping[int, int]) -> str:
    return "broker " + ", ".join(f"{broker}" for _, broker in sorted(leaders.items()))
