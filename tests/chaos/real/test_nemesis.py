"""Faults begin and end by name, overlap, and are in the history; only one disk at a time is damaged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count

import pytest

from tests.chaos.real.stand_in import StandIn
from tinymq_chaos.history import History
from tinymq_chaos.real.faults import ANYBODY, FAULTS, Family, Parameters, Real, RealFault, Stage
from tinymq_chaos.real.run.nemesis import Nemesis


def lose(stage: Stage, rng: random.Random, how: Parameters) -> Iterator[str | None]:
    """A disk is replaced by an empty one."""
    broker = int(how["broker"])
    stage.kill(broker)
    stage.wipe(broker)
    yield f"broker {broker}"
    stage.start(broker)


def fail(stage: Stage, rng: random.Random, how: Parameters) -> Iterator[str | None]:
    yield "it ends badly"
    raise RuntimeError("badly")


def forget(stage: Stage, rng: random.Random, how: Parameters) -> Iterator[str | None]:
    yield "of groups/* at broker 3, then power cut"


LOSES = RealFault(lose, Family.FILES, Real((1.0,), {"broker": (ANYBODY,)}, damages=True))
SCARS = RealFault(lose, Family.FILES, Real((1.0,), {"broker": (ANYBODY,)}, damages=True, scars=True))
KINDS = {
    **FAULTS, "lose": LOSES, "scar": SCARS, "forget": RealFault(forget, Family.DISK, Real((1.0,), forgets=True)),
    "fail": RealFault(fail, Family.CLOCK, Real((1.0,))),
    "needy": RealFault(fail, Family.DISK, Real((1.0,), needs=frozenset({"disks"}))),
}  # fmt: skip


class Scene:
    """A nemesis, its target, and its history."""

    def __init__(self, nodes: int = 3) -> None:
        ticks = count()
        self.target = StandIn(nodes)
        self.history = History(lambda: float(next(ticks)))
        self.nemesis = Nemesis(self.target, self.history, random.Random(1), faults=KINDS)

    @property
    def said(self) -> list[str]:
        return [change.what for change in self.history.changes]


def test_a_fault_is_in_the_history_from_its_beginning_to_its_end() -> None:
    scene = Scene()
    with scene.nemesis.fault("pause", broker=2.0, who="anyone") as under_way:
        assert scene.target.stopped == {2}
        assert under_way.span.ended_s is None
    assert scene.target.stopped == set()
    (span,) = scene.history.faults
    assert (span.kind, span.what) == ("pause", "broker 2")
    assert span.ended_s is not None
    assert span.began_s < span.ended_s
    assert scene.said == [
        "a fault begins: pause", "broker 2 stands still", "FAULT pause: broker 2",
        "broker 2 goes on", "FAULT pause is over",
    ]  # fmt: skip
    assert [change.paused for change in scene.history.changes] == [(), (2,), (2,), (), ()]
    assert scene.nemesis.happened == {"pause": 1}


def test_an_impossible_fault_is_none_and_leaves_no_trace_in_the_history() -> None:
    scene = Scene()
    assert scene.nemesis.begin("kill_leader") is None  # nothing is written, so no partition has a leader
    assert scene.history.faults == []
    assert not scene.nemesis.happened
    with pytest.raises(RuntimeError, match="kill_leader cannot happen now"), scene.nemesis.fault("kill_leader"):
        pass


def test_the_leader_of_a_written_partition_is_killed() -> None:
    scene = Scene()
    scene.nemesis.stage.topics.append(("t", 0))
    scene.target.leads["t", 0] = 3
    with scene.nemesis.fault("kill_leader"):
        assert scene.target.up == {1, 2}
    assert scene.target.up == {1, 2, 3}
    assert "broker 3 is killed" in scene.said  # checkers look for these words


def test_overlapping_faults_of_one_process_do_not_trip_over_each_other() -> None:
    scene = Scene()
    paused = scene.nemesis.begin("pause", broker=1.0, who="anyone")
    killed = scene.nemesis.begin("kill_all")
    assert paused is not None
    assert killed is not None
    assert scene.target.up == {1}, "who stands still is not up: it is left to the fault that stopped it"
    scene.nemesis.stage.kill(1)
    scene.nemesis.end(killed)
    scene.nemesis.stage.start(1)
    scene.nemesis.end(paused)
    assert scene.target.up == {1, 2, 3}
    assert scene.nemesis.stage.paused == frozenset()


def test_all_faults_end_and_all_brokers_run() -> None:
    scene = Scene()
    for kind in ("isolate", "latency", "pause", "kill", "partition"):
        how: dict[str, float | str] = {"who": "anyone"} if "who" in KINDS[kind].real.parameters else {}
        assert scene.nemesis.begin(kind, **how) is not None
    assert scene.target.unhealthy()
    scene.nemesis.end_all()
    assert scene.target.unhealthy() == ""
    assert (scene.target.net.cuts, scene.target.net.toxics) == ({}, {})
    assert all(span.ended_s is not None for span in scene.history.faults)
    scene.nemesis.end_all()  # a second call does nothing


def test_a_fault_whose_end_fails_keeps_no_other_from_ending() -> None:
    scene = Scene()
    scene.nemesis.begin("kill_majority")
    scene.nemesis.begin("fail")
    with pytest.raises(RuntimeError, match="badly"):
        scene.nemesis.end_all()
    assert scene.target.up == {1, 2, 3}
    assert all(span.ended_s is not None for span in scene.history.faults)


def test_damage_comes_to_one_disk_at_a_time_and_to_the_next_when_all_is_well() -> None:
    scene = Scene()
    first = scene.nemesis.begin("lose", broker=2.0)
    assert first is not None
    assert scene.nemesis.begin("lose", broker=3.0) is None
    scene.nemesis.end(first)
    scene.target.ill = "broker 2 is filled again"
    assert scene.nemesis.begin("lose", broker=3.0) is None
    scene.target.ill = ""
    assert scene.nemesis.begin("lose", broker=3.0) is not None
    assert scene.target.wiped == {2, 3}
    assert scene.nemesis.hurt == {2, 3}


def test_brokers_with_possible_losses_are_known() -> None:
    scene = Scene()
    with scene.nemesis.fault("forget"), scene.nemesis.fault("kill", broker=1.0):
        assert scene.nemesis.hurt == {3}


def test_a_damaged_broker_is_trusted_again_once_all_was_well() -> None:
    scene = Scene()
    nemesis = scene.nemesis
    with nemesis.fault("lose", broker=2.0):
        nemesis.all_well(nemesis.harm)
        assert nemesis.mended == frozenset()  # the fault is not over
    before = nemesis.harm
    nemesis.all_well(before)
    mended = nemesis.mended
    assert (mended, nemesis.hurt) == ({2}, {2})  # the reports until now are not read yet
    with nemesis.fault("lose", broker=2.0):
        pass
    nemesis.trust(mended)
    assert nemesis.hurt == {2}, "it was hurt anew since"
    nemesis.all_well(before)
    assert nemesis.mended == frozenset(), "whoever looked, looked before that"
    nemesis.all_well(nemesis.harm)
    nemesis.trust(nemesis.mended)
    assert nemesis.hurt == set()
    with nemesis.fault("scar", broker=3.0):
        pass
    nemesis.all_well(nemesis.harm)
    nemesis.trust(nemesis.mended)
    assert nemesis.hurt == {3}, "its damage may lie undiscovered"


def test_after_undiscovered_damage_no_other_broker_is_damaged() -> None:
    scene = Scene()
    with scene.nemesis.fault("scar", broker=2.0):
        pass
    assert scene.nemesis.scarred == 2
    assert scene.nemesis.begin("lose", broker=1.0) is None
    with scene.nemesis.fault("lose") as under_way:
        assert under_way.broker == 2


def test_wrong_names_are_distinguished_from_right_names() -> None:
    nemesis = Scene().nemesis
    with pytest.raises(ValueError, match="'explode' is not one of isolate, partition"):
        nemesis.begin("explode")
    with pytest.raises(ValueError, match="pause has no whom; it has broker, who"):
        nemesis.begin("pause", whom=1.0)
    with pytest.raises(ValueError, match="needy needs disks, which this cluster is without"):
        nemesis.begin("needy")
    assert "needy" not in nemesis.kinds


def test_a_repeating_fault_is_a_cause_as_long_as_it_lasts() -> None:
    scene = Scene()
    with scene.nemesis.fault("reset_peer"), scene.nemesis.fault("latency"):
        before = len(scene.said)
        scene.nemesis.strike()
        assert scene.said[before:] == ["FAULT reset_peer goes on"]
