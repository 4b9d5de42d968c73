"""Writes TRANSACTIONS.md and its plot from the findings of a run. The page names each row that was not measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.peers import page_text
from benchmarks.peers.machine import Machine
from benchmarks.peers.spread import percentile, spread
from benchmarks.transactions import delayed, sink
from benchmarks.transactions.plan import LONE_RECORDS, PARTITIONS, SIZE, Case

if TYPE_CHECKING:
    from benchmarks.peers.stage import Outcome
    from benchmarks.transactions.bench import Findings

PAGE = Path(__file__).resolve().parent.parent / "TRANSACTIONS.md"
PLOT = "transactions-latency.svg"
HEAD = """# Transactions, delayed messages and Spark's sink

Written by `make bench-transactions` (`QUICK=1`: a shorter run); edit
[transactions/page.py](transactions/page.py) instead. Three brokers of each system and one client
share one machine, so compare figures of one run only; rounds of all systems take turns. The peers
and how to get them: [peers/README.md](peers/README.md). Medians, and the least to the most; a ratio
is taken round by round.
"""
LATENCY = Case("latency", "tinymq", "transactions")
TRANSACT, FLUSHED = Case("throughput", "tinymq", "transact"), Case("throughput", "tinymq", "flushed")
PROCESS = Case("process", "tinymq", "process")


class Goal(NamedTuple):
    """A row of the table of goals. `ratio`: by round, or one; `least`: the bound is below it, not above."""

    what: str
    bound: float
    ratio: Sequence[float]
    reached: str  # in words
    peer: str
    least: bool = True

    @property
    def met(self) -> bool:
        """By the median."""
        median = statistics.median(self.ratio)
        return median >= self.bound if self.least else median <= self.bound

    @property
    def cells(self) -> Sequence[str]:
        sign = "≥" if self.least else "≤"
        return self.what, f"{sign} {self.bound:g}", f"{self.reached}: {'met' if self.met else '**missed**'}", self.peer


def write(path: Path, found: Findings, machine: Machine, left_out: Sequence[str]) -> None:
    """Write the page, and the plot of latencies beside it."""
    if any(case.row == "latency" for case in found.beside):
        from benchmarks.peers import plots  # matplotlib takes a second

        plots.histogram(path.with_name(PLOT), "transactions of 100 records, all rounds", "ms", _latencies(found))
    path.write_text(text(found, machine, left_out))


def text(found: Findings, machine: Machine, left_out: Sequence[str]) -> str:
    """The page."""
    effort = found.effort
    lines = [HEAD, *machine.lines, f"- {effort.rounds} rounds that count, after one that does not"]
    if left_out:
        lines.append(f"- left out of this run: {', '.join(left_out)}")
    lines += [f"- {row} failed: `{why}`" for row, why in found.broken.items()]
    lines += ["", "## Goals", "", "| figure | goal | reached | peer |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(goal.cells)} |" for goal in goals(found)]
    if found.beside:
        lines += ["", *_measured(found)]
    if _latencies(found):
        lines += ["", f"![a histogram of transactions, from begin to a committed reader]({PLOT})"]
    if found.delayed:
        lines += ["", *_delayed(found.delayed)]
    if found.sink:
        lines += ["", *_sink(found)]
    lines += ["", "## Settings", ""] if found.settings else []
    for system, settings in found.settings.items():
        lines += [f"- {found.names[system]}: " + "; ".join(f"{key}: {value}" for key, value in settings.items())]
    return "\n".join(page_text.wrapped(lines)) + "\n"


def goals(found: Findings) -> Iterator[Goal]:
    """All that was measured, in the order of the design's table."""
    yield from _latency_goals(found)
    yield from _rate_goals(found)
    if found.delayed:
        yield from _delayed_goals(found.delayed)
    if found.sink:
        plain, once = found.sink[sink.PLAIN], found.sink[sink.EXACTLY_ONCE]
        ratio = [one / other for one, other in zip(once, plain, strict=True)]
        reached = f"{spread(ratio, '{:.2f}')}; {spread(once)} rows/s"
        yield Goal("Spark's exactly-once sink to the plain one", 0.85, ratio, reached, f"plain: {spread(plain)} rows/s")


