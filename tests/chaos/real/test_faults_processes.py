"""Faults of processes: which brokers they strike, and that all of it is undone."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.chaos.real.stand_in import StandIn
from tinymq_chaos.history import History
from tinymq_chaos.real.faults import FAULTS, Value, processes
from tinymq_chaos.real.faults.victims import StruckBroker
from tinymq_chaos.real.run.stage import RecordingStage


class Scene:
    def __init__(self, nodes: int = 3, target: StandIn | None = None) -> None:
        self.target = target or StandIn(nodes)
        self.history = History()
        self.stage = RecordingStage(self.target, self.history)

    def begin(self, kind: str, seed: int = 1, **how: Value) -> tuple[Iterator[str | None], str | None]:
        usual = {name: values[0] for name, values in FAULTS[kind].real.parameters.items()}
        fault = FAULTS[kind].begin(self.stage, random.Random(seed), usual | how)
        return fault, next(fault)


@pytest.mark.parametrize(("kind", "nodes", "left"), [
    ("kill", 3, 2), ("kill_majority", 3, 1), ("kill_majority", 5, 2), ("kill_all", 3, 0), ("kill_all", 5, 0),
])  # fmt: skip
def test_so_many_are_killed_and_all_of_them_start_again(kind: str, nodes: int, left: int) -> None:
    scene = Scene(nodes)
    fault, words = scene.begin(kind)
    assert words is not None
    assert len(scene.target.up) == left
    assert next(fault, None) is None
    assert scene.target.up == {*scene.target.brokers}
    assert sum("is killed" in change.what for change in scene.history.changes) == nodes - left


def test_all_are_killed_in_one_call() -> None:
    """All end at once, as in a fire: no broker learns of the end of another one first."""
    scene = Scene()
    scene.begin("kill_all")
    assert scene.target.done == ["kill 1", "kill 2", "kill 3"]


@pytest.mark.parametrize("kind", ["kill", "kill_majority", "kill_all", "pause"])
def test_a_fault_without_running_brokers_is_impossible(kind: str) -> None:
    scene = Scene()
    scene.target.kill(1, 2, 3)
    _, words = scene.begin(kind)
    assert words is None


def test_the_reported_leader_is_the_one_that_brokers_name() -> None:
    scene = Scene()
    scene.stage.topics += [("a", 0), ("b", 1)]
    scene.target.leads = {("a", 0): None, ("b", 1): 2}
    for seed in range(5):
        fault, words = scene.begin("kill_leader", seed)
        assert words == "broker 2, leader of b/1"
        assert StruckBroker.of(words) == StruckBroker(2, "b", 1)
        next(fault, None)


class MovedLeadership(StandIn):
    """Broker 2 loses its leadership to broker 3 at the moment when a fault first strikes it."""

    def pause(self, *brokers: int) -> None:
        super().pause(*brokers)
        self.leads = {("a", 0): 3}

    def kill(self, *brokers: int) -> None:
        super().kill(*brokers)
        self.leads = {("a", 0): 3}


@pytest.mark.parametrize(("kind", "undone"), [("pause", "resume 2"), ("kill_leader", "start 2")])
def test_a_fault_for_a_leader_strikes_a_broker_that_still_leads(kind: str, undone: str) -> None:
    scene = Scene(target=MovedLeadership(3))
    scene.stage.topics += [("a", 0)]
    scene.target.leads = {("a", 0): 2}
    fault, words = scene.begin(kind)
    assert words == "broker 3, leader of a/0"
    assert undone in scene.target.done
    next(fault, None)


class RestlessLeadership(StandIn):
    """Each paused broker has just lost its leadership to the next one."""

    def pause(self, *brokers: int) -> None:
        super().pause(*brokers)
        self.leads = {("a", 0): brokers[-1] % len(self.brokers) + 1}


def test_a_fault_gives_up_on_a_leadership_that_keeps_moving() -> None:
    scene = Scene(target=RestlessLeadership(3))
    scene.stage.topics += [("a", 0)]
    scene.target.leads = {("a", 0): 2}
    _, words = scene.begin("pause")
    assert words is None
    assert scene.stage.paused == frozenset()


def test_a_fault_strikes_the_named_broker() -> None:
    scene = Scene()
    fault, words = scene.begin("pause", broker=3.0, who="anyone")
    assert words == "broker 3"
    assert scene.stage.paused == {3}
    next(fault, None)
    assert scene.target.stopped == set()


def test_a_rolling_restart_stops_each_politely_and_waits_for_its_return() -> None:
    scene = Scene()
    fault, words = scene.begin("rolling_restart")
    assert words is not None
    assert next(fault, None) is None
    order = words.removeprefix("in the order ").split(", ")
    assert scene.target.done == [f"{what} {n}" for n in order for what in ("stop", "start")]


def test_a_rolling_restart_goes_no_further_when_all_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "HEALTHY_S", 0.05)
    scene = Scene()
    scene.target.ill = "a replica is missing"
    fault, _ = scene.begin("rolling_restart")
    assert next(fault, None) is None
    assert scene.target.done == []
