"""`make mutants REAL=1`: run mutants of the broker as processes under real faults. The harness has to notice each.

Each of tinymq_chaos.mutants.REAL runs on all brokers of a cluster, under faults and workloads that show it soonest,
with the checkers of every run. The same plan has to be clean on brokers as they ship; otherwise a catch means nothing.
Exit code 1: a mutant survived, or a plan is not clean without one.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tinymq_chaos.checkers.common.anomaly import Anomaly, AnomalyKind
from tinymq_chaos.history import History
from tinymq_chaos.mutants import REAL
from tinymq_chaos.real.faults import FAULTS, Value
from tinymq_chaos.real.run.run import Run, RunPlan, RunResult
from tinymq_chaos.real.run.schedule import Act, Episode
from tinymq_chaos.real.systems import TARGETS, ClusterSpec

FRESH_SEEDS = 1_000_000
NODES = 3
GAP_S = 1.0  # between two rounds of faults: each begins when all is well, or no client is left

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RealFocus:
    """Where a mutant shows, and the least that has to show."""

    shows: frozenset[AnomalyKind]
    acts: tuple[Act, ...]  # of one round; they overlap
    workloads: tuple[str, ...]
    rounds: int = 3
    in_turn: bool = False  # a round strikes one broker: 1, 2, 3, 1, ...
    pace: float = 0.3

    @property
    def episodes(self) -> tuple[Episode, ...]:
        return tuple(Episode(self._round(n), GAP_S, well=True) for n in range(self.rounds))

    def _round(self, number: int) -> tuple[Act, ...]:
        whom: dict[str, Value] = {"broker": 1.0 + number % NODES} if self.in_turn else {}
        return tuple(replace(act, parameters={**act.parameters, **whom}) for act in self.acts)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(FAULTS[act.kind].real.needs for act in self.acts))


def _act(kind: str, after_s: float, lasts_s: float, **parameters: Value) -> Act:
    usual = {name: values[0] for name, values in FAULTS[kind].real.parameters.items()}
    return Act(kind, usual | parameters, after_s, lasts_s)


_SLOW_DISKS = tuple(_act("slow_sync", 0.0, 3.0, broker=float(b), seconds=0.4) for b in (1, 2, 3))

FOCUS: dict[str, RealFocus] = {
    "acks-before-the-sync": RealFocus(
        frozenset({AnomalyKind.LOST_WRITE}),
        (*_SLOW_DISKS, _act("power_cut_all", 2.0, 0.0)),  # the writes are not synced yet
        ("idempotent", "lone"),
    ),
    "one-replica-commits": RealFocus(
        frozenset({AnomalyKind.LOST_WRITE}),
        (_act("isolate", 0.0, 5.0),),  # of the leader, from brokers and not from clients
        ("idempotent", "lone"),
    ),
    "duplicates-are-appended": RealFocus(
        frozenset({AnomalyKind.DUPLICATE}),
        (_act("reset_peer", 0.0, 2.0, where="clients"),),  # clients send answered requests again
        ("idempotent", "hasty"),
    ),
    "followers-show-their-whole-log": RealFocus(
        frozenset({AnomalyKind.DIRTY_READ, AnomalyKind.NOT_A_PREFIX, AnomalyKind.INCONSISTENT_OFFSET}),
        (*_SLOW_DISKS, _act("power_cut_all", 2.0, 0.0)),  # records that were shown are on no disk
        ("idempotent", "batches"),
    ),
    "cursors-are-not-replicated": RealFocus(
        frozenset({AnomalyKind.LOST_COMMIT, AnomalyKind.CURSOR_BACK, AnomalyKind.TAKEN_TWICE}),
        (_act("kill_leader", 0.0, 1.0),),
        ("cursors", "takers"),
    ),
    "reads-without-confirmation": RealFocus(
        frozenset({AnomalyKind.STALE, AnomalyKind.MISCOUNTED}),
        # from brokers only; when it wakes, it leads for some time yet
        (_act("isolate", 0.0, 4.0), _act("pause", 0.2, 2.0)),
        ("counted",),
        rounds=6,
        in_turn=True,
        pace=0.1,
    ),
}
"""By the mutant's name."""

assert set(FOCUS) == set(REAL)


def run(focus: RealFocus, seed: int, mutants: tuple[str, ...], folder: Path, say: Say) -> RunResult:
    """Run the plan once, on a cluster of its own."""
    subject = TARGETS["tinymq"](ClusterSpec(folder, NODES, focus.needs, mutants))
    try:
        began_s = time.monotonic()
        plan = RunPlan(seed, seconds=120.0, workloads=focus.workloads, pace=focus.pace, episodes=focus.episodes)
        return asyncio.run(Run(plan, subject, History(lambda: time.monotonic() - began_s), say).run())
    finally:
        subject.target.close()


def kinds(result: RunResult) -> Counter[str]:
    """Return the kinds of anomalies; any other finding counts as itself."""
    return Counter(str(each.kind) if isinstance(each, Anomaly) else each for each in result.anomalies)


def verdict(name: str, seed: int, whole: RunResult, broken: RunResult) -> tuple[bool, str]:
    """Return (caught, in words)."""
    if whole.anomalies:
        return False, f"{name}: seed {seed}: NOT CLEAN without the mutant: {_listed(kinds(whole))}"
    found = {each.kind for each in broken.anomalies if isinstance(each, Anomaly)}
    counts = f"{whole.acknowledged} and {broken.acknowledged} records acknowledged; {_listed(kinds(broken))}"
    caught = bool(found & FOCUS[name].shows)
    return caught, f"{name}: seed {seed}: {'caught' if caught else 'SURVIVED'}; {counts}"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in counts.most_common()) or "nothing found"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make mutants REAL=1", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(FOCUS)}; none: all")
    parser.add_argument("--seed", type=int, help="of what faults choose; default: a fresh one")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in FOCUS:
            parser.error(f"{name!r} is not one of {', '.join(FOCUS)}")
    seed = random.SystemRandom().randrange(FRESH_SEEDS) if options.seed is None else options.seed
    missed = 0
    for name in options.names or FOCUS:
        say: Say = lambda what, name=name: print(f"  {name}: {what}", file=sys.stderr, flush=True)  # type: ignore[misc]  # noqa: E731
        with tempfile.TemporaryDirectory(prefix="tinymq-mutant-") as folder:
            whole = run(FOCUS[name], seed, (), Path(folder) / "whole", say)
            broken = run(FOCUS[name], seed, (name,), Path(folder) / "broken", say)
        caught, words = verdict(name, seed, whole, broken)
        missed += not caught
        print(words, flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
