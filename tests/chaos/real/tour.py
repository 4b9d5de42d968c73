"""A tour: faults one after the other on real brokers under load, and its results."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tinymq_chaos.history import FaultSpan, History, LeaderSpan, Outcome
from tinymq_chaos.real.faults import FAULTS, Value
from tinymq_chaos.real.faults.victims import StruckBroker
from tinymq_chaos.real.run.run import Run, RunPlan, RunResult
from tinymq_chaos.real.run.schedule import Act, Episode
from tinymq_chaos.real.systems import TARGETS, ClusterSpec

# the first two read from leaders, followers and the nearest replica, too
LOAD = ("idempotent", "plain", "cursors", "transfers", "churn")
LEADER: Mapping[str, Value] = {"broker": 0.0, "who": "leader"}
GAP_S = 0.1
PACE = 2.0  # fewer calls than usual: enough for every fault to meet some


@dataclass(frozen=True, slots=True)
class Stop:
    """One fault of the tour."""

    kind: str
    lasts_s: float = 0.2
    how: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Leg:
    """Faults at the same time; `well`: the leg begins when all is well, because its faults need it and do not wait
    themselves.
    """

    stops: tuple[Stop, ...]
    well: bool = False


TAKEN = ("isolate", "pause", "kill_leader")  # each lasts until another broker leads the partition of the struck leader


@dataclass(frozen=True, slots=True)
class Toured:
    """The results of the tour."""

    result: RunResult

    @property
    def history(self) -> History:
        return self.result.history

    def span(self, kind: str) -> FaultSpan:
        (found,) = [span for span in self.history.faults if span.kind == kind]
        return found

    def successors(self, span: FaultSpan) -> list[LeaderSpan]:
        """Return the leaderships of other brokers over the struck leader's partition, after the fault began."""
        struck = StruckBroker.of(span.what)
        assert struck is not None, span
        return [
            led
            for led in self.history.leaders.values()
            if (led.log[0].partition("#")[0], led.log[1]) == (struck.topic, struck.partition)
            if led.at_s >= span.began_s and led.broker != struck.broker
        ]


def drained(toured: Toured) -> set[str]:
    """Return the replicas from which workloads read to the end."""
    return {call.args["replica"] for call in toured.history.of("drain") if call.outcome is Outcome.OK}


def act(stop: Stop) -> Act:
    return Act(stop.kind, stop.how, after_s=0.0, lasts_s=stop.lasts_s, until_replaced=stop.kind in TAKEN)


def kinds(legs: Sequence[Leg]) -> list[str]:
    return [stop.kind for leg in legs for stop in leg.stops]


def tour(legs: Sequence[Leg], folder: Path, load: tuple[str, ...] = LOAD) -> Toured:
    """Run the tour. Most of its time is the restart of brokers; other faults take a second."""
    episodes = tuple(Episode(tuple(act(stop) for stop in leg.stops), GAP_S, leg.well) for leg in legs)
    plan = RunPlan(1, 400.0, tuple(dict.fromkeys(kinds(legs))), load, pace=PACE, episodes=episodes)
    needs = frozenset().union(*(kind.real.needs for kind in FAULTS.values()))
    subject = TARGETS["tinymq"](ClusterSpec(folder, needs=needs))
    try:
        began_s = time.monotonic()

        def now() -> float:
            return time.monotonic() - began_s

        run = Run(plan, subject, History(now), lambda line: print(f"{now():6.1f} s  {line}", file=sys.stderr))
        return Toured(asyncio.run(run.run()))
    finally:
        subject.target.close()
