"""The page of groups' figures, from made-up measurements, and what `make bench-self` calls a move."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from benchmarks.groups import page
from benchmarks.groups.bench import QUICK, Findings, parse
from benchmarks.groups.failures import LeaderKilled, WorkerKilled
from benchmarks.groups.loads import IdleGroups, Waiting
from benchmarks.groups.throughput import Case
from benchmarks.peers.contract import Measured
from benchmarks.peers.machine import Machine
from benchmarks.peers.spread import percentile, spread
from benchmarks.peers.stage import Outcome
from benchmarks.self_compare import Moved

MACHINE = Machine(datetime(2026, 1, 2, tzinfo=UTC), "abc", [1.5, 2.5], aged_s=3.0, took_s=600.0)


def outcome(rate: float, took_ms: tuple[float, ...] = ()) -> Outcome:
    return Outcome(Measured(1000, 1000 / rate, 0.01, took_ms), servers_cpu_s=0.02, load=1.0)


def findings() -> Findings:
    found = Findings(QUICK)
    found.names = {"tinymq": "tinymq 1", "nats": "NATS 2"}
    found.settings = {"tinymq": {"topics": "3 replicas"}, "nats": {"clients": "fetch of 500"}}
    found.throughput = {
        Case("tinymq", "read"): [outcome(100_000), outcome(200_000)],
        Case("tinymq", "group_read"): [outcome(99_000), outcome(198_000)],
        Case("tinymq", "work"): [outcome(50_000), outcome(60_000)],
        Case("nats", "work"): [outcome(20_000), outcome(22_000)],
        Case("tinymq", "passage"): [outcome(1_000, (1.0, 2.0, 7.0))] * 2,
    }
    found.worker_killed = [WorkerKilled([3.1], [0.2])]
    found.member_leaves = [0.3]
    found.leader_killed = [LeaderKilled(1.2, 0)]
    found.idle = IdleGroups([0.01] * 3, [0.015] * 3, 20.0)
    found.waiting = Waiting(1000, 1.0, 1000.0, [100.0] * 3, [150.0] * 3, [0.1, 0.2], 0, 0)
    return found


def test_the_page_sets_what_was_reached_beside_its_goal(tmp_path: Path) -> None:
    path = tmp_path / "GROUPS.md"
    page.write(path, findings(), MACHINE, ["throughput of nothing"])
    text = path.read_text()
    assert "| stream group against the plain reader | ≥ 0.95 | 0.99 (0.99–0.99) | " in text
    assert "55,000 (50,000–60,000)/s; 2.6 × nats" in text
    assert "load average 1.5 before and 2.5 after" in text
    assert "left out of this run: throughput of nothing" in text
    assert "| worker `kill -9`: started records free again, p99 | ≤ 4 s | 3.10 s" in text
    assert "1.5 % of a core" in text
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith(("|", "#", "![")))
    assert (tmp_path / "groups-work.svg").read_text().count("<svg") == 1


def test_a_part_that_was_not_measured_has_no_row(tmp_path: Path) -> None:
    path, found = tmp_path / "GROUPS.md", Findings(QUICK)
    found.broken["waiting"] = "RuntimeError('it broke')"
    page.write(path, found, MACHINE, ["throughput"])
    rows = [line for line in path.read_text().splitlines() if line.startswith("|")]
    assert len(rows) == 2  # the head of the table
    assert "waiting failed: `RuntimeError('it broke')`" in path.read_text()


def test_parts_and_systems_can_be_chosen() -> None:
    args = parse(["--quick", "--only", "waiting", "--systems", "nats"])
    assert (args.quick, args.only, args.systems) == (True, ["waiting"], ["nats"])


def test_a_spread_is_the_median_and_its_range() -> None:
    assert spread([3, 1, 2]) == "2 (1–3)"
    assert spread([1.25], "{:.1f}") == "1.2"
    assert percentile(range(100), 0.99) == 99


def test_a_figure_has_moved_when_almost_all_pairs_say_so() -> None:
    assert Moved([1.1] * 8).word == "moved"
    assert Moved([1.1] * 11 + [0.9]).word == "moved"
    assert Moved([1.1, 0.9] * 6).word == ""
    assert Moved([2.0] * 3).word == ""  # too few to say


def test_more_pairs_narrow_the_interval() -> None:
    low, high = Moved([n / 10 for n in range(1, 13)]).interval  # of 12 pairs, ranks 3 to 10
    assert (low, high) == (0.3, 1.0)
