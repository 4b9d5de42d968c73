"""The figures that `make bench` computes from its rounds, and the echo of the bare limit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.bare import BareLimit
from benchmarks.bench import WORKLOADS, parse, ratio, reached, report, table
from benchmarks.measure import BATCH_BYTES, Latency, Round, Summary, aged_memory
from benchmarks.tinymq_rounds import Rounds, make_batch

FAST = Summary.of([Round(100.0, Latency(1.0, 2.0, 3.0))])
SLOW = Summary.of([Round(50.0, Latency(2.0, 4.0, 6.0))])


def test_percentiles_are_of_single_times() -> None:
    latency = Latency.of([i / 1000 for i in range(1000)])
    assert (latency.p50_ms, latency.p99_ms, latency.p999_ms) == (500.0, 990.0, 999.0)
    assert Latency.of([0.5]) == Latency(500.0, 500.0, 500.0)


def test_a_summary_is_the_median_and_its_spread() -> None:
    summary = Summary.of([Round(3.0, Latency(1, 1, 1)), Round(1.0, Latency(3, 3, 3)), Round(2.0, Latency(2, 2, 2))])
    assert (summary.rate, summary.rate_min, summary.rate_max, summary.rounds) == (2.0, 1.0, 3.0, 3)
    assert summary.latency == Latency(2, 2, 2)


def test_a_round_survives_its_way_over_a_pipe() -> None:
    for some in (Round(1.5), Round(1.5, Latency(1.0, 2.0, 3.0))):
        assert Round.parse(some.dump()) == some


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_ratios_say_who_is_better(workload: object) -> None:
    (w,) = [each for each in WORKLOADS if each is workload]
    summaries = {"tinymq": SLOW, "bare": FAST} if w.bare else {"tinymq": SLOW}
    assert ratio(w, summaries) == (None if w.bare is None else 2.0 if w.by_latency else 0.5)
    assert reached(w, summaries) == {"bulk": False, "read": True, "alone": False, "small": False}.get(w.name)


def test_the_report_has_every_workload() -> None:
    results = {w.name: {"tinymq": SLOW, "bare": FAST} for w in WORKLOADS}
    assert table(list(WORKLOADS), results).row_count == 2 * len(WORKLOADS)
    whole = report(list(WORKLOADS), results, 1.0, [0.1, 0.2])
    assert list(whole["workloads"]) == [w.name for w in WORKLOADS]  # type: ignore[call-overload]


def test_the_workloads_are_there() -> None:
    assert all(hasattr(Rounds, w.method) for w in WORKLOADS)
    assert all(hasattr(BareLimit, w.bare) for w in WORKLOADS if w.bare is not None)
    assert parse(["--only", "read", "bulk"]).only == ["read", "bulk"]
    assert sum(len(value.as_py()) for value in make_batch().column(0)) == BATCH_BYTES


def test_the_bare_limit_answers_every_message(tmp_path: Path) -> None:
    async def rounds() -> tuple[Round, Round, Round]:
        async with BareLimit(tmp_path) as bare:
            return await bare.write_bulk(20), await bare.write_alone(5), await bare.read(3)

    with aged_memory(tmp_path, 0.0):
        bulk, alone, read = asyncio.run(rounds())
    assert min(bulk.rate, alone.rate, read.rate) > 0
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"leader", "follower-1", "follower-2"}
    assert sizes["leader"] == 20 * BATCH_BYTES + 5 * 1024
