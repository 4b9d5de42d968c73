"""A short tour of faults on real brokers under load: nothing acknowledged is lost, and each fault had an effect."""

from __future__ import annotations

import pytest

from tests.chaos.real.tour import LEADER, Leg, Stop, Toured, drained, kinds, tour
from tinymq_chaos.real.faults import FAULTS

# It has faults of every family, and each way in which a disk loses bytes. The whole tour (test_whole_tour.py) is long:
# most of its other faults restart brokers, and repeat that acknowledged records survive it.
TOUR: tuple[Leg, ...] = (
    Leg((  # each in its own part of the network, so that each is seen by itself
        Stop("wall_jump", 1.2, {**LEADER, "hours": 1.0}),
        Stop("latency", 0.8, {"where": "brokers", "latency": 100.0, "jitter": 20.0}),
        Stop("bandwidth", 0.8, {"where": "clients", "rate": 5.0}),
    ), well=True),
    Leg((
        Stop("slicer", 0.8, {"where": "clients", "average_size": 16.0, "size_variation": 8.0, "delay": 5000.0}),
        Stop("limit_data", 0.8, {"where": "brokers", "bytes": 500.0}),
        Stop("slow_sync", 0.8, {**LEADER, "seconds": 0.2, "pattern": "*"}),
    )),
    Leg((Stop("partition", 0.8, {"clients": "majority"}),)),
    Leg((Stop("isolate", 0.5, {**LEADER, "clients": "cut"}),), well=True),
    Leg((Stop("pause", 0.5, LEADER),), well=True),
    Leg((  # at two disks, during writes to both
        Stop("disk_full", 0.2, {"broker": 1.0, "bytes_left": 0.0}),
        Stop("fail_sync", 0.2, {"broker": 2.0, "pattern": "groups/*", "then": "power cut"}),
    ), well=True),
    Leg((Stop("power_cut_all"),)),
    Leg((Stop("twin", 0.5),), well=True),
    Leg((Stop("wipe_then_kill"),)),
    Leg((Stop("flip_bits", 0.2, {"file": ".log", "bits": 3.0}),)),
)  # fmt: skip
KINDS = kinds(TOUR)

pytestmark = pytest.mark.timeout(400)  # two quiet processors need half a minute, busy ones more


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> Toured:
    return tour(TOUR, tmp_path_factory.mktemp("tour"))


def test_nothing_is_wrong(toured: Toured) -> None:
    assert [str(anomaly) for anomaly in toured.result.anomalies] == []


def test_both_kinds_of_clients_met_the_faults(toured: Toured) -> None:
    assert toured.result.clients["AsyncClient"]
    assert toured.result.clients["ThreadedClient"]


def test_every_table_has_a_fault_that_happened(toured: Toured) -> None:
    families = {FAULTS[kind].family for kind in KINDS}
    assert families == {fault.family for fault in FAULTS.values()}
    assert toured.result.never == []
    assert toured.result.faults == dict.fromkeys(KINDS, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_had_an_effect(toured: Toured, kind: str) -> None:
    span = toured.span(kind)
    assert span.effect, span


@pytest.mark.parametrize("kind", ["isolate", "pause"])
def test_another_broker_took_over(toured: Toured, kind: str) -> None:
    """The fault lasted until the brokers named another leader; otherwise `test_nothing_is_wrong` fails, too."""
    assert toured.successors(toured.span(kind))


def test_records_were_acknowledged_and_read(toured: Toured) -> None:
    assert toured.result.acknowledged > 0
    assert drained(toured) == {"leader", "follower"}
    assert {replica.broker for replica in toured.history.replicas} == {1, 2, 3}
