"""Every kind of fault once, on real brokers under load: nothing acknowledged is lost, and each fault did something."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from tinymq_chaos.history import FaultSpan, History, Led, Outcome
from tinymq_chaos.real.faults import FAULTS, Value
from tinymq_chaos.real.faults.chosen import Struck
from tinymq_chaos.real.run import Plan, Result, Run
from tinymq_chaos.real.schedule import Act, Episode
from tinymq_chaos.real.targets import TARGETS, Wanted

LOAD = ("idempotent", "plain", "cursors", "churn")  # the first two read from leaders, followers and the nearest, too
LEADER: Mapping[str, Value] = {"broker": 0.0, "who": "leader"}
GAP_S = 0.1
PACE = 2.0  # there are fewer calls than usual: enough for every fault to meet some


@dataclass(frozen=True, slots=True)
class Stop:
    """One kind of fault of the tour."""

    kind: str
    lasts_s: float = 0.2
    how: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Leg:
    """Kinds at the same time; `well`: it begins when all is well, since they need it and do not wait by themselves."""

    stops: tuple[Stop, ...]
    well: bool = False


TOUR: tuple[Leg, ...] = (
    Leg((  # each in its own part of the network, so that each is seen by itself
        Stop("wall_jump", 1.2, {**LEADER, "hours": 1.0}),
        Stop("latency", 0.8, {"where": "brokers", "latency": 100.0, "jitter": 20.0}),
        Stop("bandwidth", 0.8, {"where": "clients", "rate": 5.0}),
        Stop("slow_close", 0.8, {"where": "brokers", "delay": 2000.0}),
    ), well=True),
    Leg((
        Stop("slicer", 0.8, {"where": "clients", "average_size": 16.0, "size_variation": 8.0, "delay": 5000.0}),
        Stop("limit_data", 0.8, {"where": "brokers", "bytes": 500.0}),
        Stop("slow_sync", 0.8, {**LEADER, "seconds": 0.2, "pattern": "*"}),
    )),
    Leg((
        Stop("reset_peer", 0.5, {"where": "brokers", "timeout": 100.0}),
        Stop("timeout", 0.5, {"where": "clients", "timeout": 200.0}),
    )),
    Leg((Stop("star", 0.8),)),
    Leg((Stop("chain", 0.8),)),
    Leg((Stop("partition", 0.8, {"clients": "majority"}),)),
    Leg((Stop("one_way", 0.8, {**LEADER, "side": "mute", "of": "all"}),), well=True),
    Leg((Stop("isolate", 0.5, {**LEADER, "clients": "cut"}),), well=True),
    Leg((Stop("pause", 0.5, LEADER),), well=True),
    Leg((Stop("kill_leader", 0.5),), well=True),
    Leg((  # at two disks: while somebody writes to both
        Stop("disk_full", 0.2, {"broker": 1.0, "bytes_left": 0.0}),
        Stop("fail_sync", 0.2, {"broker": 2.0, "pattern": "groups/*", "then": "power cut"}),
    ), well=True),
    Leg((Stop("torn_tail", 0.2, {"broker": 1.0}), Stop("power_cut", 0.2, {"broker": 3.0})), well=True),
    Leg((Stop("kill_one"),)),  # whoever has just been started, or not: so are the next two
    Leg((Stop("kill_majority"),)),
    Leg((Stop("kill_all"),)),
    Leg((Stop("power_cut_all"),)),
    Leg((Stop("wipe", 0.0),)),
    Leg((Stop("wipe_then_kill"),)),
    Leg((Stop("rolling_restart", 0.0),)),
    Leg((Stop("read_error"),)),  # the last two: from them on no other disk may be damaged
    Leg((Stop("flip_bits", 0.2, {"file": ".log", "bits": 3.0}),)),
)  # fmt: skip
KINDS = [stop.kind for leg in TOUR for stop in leg.stops]
TAKEN = ("isolate", "pause", "kill_leader")  # each goes on until another broker leads what the struck one led
POWER = ("fail_sync", "power_cut", "power_cut_all")
LOST = re.compile(r"(\d+) (?:lost of|sectors|sizes|names)")


@dataclass(frozen=True, slots=True)
class Toured:
    """What is left of the tour."""

    result: Result

    @property
    def history(self) -> History:
        return self.result.history

    def span(self, kind: str) -> FaultSpan:
        (found,) = [span for span in self.history.faults if span.kind == kind]
        return found

    def successors(self, span: FaultSpan) -> list[Led]:
        """Leaderships, after the fault began, of other brokers over the partition that the struck one led."""
        struck = Struck.of(span.what)
        assert struck is not None, span
        return [
            led
            for led in self.history.leaders.values()
            if (led.log[0].partition("#")[0], led.log[1]) == (struck.topic, struck.partition)
            if led.at_s >= span.began_s and led.broker != struck.broker
        ]


def act(stop: Stop) -> Act:
    return Act(stop.kind, stop.how, after_s=0.0, lasts_s=stop.lasts_s, until_replaced=stop.kind in TAKEN)


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toured]:
    folder = tmp_path_factory.mktemp("tour")
    episodes = tuple(Episode(tuple(act(stop) for stop in leg.stops), GAP_S, leg.well) for leg in TOUR)
    plan = Plan(1, 400.0, tuple(KINDS), LOAD, pace=PACE, episodes=episodes)
    needs = frozenset().union(*(kind.needs for kind in FAULTS.values()))
    subject = TARGETS["tinymq"](Wanted(folder, needs=needs))
    try:
        began_s = time.monotonic()

        def now() -> float:
            return time.monotonic() - began_s

        run = Run(plan, subject, History(now), lambda line: print(f"{now():6.1f} s  {line}", file=sys.stderr))
        yield Toured(asyncio.run(run.run()))
    finally:
        subject.target.close()


pytestmark = pytest.mark.timeout(600)  # two quiet processors need 70 s, busy ones more


def test_nothing_is_wrong(toured: Toured) -> None:
    assert [str(anomaly) for anomaly in toured.result.anomalies] == []


def test_every_kind_of_fault_happened(toured: Toured) -> None:
    assert {*KINDS} == {*FAULTS}
    assert toured.result.never == []
    assert toured.result.faults == dict.fromkeys(KINDS, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_it_did_something_where_it_was_done(toured: Toured, kind: str) -> None:
    span = toured.span(kind)
    assert span.effect, span


@pytest.mark.parametrize("kind", TAKEN)
def test_another_broker_took_over(toured: Toured, kind: str) -> None:
    """The fault went on until the brokers named another leader: else `test_nothing_is_wrong` fails, too."""
    assert toured.successors(toured.span(kind))


def test_power_cuts_took_something(toured: Toured) -> None:
    told = [toured.span(kind).effect or "" for kind in POWER]
    assert sum(int(number) for words in told for number in LOST.findall(words)) > 0, told


def test_records_were_acknowledged_and_read(toured: Toured) -> None:
    assert toured.result.acknowledged > 300, "a quick machine is through with the tour sooner: 952 were seen"
    drained = [call for call in toured.history.of("drain") if call.outcome is Outcome.OK]
    assert {call.args["replica"] for call in drained} == {"leader", "follower"}
    assert {replica.broker for replica in toured.history.replicas} == {1, 2, 3}
