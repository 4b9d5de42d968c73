"""Writes RESULTS.md and its plots from what a run found."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers import page_text, plots
from benchmarks.peers.machine import Machine
from benchmarks.peers.spread import percentile, spread

if TYPE_CHECKING:
    from benchmarks.peers.stage import Outcome
    from benchmarks.results.bench import Findings

PAGE = Path(__file__).resolve().parent.parent / "RESULTS.md"
HEAD = """# Writing and reading beside the peers

Written by `make bench-peers` (`QUICK=1`: a shorter run); edit [results/page.py](results/page.py)
instead. Three brokers of each system and one client share one machine, so compare figures of one
run only. The peers and how to get them: [peers/README.md](peers/README.md). Groups and work queues:
`make bench-groups`. Medians, and the least to the most. One partition, three replicas.
"""


def write(path: Path, found: Findings, machine: Machine) -> None:
    """Write the page, and its plots beside it."""
    effort = found.effort
    lines = [HEAD, *machine.lines, f"- {effort.rounds} rounds that count, after one that does not"]
    lines += ["- not measured: compressed topics, several partitions, several clients", ""]
    lines += ["## Ratios", "", *_ratios(found), "", "## Throughput by record size", "", *_throughput(found), ""]
    for workload, word in (("produce", "writing"), ("read", "reading")):
        lines += [_plot_sizes(path, found, workload, word), ""]
    lines += ["## Latency", "", *_latency(found), "", _plot_rates(path, found), "", _plot_lone(path, found), ""]
    lines += [*_hops(found), "## Settings", ""]
    for name, settings in found.settings.items():
        words = "; ".join(f"{key}: {value}" for key, value in settings.items())
        synced = "synced before the answer" if found.synced[name] else "not synced before the answer"
        lines.append(f"- {found.names[name]} ({synced}): {words}")
    path.write_text("\n".join(page_text.wrapped(lines)) + "\n")


def _ratios(found: Findings) -> list[str]:
    """Each figure of tinymq to that of every other system, round by round."""
    others = [name for name in found.names if name != "tinymq"]
    rows = [f"| tinymq to | {' | '.join(found.names[name] for name in others)} |", "|---" * (1 + len(others)) + "|"]
    for case, ours in found.outcomes.items():
        if case.system != "tinymq":
            continue
        by_latency = bool(ours[0].measured.took_ms)
        value = _p50 if by_latency else _rate
        cells = []
        for name in others:
            theirs = found.outcomes.get(case._replace(system=name))
            pairs = zip(ours, theirs or (), strict=False)
            cells.append(spread([value(one) / value(other) for one, other in pairs], "{:.2f}") if theirs else "")
        unit = "/s" if case.workload == "offer" else " B"
        what = f"`{case.workload}` {case.at:,.0f}{unit}, " + ("p50" if by_latency else "records/s")
        rows.append(f"| {what} | {' | '.join(cells)} |")
    return rows


def _throughput(found: Findings) -> list[str]:
    rows = ["| workload | B | system | records/s | MB/s | client µs | brokers µs | load |", "|---" * 8 + "|"]
    for case, outcomes in sorted(found.outcomes.items()):
        if case.workload in ("produce", "read"):
            cells = (
                f"`{case.workload}`", f"{case.at:,.0f}", found.names[case.system], spread(_each(outcomes, _rate)),
                f"{statistics.median(_each(outcomes, _rate)) * case.at / 1e6:,.0f}", *_cpu(outcomes),
            )  # fmt: skip
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def _latency(found: Findings) -> list[str]:
    rows = ["| workload | records/s | system | p50 ms | p99 ms | client µs | brokers µs | load |", "|---" * 8 + "|"]
    for case, outcomes in sorted(found.outcomes.items()):
        if case.workload in ("lone", "offer"):
            offered = f"{case.at:,.0f}" if case.workload == "offer" else spread(_each(outcomes, _rate))
            p99 = [percentile(one.measured.took_ms, 0.99) for one in outcomes]
            times = spread(_each(outcomes, _p50), "{:.2f}"), spread(p99, "{:.2f}")
            cells = f"`{case.workload}`", offered, found.names[case.system], *times, *_cpu(outcomes)
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def _hops(found: Findings) -> list[str]:
    """Beside the bare relay, whose way has the same hops and no logic."""
    relay = [statistics.mean(one.measured.took_ms) for case, all_ in found.outcomes.items()
             if case[:2] == ("lone", "bare") for one in all_]  # fmt: skip
    if not found.hops:
        return []
    names = (
        ("client: from the call to its return", [one.client for one in found.hops]),
        ("of that: from the batch's arrival at the leader to its acknowledgement", [one.arrived for one in found.hops]),
        ("of that: from the append until a majority has synced it", [one.appended for one in found.hops]),
        ("one sync, of any of the three disks", [one.synced for one in found.hops]),
        *((("the bare relay, from the call to its return", relay),) if relay else ()),
    )
    rows = [f"| {name} | {spread(values, '{:.2f}')} |" for name, values in names]
    return ["## A lone write, hop by hop", "", "Means of each round in ms, from the brokers' own metrics.", "",
            "| hop | ms |", "|---|---|", *rows, ""]  # fmt: skip


def _cpu(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield spread(_each(outcomes, lambda one: one.client_cpu_us), "{:,.1f}")
    yield spread(_each(outcomes, lambda one: one.servers_cpu_us), "{:,.1f}")
    yield spread(_each(outcomes, lambda one: one.load), "{:.0f}")


def _plot_sizes(path: Path, found: Findings, workload: str, word: str) -> str:
    series: dict[str, dict[float, float]] = {}
    for case, outcomes in sorted(found.outcomes.items()):
        if case.workload == workload:
            points = series.setdefault(found.names[case.system], {})
            points[case.at] = statistics.median(_each(outcomes, _rate)) * case.at / 1e6
    plot = path.with_name(f"results-{workload}.svg")
    plots.lines(plot, f"{word}, by the size of records", "bytes of a record", "MB/s", series)
    return f"![{word} by the size of records]({plot.name})"


def _plot_rates(path: Path, found: Findings) -> str:
    series: dict[str, dict[float, float]] = {}
    for case, outcomes in sorted(found.outcomes.items()):
        if case.workload == "offer":
            p99 = [percentile(one.measured.took_ms, 0.99) for one in outcomes]
            series.setdefault(found.names[case.system], {})[case.at] = statistics.median(p99)
    plot = path.with_name("results-offer.svg")
    plots.lines(plot, "p99 from when a record was due to its answer", "offered records/s", "ms", series)
    return f"![latency by the offered rate]({plot.name})"


def _plot_lone(path: Path, found: Findings) -> str:
    series = {
        found.names[case.system]: [ms for one in outcomes for ms in one.measured.took_ms]
        for case, outcomes in found.outcomes.items()
        if case.workload == "lone"
    }
    plot = path.with_name("results-lone.svg")
    plots.histogram(plot, "lone writes of 1 KiB, all rounds", "ms", series)
    return f"![a histogram of lone writes]({plot.name})"


def _each(outcomes: Sequence[Outcome], value: Callable[[Outcome], float]) -> list[float]:
    return [value(one) for one in outcomes]


def _rate(outcome: Outcome) -> float:
    return outcome.measured.rate


def _p50(outcome: Outcome) -> float:
    return percentile(outcome.measured.took_ms, 0.5)