def _latency_goals(found: Findings) -> Iterator[Goal]:
    ours = found.beside.get(LATENCY)
    for system in ("kafka", "kafka-synced"):
        theirs = found.beside.get(LATENCY._replace(system=system))
        if not ours or not theirs:
            continue
        ratio = [_p50(one) / _p50(other) for one, other in zip(ours, theirs, strict=False)]
        reached = f"{spread(ratio, '{:.2f}')}; p50 {_ms(ours, 0.5)}, p99 {_ms(ours, 0.99)} ms"
        peer = f"{found.names[system]}: p50 {_ms(theirs, 0.5)}, p99 {_ms(theirs, 0.99)} ms"
        what = f"{LONE_RECORDS} records over {PARTITIONS} partitions, until a committed reader has them, p50 to Kafka's"
        yield Goal(what, 1.0, ratio, reached, peer, least=False)


def _rate_goals(found: Findings) -> Iterator[Goal]:
    each = f"records/s, {found.effort.batch:,} in a transaction"
    reading = "reading what was published by reference to plain, as"
    for what, bound, ours, theirs in (
        (f"{each}, to the same without transactions", 0.9, TRANSACT, FLUSHED),
        (f"{each}, to Kafka's", 2.0, TRANSACT, TRANSACT._replace(system="kafka")),
        (f"{reading} messages", 0.9, _reading("read", "transact"), _reading("read", "flushed")),
        (f"{reading} tables", 0.9, _reading("tables", "transact"), _reading("tables", "flushed")),
        ("read-process-write, records/s, to Kafka's", 1.5, PROCESS, PROCESS._replace(system="kafka")),
    ):
        if ours in found.beside and theirs in found.beside:
            rates, others = _rates(found, ours), _rates(found, theirs)
            ratio = [one / other for one, other in zip(rates, others, strict=False)]
            reached = f"{spread(ratio, '{:.2f}')}; {spread(rates)}/s"
            yield Goal(what, bound, ratio, reached, f"{_name(found, theirs)}: {spread(others)}/s")


def _delayed_goals(of: delayed.Delayed) -> Iterator[Goal]:
    what = f"{of.messages:,} delayed messages"
    more = [after - before for after, before in zip(of.memory_restarted_mb, of.memory_before_mb, strict=True)]
    reached = f"{spread(more)} MB"
    yield Goal(f"{what}: more memory per broker, MB", 100, [max(more)], reached, "", least=False)
    share = f"{of.disk_share:.2f}"
    yield Goal(f"{what}: bytes on disk, to those of their values", 2, [of.disk_share], share, "", least=False)
    for name, before, after in (
        ("restart", of.before.restart_s, of.after.restart_s),
        ("failover", of.before.failover_s, of.after.failover_s),
    ):
        ratio = statistics.median(after) / statistics.median(before)
        peer = f"without: {spread(before, '{:.2f}')} s"
        reached = f"{ratio:.2f}; {spread(after, '{:.2f}')} s"
        yield Goal(f"{what}: {name}, to that without them (as without: within a quarter)", 1.25, [ratio], reached, peer,
                   least=False)  # fmt: skip


