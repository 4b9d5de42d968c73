"""Groups' throughput and latency on all systems, in turns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.peers.stage import Outcome, Stage
from benchmarks.peers.systems import SYSTEMS

SIZE = 1024
PARTITIONS = 4
RATE = 1_000.0
# Records in a round, so that each takes some seconds: slow systems get fewer.
RECORDS = {"tinymq": 60_000, "kafka": 60_000, "nats": 30_000, "rabbitmq": 12_000}
PASSING_S = 5.0
WARM_UPS = {"kafka": 3}  # rounds that do not count; 1 for others


class Case(NamedTuple):
    """One line of a table: a workload of a system."""

    system: str
    workload: str
    variant: str = ""  # Kafka's group protocol

    @property
    def title(self) -> str:
        return f"{self.system} {self.variant}".strip()


Results = dict[Case, list[Outcome]]


def measure(stage: Stage, rounds: int, results: Results) -> None:
    """Each round writes records to a new topic of each system, then reads them by all of its cases. What is measured
    before a round fails is in `results`.
    """
    names = list(stage.servers)
    for name in names:
        for number in range(WARM_UPS.get(name, 1) - 1):
            for _ in _round(stage, name, f"warm-{number}", RECORDS[name]):
                pass
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            print(f"round {number} of {rounds}: {stage.servers[name].name}", file=sys.stderr)
            for case, outcome in _round(stage, name, f"round-{number}", RECORDS[name]):
                if number:
                    results.setdefault(case, []).append(outcome)


def _round(stage: Stage, name: str, topic: str, records: int) -> Iterator[tuple[Case, Outcome]]:
    has = SYSTEMS[name].has
    stage.make(name, topic, PARTITIONS)
    yield Case(name, "produce"), stage.run(name, "produce", topic=topic, records=records, size=SIZE)
    if has("read"):
        yield Case(name, "read"), stage.run(name, "read", topic=topic, records=records)
    for variant in ("classic", "consumer") if name == "kafka" else ("",) if has("group_read") else ():
        more = {"protocol": variant} if variant else {}
        group = f"{topic}-stream{variant}"
        outcome = stage.run(name, "group_read", topic=topic, records=records, group=group, **more)
        yield Case(name, "group_read", variant), outcome
    yield Case(name, "work"), stage.run(name, "work", topic=topic, records=records, group=f"{topic}-queue")
    if has("passage"):
        passing = f"{topic}-passing"
        stage.make(name, passing, 1)
        count = int(RATE * PASSING_S)
        outcome = stage.run(
            name, "passage", topic=passing, records=count, size=SIZE, rate=RATE, group=f"{passing}-queue"
        )
        yield Case(name, "passage"), outcome
