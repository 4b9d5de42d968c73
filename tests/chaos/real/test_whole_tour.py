"""The whole tour: every fault once. Nothing acknowledged is lost, and each fault had an effect."""

from __future__ import annotations

import re

import pytest

from tests.chaos.real.tour import LEADER, TAKEN, Leg, Stop, Toured, drained, kinds, tour
from tinymq_chaos.real.faults import FAULTS

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
    Leg((  # at two disks, during writes to both
        Stop("disk_full", 0.2, {"broker": 1.0, "bytes_left": 0.0}),
        Stop("fail_sync", 0.2, {"broker": 2.0, "pattern": "groups/*", "then": "power cut"}),
    ), well=True),
    Leg((Stop("torn_tail", 0.2, {"broker": 1.0}), Stop("power_cut", 0.2, {"broker": 3.0})), well=True),
    Leg((Stop("kill"),)),  # any broker, even one that has just started; the next two do the same
    Leg((Stop("kill_majority"),)),
    Leg((Stop("kill_all"),)),
    Leg((Stop("power_cut_all"),)),
    Leg((Stop("wipe", 0.0),)),
    Leg((Stop("twin", 0.5),), well=True),
    Leg((Stop("wipe_then_kill"),)),
    Leg((Stop("rolling_restart", 0.0),)),
    Leg((Stop("read_error"),)),  # the last two: after them no other disk may be damaged
    Leg((Stop("flip_bits", 0.2, {"file": ".log", "bits": 3.0}),)),
)  # fmt: skip
KINDS = kinds(TOUR)
POWER = ("fail_sync", "power_cut", "power_cut_all")
LOST = re.compile(r"(\d+) (?:lost of|sectors|sizes|names)")

# each run of the tests has a part of it, test_tour.py
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # two quiet processors need 70 s, busy ones more


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> Toured:
    return tour(TOUR, tmp_path_factory.mktemp("tour"))


def test_nothing_is_wrong(toured: Toured) -> None:
    assert [str(anomaly) for anomaly in toured.result.anomalies] == []


def test_every_kind_of_fault_happened(toured: Toured) -> None:
    assert {*KINDS} == {*FAULTS}
    assert toured.result.never == []
    assert toured.result.faults == dict.fromkeys(KINDS, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_had_an_effect(toured: Toured, kind: str) -> None:
    span = toured.span(kind)
    assert span.effect, span


@pytest.mark.parametrize("kind", TAKEN)
def test_another_broker_took_over(toured: Toured, kind: str) -> None:
    """The fault lasted until the brokers named another leader; otherwise `test_nothing_is_wrong` fails, too."""
    assert toured.successors(toured.span(kind))


def test_power_cuts_took_something(toured: Toured) -> None:
    told = [toured.span(kind).effect or "" for kind in POWER]
    assert sum(int(number) for words in told for number in LOST.findall(words)) > 0, told


def test_records_were_acknowledged_and_read(toured: Toured) -> None:
    assert toured.result.acknowledged > 300, "a quick machine is through with the tour sooner: 952 were seen"
    assert drained(toured) == {"leader", "follower"}
    assert {replica.broker for replica in toured.history.replicas} == {1, 2, 3}
