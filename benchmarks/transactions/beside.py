"""The rows that have a peer: rounds of all systems, by turns."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from benchmarks.peers.stage import Outcome, Stage
from benchmarks.transactions.plan import PARTITIONS, Case, Effort, round_of

WARM_UPS = {"kafka": 2, "kafka-synced": 1}  # rounds before the first one, which does not count either

Results = dict[Case, list[Outcome]]


def measure(stage: Stage, rows: Sequence[str], effort: Effort, results: Results) -> None:
    """`results` keeps the figures that were measured before a step fails."""
    systems = list(stage.servers)
    for system in systems:
        for number in range(WARM_UPS.get(system, 0)):
            for _ in _run(stage, f"warm-{number}", number, rows, [system], effort):
                pass
    for number in range(effort.rounds + 1):
        print(f"round {number} of {effort.rounds}", file=sys.stderr)
        for case, outcome in _run(stage, str(number), number, rows, systems, effort):
            if number:
                results.setdefault(case, []).append(outcome)


def _run(
    stage: Stage, name: str, number: int, rows: Sequence[str], systems: Sequence[str], effort: Effort
) -> Iterator[tuple[Case, Outcome]]:
    for step in round_of(number, name, rows, systems, effort):
        for topic in step.topics:
            stage.make(step.system, topic, PARTITIONS)
        outcome = stage.run(step.system, step.workload, **step.arguments)
        if step.case is not None:
            yield step.case, outcome
