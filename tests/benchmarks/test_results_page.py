"""The page of writing and reading beside the peers, from made-up measurements, and the hops of a lone write."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from benchmarks.peers.contract import Measured
from benchmarks.peers.machine import Machine
from benchmarks.peers.stage import Outcome
from benchmarks.peers.systems import SYSTEMS
from benchmarks.results import page
from benchmarks.results.bench import NAMES, QUICK, Case, Findings
from benchmarks.results.hops import Hops, between


def outcome(rate: float, took_ms: tuple[float, ...] = ()) -> Outcome:
    return Outcome(Measured(1000, 1000 / rate, 0.01, took_ms), servers_cpu_s=0.02, load=1.0)


def test_the_page_has_ratios_tables_and_plots(tmp_path: Path) -> None:
    found = Findings(QUICK, names={"tinymq": "tinymq 1", "bare": "the limit"}, synced={"tinymq": True, "bare": True})
    found.settings = {"tinymq": {"topics": "3 replicas"}, "bare": {}}
    for system, rate, ms in (("tinymq", 50_000, 2.0), ("bare", 100_000, 1.0)):
        for workload in ("produce", "read"):
            found.outcomes[Case(workload, system, 1024)] = [outcome(rate)] * 2
        found.outcomes[Case("lone", system, 1024)] = [outcome(500, (ms, ms, ms * 2))] * 2
    found.outcomes[Case("offer", "tinymq", 100.0)] = [outcome(100, (3.0, 4.0))]
    found.hops = [Hops(2.0, 1.5, 1.0, 0.5)]
    path = tmp_path / "RESULTS.md"
    page.write(path, found, Machine(datetime(2026, 1, 2, tzinfo=UTC), "abc", [1, 2], aged_s=0.0, took_s=60.0))
    text = path.read_text()
    assert "| `produce` 1,024 B, records/s | 0.50 (0.50–0.50) |" in text
    assert "| `lone` 1,024 B, p50 | 2.00 (2.00–2.00) |" in text
    assert "| the bare relay, from the call to its return | 1.33 (1.33–1.33) |" in text
    assert "memory not touched first" in text
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith(("|", "#", "![")))
    plots = sorted(plot.name for plot in tmp_path.glob("*.svg"))
    assert plots == ["results-lone.svg", "results-offer.svg", "results-produce.svg", "results-read.svg"]


def test_hops_are_means_of_what_was_written_between_two_readings() -> None:
    stages = ("tinymq_produce_seconds", "tinymq_commit_seconds", "tinymq_sync_seconds")
    before = {f"{stage}_{kind}": 10.0 for stage in stages for kind in ("sum", "count")}
    after = {f"{stage}_sum": 10.2 for stage in stages} | {f"{stage}_count": 110.0 for stage in stages}
    hops = between(before, after, Measured(2, 1.0, 0.1, [3.0, 5.0]))
    assert [round(ms, 6) for ms in hops] == [4.0, 2.0, 2.0, 2.0]


def test_every_measured_system_is_known() -> None:
    assert set(NAMES) <= SYSTEMS.keys()
