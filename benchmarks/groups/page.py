"""Writes GROUPS.md and its plots from what a run found. What was not measured is not on the page, but named."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.groups.throughput import PARTITIONS, RATE, RECORDS, SIZE, Case
from benchmarks.peers import page_text, plots
from benchmarks.peers.machine import Machine
from benchmarks.peers.spread import percentile, spread

if TYPE_CHECKING:
    from benchmarks.groups.bench import Findings
    from benchmarks.peers.stage import Outcome

PAGE = Path(__file__).resolve().parent.parent / "GROUPS.md"
HEAD = """# Groups and work queues beside their peers

Written by `make bench-groups` (`QUICK=1`: a shorter run); edit [groups/page.py](groups/page.py)
instead. Three brokers and the clients share one machine, so compare figures of one run only. The
peers and how to get them: [peers/README.md](peers/README.md). Medians, and the least to the most.
"""


def write(path: Path, found: Findings, machine: Machine, left_out: Sequence[str]) -> None:
    """Write the page, and a plot beside it for each table of throughput."""
    lines = [HEAD, *machine.lines, *_skipped(found, left_out), "## Goals", "", *_goals(found), ""]
    if found.throughput:
        lines += [*_throughput(found), ""]
        for name, title, workload in (
            ("work", "one ack per record", "work"),
            ("stream", "stream groups", "group_read"),
        ):
            plot = path.with_name(f"groups-{name}.svg")
            plots.bars(plot, f"{title}, 1 KiB: records per second", _rates(found, workload))
            lines += [f"![{title}]({plot.name})", ""]
        lines += ["## Settings", ""]
        for system, settings in found.settings.items():
            lines += [f"- {found.names[system]}: " + "; ".join(f"{key}: {value}" for key, value in settings.items())]
    path.write_text("\n".join(page_text.wrapped(lines)) + "\n")


def _skipped(found: Findings, left_out: Sequence[str]) -> list[str]:
    effort = found.effort
    lines = [
        f"- rounds of throughput: {effort.rounds}; kills of a worker: {effort.worker_kills}; leaves: {effort.leaves}; "
        f"kills of a leader: {effort.leader_kills}; waiting records: {effort.waiting:,}"
    ]
    if left_out:
        lines.append(f"- left out of this run: {', '.join(left_out)}")
    lines += [f"- {part} failed: `{why}`" for part, why in found.broken.items()]
    lines.append("- not measured on the peers: what a killed worker, a leaving member or a killed leader costs there")
    return [*lines, ""]


def _goals(found: Findings) -> list[str]:
    rows = ["| figure | goal | reached | peers |", "|---|---|---|---|"]
    rows += [f"| {' | '.join(row)} |" for part in (_rate_goals, _failure_goals, _load_goals) for row in part(found)]
    return rows


def _rate_goals(found: Findings) -> Iterator[tuple[str, str, str, str]]:
    results = found.throughput
    stream, plain = results.get(Case("tinymq", "group_read")), results.get(Case("tinymq", "read"))
    if stream and plain:
        shares = [one.measured.rate / other.measured.rate for one, other in zip(stream, plain, strict=False)]
        yield "stream group against the plain reader", "≥ 0.95", spread(shares, "{:.2f}"), ""
    ours = results.get(Case("tinymq", "work"))
    if ours:
        others = _others(found, "work")
        times = [
            f"{statistics.median(_each(ours, _rate)) / statistics.median(_each(theirs, _rate)):.1f} × {case.title}"
            for case, theirs in others.items()
        ]
        peers = [f"{found.names[case.system]}: {spread(_each(theirs, _rate))}/s" for case, theirs in others.items()]
        goal = "≥ 2 × NATS, ≥ 5 × RabbitMQ"
        yield (
            "queue group, one ack per record",
            goal,
            "; ".join([f"{spread(_each(ours, _rate))}/s", *times]),
            "; ".join(peers),
        )
    passing = results.get(Case("tinymq", "passage"))
    if passing:
        peers = [f"{found.names[case.system]}: {_p99(theirs)} ms" for case, theirs in _others(found, "passage").items()]
        name = f"from `send` to the ack's answer, prefetch 1, {RATE:,.0f}/s, p99"
        yield name, "≤ 8 ms", f"{_p99(passing)} ms", "; ".join(peers)


def _failure_goals(found: Findings) -> Iterator[tuple[str, str, str, str]]:
    if found.worker_killed:
        started = [s for kill in found.worker_killed for s in kill.started_s]
        prefetched = [s for kill in found.worker_killed for s in kill.prefetched_s]
        yield "worker `kill -9`: started records free again, p99", "≤ 4 s", _seconds(started), ""
        yield "the same, prefetched records", "≤ 0.5 s", _seconds(prefetched), ""
    if found.member_leaves:
        yield "member leaves: partitions read elsewhere, p99", "≤ 0.5 s", _seconds(found.member_leaves), ""
    if found.leader_killed:
        pauses = [kill.pause_s for kill in found.leader_killed]
        twice = sum(kill.redelivered for kill in found.leader_killed)
        reached = f"{_seconds(pauses)}; {twice} redelivered"
        yield "leader killed, workers alive: pause, p99", "≤ 1.5 s, nothing redelivered", reached, ""


def _load_goals(found: Findings) -> Iterator[tuple[str, str, str, str]]:
    if found.idle:
        before, after = (max(shares) * 100 for shares in (found.idle.before, found.idle.after))
        reached = (
            f"{after:.1f} % of a core at the busiest broker ({before:.1f} % before; made in {found.idle.made_s:.0f} s)"
        )
        yield "1,000 groups on one topic, idle", "≤ 2 % of a core per broker", reached, ""
    if found.waiting:
        w = found.waiting
        reached = (
            f"memory per broker {spread(w.rss_before_mb)} → {spread(w.rss_waiting_mb)} MB; late p50 "
            f"{percentile(w.late_s, 0.5):.2f} s, p99 {percentile(w.late_s, 0.99):.2f} s, most {max(w.late_s):.2f} s; "
            f"{w.early} early; {w.lost} leases lost; nacked at {w.nack_rate:,.0f}/s"
        )
        yield f"{w.records:,} records waiting for retry, 128 partitions", "bounded memory, on time", reached, ""


def _throughput(found: Findings) -> list[str]:
    lines = [
        "## Throughput and processor time",
        "",
        f"Records of {SIZE} B; {PARTITIONS} partitions (one stream, one queue), one client process. Per round: "
        + ", ".join(f"{found.names[name]} {RECORDS[name]:,} records" for name in found.names)
        + ". `produce` fills the topic; the others read it. `work`: one ack per record. Processor time is per record, "
        "of the client and of all three brokers.",
        "",
        "| workload | system | records/s | client, µs/record | brokers, µs/record | p50 ms | p99 ms | load |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case, outcomes in sorted(found.throughput.items(), key=lambda item: item[0].workload):
        name = f"{found.names[case.system]} {case.variant}".strip()
        times = ("", "")
        if outcomes[0].measured.took_ms:
            p50 = [percentile(one.measured.took_ms, 0.5) for one in outcomes]
            times = (f"{statistics.median(p50):.2f}", _p99(outcomes))
        cells = (
            f"`{case.workload}`", name, spread(_each(outcomes, _rate)),
            spread(_each(outcomes, lambda one: one.client_cpu_us), "{:.1f}"),
            spread(_each(outcomes, lambda one: one.servers_cpu_us), "{:.1f}"), *times,
            spread(_each(outcomes, lambda one: one.load), "{:.0f}"),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _others(found: Findings, workload: str) -> dict[Case, list[Outcome]]:
    return {
        case: outcomes
        for case, outcomes in found.throughput.items()
        if case.workload == workload and case.system != "tinymq"
    }


def _rates(found: Findings, workload: str) -> dict[str, list[float]]:
    return {
        f"{found.names[case.system]} {case.variant}".strip(): _each(outcomes, _rate)
        for case, outcomes in found.throughput.items()
        if case.workload == workload
    }


def _each(outcomes: Sequence[Outcome], value: Callable[[Outcome], float]) -> list[float]:
    return [value(one) for one in outcomes]


def _rate(outcome: Outcome) -> float:
    return outcome.measured.rate


def _p99(outcomes: Sequence[Outcome]) -> str:
    return spread([percentile(one.measured.took_ms, 0.99) for one in outcomes], "{:.1f}")


def _seconds(values: Sequence[float]) -> str:
    return f"{percentile(values, 0.99):.2f} s (p50 {percentile(values, 0.5):.2f} s, of {len(values):,})"
