"""Faults of the network: which directions each cuts or slows, and that all of it is undone."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.chaos.real.stand_in import StandIn
from tinymq_chaos.history import History
from tinymq_chaos.real.faults import FAULTS, Family, Value
from tinymq_chaos.real.net.network import CLIENTS, Direction
from tinymq_chaos.real.run.stage import RecordingStage

TOXICS = ("latency", "bandwidth", "slow_close", "reset_peer", "slicer", "limit_data", "timeout")


class Scene:
    def __init__(self, nodes: int = 3) -> None:
        self.target = StandIn(nodes)
        self.stage = RecordingStage(self.target, History())
        self.stage.topics.append(("t", 0))
        self.target.leads["t", 0] = 1

    def begin(self, kind: str, seed: int = 1, **how: Value) -> Iterator[str | None]:
        usual = {name: values[0] for name, values in FAULTS[kind].real.parameters.items()}
        fault = FAULTS[kind].begin(self.stage, random.Random(seed), usual | how)
        self.words = next(fault)
        return fault

    @property
    def cut(self) -> frozenset[Direction]:
        return frozenset().union(*self.target.net.cuts.values())

    def among(self) -> frozenset[Direction]:
        """Return the cuts between brokers."""
        return frozenset(pair for pair in self.cut if CLIENTS not in pair)


@pytest.mark.parametrize("kind", [name for name, fault in FAULTS.items() if fault.family is Family.NETWORK])
@pytest.mark.parametrize("nodes", [3, 5])
def test_every_network_fault_changes_something_and_undoes_its_changes(kind: str, nodes: int) -> None:
    scene = Scene(nodes)
    parameters = FAULTS[kind].real.parameters
    for seed in range(8):
        rng = random.Random(seed)
        fault = scene.begin(kind, seed, **{name: rng.choice(values) for name, values in parameters.items()})
        assert scene.words
        assert scene.target.net.cuts or scene.target.net.toxics
        assert next(fault, None) is None
        assert not scene.target.net.cuts
        assert not scene.target.net.toxics


def test_an_isolated_leader_talks_to_clients_or_not() -> None:
    scene = Scene()
    fault = scene.begin("isolate", clients="not cut")
    assert scene.cut == {(1, 2), (2, 1), (1, 3), (3, 1)}
    next(fault, None)
    scene.begin("isolate", clients="cut")
    assert scene.cut == {(1, 2), (2, 1), (1, 3), (3, 1), (1, CLIENTS), (CLIENTS, 1)}


@pytest.mark.parametrize("nodes", [3, 5])
def test_a_partition_leaves_a_majority_together(nodes: int) -> None:
    for seed in range(20):
        scene = Scene(nodes)
        scene.begin("partition", seed)
        together = [{n, *(m for m in scene.target.brokers if m != n and (n, m) not in scene.cut)}
                    for n in scene.target.brokers]  # fmt: skip
        assert max(map(len, together)) > nodes / 2
        assert {*together[0]} != {*scene.target.brokers}
        assert all((b, a) in scene.cut for a, b in scene.cut), "both ways"


def test_clients_are_on_both_sides_of_a_partition_or_on_one() -> None:
    sizes = {}
    for where in ("both", "majority", "minority"):
        scene = Scene(5)
        scene.begin("partition", 2, clients=where)
        sizes[where] = len({pair for pair in scene.cut if CLIENTS in pair}) // 2
    assert sizes["both"] == 0
    assert sizes["majority"] < sizes["minority"], "from so many brokers clients are cut off"


def test_a_one_way_cut_stops_one_direction() -> None:
    scene = Scene()
    scene.begin("one_way", side="deaf", of="all")
    assert scene.cut == {(2, 1), (3, 1)}
    scene.target.net.mend_all()
    scene.begin("one_way", side="mute", of="all")
    assert scene.cut == {(1, 2), (1, 3)}
    scene.target.net.mend_all()
    scene.begin("one_way", side="deaf", of="one")
    assert len(scene.cut) == 1


@pytest.mark.parametrize(("nodes", "apart"), [(3, 1), (5, 6)])
def test_in_a_chain_each_broker_reaches_only_its_neighbours(nodes: int, apart: int) -> None:
    scene = Scene(nodes)
    scene.begin("chain")
    assert len(scene.among()) == 2 * apart
    neighbours = {
        n: {m for m in scene.target.brokers if m != n and (n, m) not in scene.cut} for n in range(1, nodes + 1)
    }
    assert sorted(map(len, neighbours.values())) == [1, 1] + [2] * (nodes - 2)
    assert scene.cut == scene.among(), "clients reach all of them"


def test_in_a_star_the_others_talk_only_to_the_centre() -> None:
    scene = Scene(5)
    scene.begin("star")
    others = [2, 3, 4, 5]
    assert scene.cut == {(a, b) for a in others for b in others if a != b}


@pytest.mark.parametrize("kind", TOXICS)
def test_toxics_have_toxiproxys_own_attributes(kind: str) -> None:
    scene = Scene()
    scene.begin(kind, where="brokers")
    ((toxic, directions, toxicity, attributes),) = scene.target.net.toxics.values()
    assert (toxic, toxicity) == (kind, 1.0)
    assert len(directions) == 6
    assert {*attributes} == {*FAULTS[kind].real.parameters} - {"where"}


def test_a_toxic_lies_on_the_named_part_of_the_network() -> None:
    scene = Scene()
    for where, directions in (("brokers", 6), ("clients", 6), ("all", 12)):
        fault = scene.begin("latency", where=where)
        ((_, found, _, _),) = scene.target.net.toxics.values()
        assert len(found) == directions
        next(fault, None)


def test_two_faults_of_one_kind_end_separately() -> None:
    scene = Scene()
    first, second = scene.begin("latency"), scene.begin("latency")
    next(first, None)
    assert len(scene.target.net.toxics) == 1
    next(second, None)
    assert not scene.target.net.toxics