def _measured(found: Findings) -> Iterator[str]:
    effort = found.effort
    yield "## Beside Kafka"
    yield ""
    yield (
        f"Records of {SIZE:,} B, topics of {PARTITIONS} partitions, 3 replicas, one client process. `transactions`: "
        f"{effort.lone} in a round, of {LONE_RECORDS} records each, one after the other; from `begin` until a reader "
        "that runs beside has all of them. "
        f"`transact`: {effort.records:,} records, {effort.batch:,} in a transaction, one transaction after the other. "
        f"`flushed`: the same without transactions; the producer waits for its acknowledgments after {effort.batch:,}. "
        f"`read` and `tables`: reading these topics, as messages and as Arrow tables. `process`: {effort.processed:,} "
        f"records copied from topic to topic by a group, {effort.batch:,} in a transaction with their offsets. Rates "
        "and processor times are per record; Kafka's client is Java, except for `read` (confluent-kafka)."
    )
    yield ""
    yield "| workload | system | records/s | client, µs | brokers, µs | p50 ms | p99 ms | load |"
    yield "|---" * 8 + "|"
    for case, outcomes in sorted(found.beside.items()):
        times = (_ms(outcomes, 0.5), _ms(outcomes, 0.99)) if outcomes[0].measured.took_ms else ("", "")
        written_by = f", written by `{case.written_by}`" if case.written_by else ""
        cells = (
            f"`{case.workload}`{written_by}", found.names[case.system], spread(_rates(found, case)),
            spread(_each(outcomes, lambda one: one.client_cpu_us), "{:.1f}"),
            spread(_each(outcomes, lambda one: one.servers_cpu_us), "{:.1f}"), *times,
            spread(_each(outcomes, lambda one: one.load), "{:.0f}"),
        )  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def _delayed(of: delayed.Delayed) -> Iterator[str]:
    yield "## Delayed messages"
    yield ""
    yield (
        f"{of.messages:,} messages of {delayed.SIZE:,} B in {delayed.PARTITIONS} partitions, due in a day, sent one "
        f"by one by a producer in {of.sent_s:.0f} s ({of.messages / of.sent_s:,.0f}/s). Each broker in turn is killed "
        "and started again, before the messages and behind them. Failover: from the kill until each partition has "
        "acknowledged a record. Restart: from the start of the command until the broker serves and all replicas are "
        "equal. Memory is anonymous memory; the goal counts it after a restart, when what is left of the sending is "
        "gone."
    )
    yield ""
    yield "| per broker | before | with them |"
    yield "|---|---|---|"
    sent, restarted = spread(of.memory_sent_mb), spread(of.memory_restarted_mb)
    yield f"| memory, MB | {spread(of.memory_before_mb)} | {sent} when sent; {restarted} after a restart |"
    yield f"| on disk, MB | | {spread([size / 1e6 for size in of.disk_bytes])} more |"
    for name, before, after in (
        ("failover", of.before.failover_s, of.after.failover_s),
        ("restart", of.before.restart_s, of.after.restart_s),
    ):
        yield f"| {name}, s | {spread(before, '{:.2f}')} | {spread(after, '{:.2f}')} |"


def _sink(found: Findings) -> Iterator[str]:
    yield "## Spark's sink"
    yield ""
    yield (
        f"{found.effort.sink_rows:,} rows of {sink.SIZE:,} B in {sink.TASKS} tasks, `save()` to a new topic of "
        f"{sink.PARTITIONS} partitions, on `local[2]`. Not measured: small micro-batches."
    )
    yield ""
    yield "| sink | rows/s |"
    yield "|---|---|"
    for kind, rates in found.sink.items():
        yield f"| {kind} | {spread(rates)} |"


def _latencies(found: Findings) -> dict[str, list[float]]:
    return {
        found.names[case.system]: [ms for one in outcomes for ms in one.measured.took_ms]
        for case, outcomes in found.beside.items()
        if case.row == "latency"
    }


def _reading(workload: str, written_by: str) -> Case:
    return Case("reading", "tinymq", workload, written_by)


def _name(found: Findings, case: Case) -> str:
    name = found.names[case.system]
    return f"{name} `{case.written_by or case.workload}`" if case.system == "tinymq" else name


def _rates(found: Findings, case: Case) -> list[float]:
    return _each(found.beside[case], lambda one: one.measured.rate)


def _each(outcomes: Sequence[Outcome], value: Callable[[Outcome], float]) -> list[float]:
    return [value(one) for one in outcomes]


def _p50(outcome: Outcome) -> float:
    return percentile(outcome.measured.took_ms, 0.5)


def _ms(outcomes: Sequence[Outcome], share: float) -> str:
    return spread([percentile(one.measured.took_ms, share) for one in outcomes], "{:.1f}")
