"""The workloads of a round, and their order. Pure. Cases that are compared follow one another, and take turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

SIZE = 1024
PARTITIONS = 3
LONE_RECORDS = 100  # in a transaction whose latency is measured
SYSTEMS = ("tinymq", "kafka", "kafka-synced")
ROWS = {  # and the systems that take part in each
    "latency": SYSTEMS,
    "throughput": SYSTEMS,
    "reading": ("tinymq", "kafka"),
    "process": ("tinymq", "kafka"),
}


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a run does."""

    rounds: int
    lone: int  # transactions that are timed, in a round
    records: int  # written in a round
    batch: int  # of them in a transaction
    readings: int  # of each topic
    processed: int  # records
    delayed: int  # messages
    sink_rows: int


WHOLE = Effort(
    rounds=5, lone=150, records=100_000, batch=10_000, readings=2, processed=60_000, delayed=1_000_000,
    sink_rows=400_000,
)  # fmt: skip
QUICK = Effort(
    rounds=2, lone=50, records=50_000, batch=10_000, readings=1, processed=30_000, delayed=20_000, sink_rows=100_000
)  # fmt: skip


class Case(NamedTuple):
    """One line of a table: a workload of a system, and by which workload its topic was written."""

    row: str
    system: str
    workload: str
    written_by: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One run of a workload. `topics` are made before. Of `case` None, nothing is kept: it fills a topic for others."""

    case: Case | None
    system: str
    workload: str
    arguments: Mapping[str, object]
    topics: tuple[str, ...] = ()


def round_of(number: int, name: str, rows: Sequence[str], systems: Sequence[str], effort: Effort) -> Iterator[Step]:
    """The steps of a round. `number` says who begins; `name` is a part of all its topics' names."""
    order = {row: [system for system in turned(systems, number) if system in took] for row, took in ROWS.items()}
    if "latency" in rows:
        for system in order["latency"]:
            yield _latency(system, name, effort)
    if "throughput" in rows or "reading" in rows:  # whose topics are written here
        for system in order["throughput" if "throughput" in rows else "reading"]:
            yield from _throughput(system, name, number, effort, counts="throughput" in rows)
    if "reading" in rows:
        for system in order["reading"]:
            for again in range(effort.readings):
                yield from _reading(system, name, number + again, effort)
    if "process" in rows:
        for system in order["process"]:
            yield from _process(system, name, effort)


def turned(order: Sequence[str], number: int) -> list[str]:
    """Another one begins in each round."""
    begins = number % len(order)
    return [*order[begins:], *order[:begins]]


def _latency(system: str, name: str, effort: Effort) -> Step:
    topic = f"latency-{name}"
    arguments = {"topic": topic, "partitions": PARTITIONS, "transactions": effort.lone, "records": LONE_RECORDS}
    return Step(Case("latency", system, "transactions"), system, "transactions", {**arguments, "size": SIZE}, (topic,))


def _throughput(system: str, name: str, number: int, effort: Effort, *, counts: bool) -> Iterator[Step]:
    workloads = turned(("transact", "flushed"), number) if system == "tinymq" else ["transact"]
    for workload in workloads:
        topic = f"{workload}-{name}"
        case = Case("throughput", system, workload) if counts else None
        arguments = {"topic": topic, "records": effort.records, "size": SIZE, "batch": effort.batch}
        yield Step(case, system, workload, arguments, (topic,))


def _reading(system: str, name: str, number: int, effort: Effort) -> Iterator[Step]:
    """Both topics of tinymq, as messages and as tables. Kafka's reader skips what is not committed, by default."""
    for workload in ("read", "tables") if system == "tinymq" else ("read",):
        for written_by in turned(("transact", "flushed"), number) if system == "tinymq" else ["transact"]:
            arguments = {"topic": f"{written_by}-{name}", "records": effort.records}
            yield Step(Case("reading", system, workload, written_by), system, workload, arguments)


def _process(system: str, name: str, effort: Effort) -> Iterator[Step]:
    source, target = f"source-{name}", f"target-{name}"
    yield Step(None, system, "produce", {"topic": source, "records": effort.processed, "size": SIZE}, (source, target))
    arguments = {"source": source, "target": target, "records": effort.processed, "batch": effort.batch}
    yield Step(Case("process", system, "process"), system, "process", arguments)
