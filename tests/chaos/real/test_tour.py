"""Every kind of fault once, on real brokers under load: nothing acknowledged is lost, and each fault did something."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from tinymq_chaos.history import FaultSpan, History, Outcome
from tinymq_chaos.real.faults import FAULTS, Value
from tinymq_chaos.real.run import Plan, Result, Run
from tinymq_chaos.real.schedule import Act, Episode
from tinymq_chaos.real.targets import TARGETS, Wanted

LOAD = ("idempotent", "plain", "cursors", "churn")  # the first two read from leaders, followers and the nearest, too
LEADER: Mapping[str, Value] = {"broker": 0.0, "who": "leader"}


@dataclass(frozen=True, slots=True)
class Stop:
    """One kind of fault of the tour. `shows`: what it has to do to the cluster or its clients, so that it was none of
    those that do nothing; a method of Toured, and the least of it."""

    kind: str
    lasts_s: float
    shows: tuple[str, float]
    how: Mapping[str, Value] = field(default_factory=dict)


GAP_S = 0.2
NEW_LEADERS, LOST, SLOWER, SILENCE_S, STARTS = "new_leaders", "lost", "slower", "silence_s", "starts"
TOUR: tuple[Stop, ...] = (
    Stop("kill_one", 0.5, (LOST, 1)),
    Stop("kill_leader", 0.5, (NEW_LEADERS, 1)),
    Stop("pause", 2.0, (NEW_LEADERS, 1), LEADER),
    Stop("isolate", 2.0, (NEW_LEADERS, 1), {**LEADER, "clients": "cut"}),
    Stop("one_way", 2.0, (NEW_LEADERS, 1), {**LEADER, "side": "mute", "of": "all"}),
    Stop("partition", 2.0, (LOST, 1), {"clients": "majority"}),
    Stop("chain", 2.0, (LOST, 1)),
    Stop("star", 2.0, (LOST, 1)),
    Stop("latency", 1.0, (SLOWER, 2), {"where": "all", "latency": 100.0, "jitter": 20.0}),
    Stop("bandwidth", 1.0, (SLOWER, 2), {"where": "all", "rate": 5.0}),
    Stop("slicer", 1.0, (SLOWER, 2), {"where": "all", "average_size": 16.0, "size_variation": 8.0, "delay": 5000.0}),
    Stop("reset_peer", 1.0, (LOST, 1), {"where": "brokers", "timeout": 100.0}),
    Stop("limit_data", 1.0, (SLOWER, 2), {"where": "brokers", "bytes": 500.0}),
    Stop("timeout", 1.0, (SILENCE_S, 0.7), {"where": "clients", "timeout": 200.0}),
    Stop("slow_sync", 2.5, (NEW_LEADERS, 1), {**LEADER, "seconds": 1.5, "pattern": "*"}),
    Stop("disk_full", 0.5, (STARTS, 1), {**LEADER, "bytes_left": 0.0}),
    Stop("slow_close", 0.5, (STARTS, 0)),  # shows where a connection ends, and nowhere else (test_net.py)
    Stop("wall_jump", 1.5, (STARTS, 0), {**LEADER, "hours": 1.0}),  # shows in nothing that is promised
    Stop("fail_sync", 0.5, (STARTS, 1), {**LEADER, "pattern": "groups/*", "then": "power cut"}),
    Stop("power_cut", 0.5, (STARTS, 1), LEADER),
    Stop("torn_tail", 0.5, (STARTS, 1)),
    Stop("wipe", 0.0, (STARTS, 1)),
    Stop("wipe_then_kill", 0.5, (STARTS, 3)),
    Stop("rolling_restart", 0.0, (STARTS, 3)),
    Stop("kill_majority", 0.5, (SILENCE_S, 0.5)),
    Stop("kill_all", 0.5, (SILENCE_S, 0.5)),
    Stop("power_cut_all", 0.5, (SILENCE_S, 0.5)),
    Stop("read_error", 0.5, (STARTS, 2)),  # the last two: from them on no other disk may be damaged
    Stop("flip_bits", 0.5, (STARTS, 1), {"file": ".log", "bits": 3.0}),
)
AT_ONCE = {
    "star", "latency", "bandwidth", "slicer", "reset_peer", "limit_data", "timeout", "slow_close", "wall_jump",
    "torn_tail", "kill_majority", "kill_all", "power_cut_all", "wipe", "rolling_restart", "read_error", "flip_bits",
}  # fmt: skip
"""Those that need nobody well, or wait for it by themselves."""
AFTER_S = 1.5  # an effect may come so long after a fault's end; after those that damage a disk, until the next fault
WINDOW = ("disk", "files")


@dataclass(frozen=True, slots=True)
class Toured:
    """What is left of the tour."""

    result: Result
    began: float  # of the history, seconds since 1970
    folder: Path

    @property
    def history(self) -> History:
        return self.result.history

    def span(self, kind: str) -> FaultSpan:
        (found,) = [span for span in self.history.faults if span.kind == kind]
        return found

    def new_leaders(self, span: FaultSpan) -> int:
        """How many partitions had another leader while it lasted, or shortly after."""
        led = self.history.leaders.values()
        began = [each for each in led if span.began_s <= each.at_s <= _end(span) + AFTER_S]
        return sum(any(o.log == e.log and o.term < e.term and o.broker != e.broker for o in led) for e in began)

    def silence_s(self, span: FaultSpan) -> float:
        """The longest time without any acknowledgement while it lasted, or shortly after."""
        inside = sorted(at for at in self._acknowledged() if span.began_s <= at <= _end(span) + AFTER_S)
        return max(after - before for before, after in pairwise([span.began_s, *inside, _end(span) + AFTER_S]))

    def slower(self, span: FaultSpan) -> float:
        """By how much half of the writes that began while it lasted took longer than those when all was quiet."""
        calm_s = self.history.calm_s
        assert calm_s is not None
        return self._median_s(span.began_s, _end(span)) / self._median_s(calm_s + 3.0, float("inf"))

    def lost(self, span: FaultSpan) -> int:
        """How often a broker lost another one."""
        return self.said(span, "broker_gone|broker_deaf")

    def starts(self, span: FaultSpan) -> int:
        """How many brokers were started again."""
        return self.said(span, "process_started")

    def said(self, span: FaultSpan, pattern: str) -> int:
        """How many lines with this brokers wrote into their logs while it lasted, or shortly after."""
        later_s = 4.0 if FAULTS[span.kind].group in WINDOW else AFTER_S
        return sum(
            span.began_s - 0.5 <= at - self.began <= _end(span) + later_s and re.search(pattern, line) is not None
            for line, at in self._lines()
        )

    def _acknowledged(self) -> Iterator[float]:
        return (c.ended_s for c in self.history.of("send") if c.outcome is Outcome.OK and c.ended_s is not None)

    def _median_s(self, from_s: float, until_s: float) -> float:
        sends = [c for c in self.history.of("send") if from_s <= c.invoked_s <= until_s and c.ended_s is not None]
        return median((c.ended_s or 0.0) - c.invoked_s for c in sends)

    def _lines(self) -> Iterator[tuple[str, float]]:
        for path in sorted(self.folder.glob("broker-*.log")):
            for line in path.read_text().splitlines():
                event: Mapping[str, str] = json.loads(line) if line.startswith("{") else {}
                if "timestamp" in event:
                    yield line, datetime.fromisoformat(event["timestamp"]).timestamp()


def _end(span: FaultSpan) -> float:
    assert span.ended_s is not None
    return span.ended_s


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toured]:
    folder = tmp_path_factory.mktemp("tour")
    episodes = tuple(
        Episode((Act(stop.kind, stop.how, 0.0, stop.lasts_s),), GAP_S, stop.kind not in AT_ONCE) for stop in TOUR
    )
    plan = Plan(1, 400.0, tuple(stop.kind for stop in TOUR), LOAD, episodes=episodes)
    needs = frozenset().union(*(kind.needs for kind in FAULTS.values()))
    subject = TARGETS["tinymq"](Wanted(folder, needs=needs))
    try:
        began_s, began = time.monotonic(), time.time()
        run = Run(plan, subject, History(lambda: time.monotonic() - began_s), lambda line: print(line, file=sys.stderr))
        yield Toured(asyncio.run(run.run()), began, folder)
    finally:
        subject.target.close()


pytestmark = pytest.mark.timeout(600)  # a quiet machine needs less than 120 s, a full one more


def test_nothing_is_wrong(toured: Toured) -> None:
    assert [str(anomaly) for anomaly in toured.result.anomalies] == []


def test_every_kind_of_fault_happened(toured: Toured) -> None:
    assert {stop.kind for stop in TOUR} == {*FAULTS}
    assert toured.result.never == []
    assert toured.result.faults == {stop.kind: 1 for stop in TOUR}


@pytest.mark.parametrize("stop", TOUR, ids=lambda stop: stop.kind)
def test_it_did_something(toured: Toured, stop: Stop) -> None:
    what, least = stop.shows
    assert getattr(toured, what)(toured.span(stop.kind)) >= least


def test_records_were_acknowledged_and_read(toured: Toured) -> None:
    assert toured.result.acknowledged > 1000
    drained = [call for call in toured.history.of("drain") if call.outcome is Outcome.OK]
    assert {call.args["replica"] for call in drained} == {"leader", "follower"}
    assert {replica.broker for replica in toured.history.replicas} == {1, 2, 3}
