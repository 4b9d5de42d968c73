"""Transactions on real brokers while leaders and coordinators are killed: whole or not there, and each input once."""

from __future__ import annotations

import pytest

from tests.chaos.real.tour import LEADER, Leg, Stop, Toured, tour
from tinymq_chaos.history import Outcome
from tinymq_chaos.real.faults.victims import StruckBroker

KILLS = 8
LEGS: tuple[Leg, ...] = (
    *(Leg((Stop("kill_leader", 0.5),), well=True) for _ in range(KILLS)),
    Leg((Stop("isolate", 2.0, {**LEADER, "clients": "not cut"}),), well=True),
    Leg((Stop("pause", 2.0, LEADER),), well=True),
    Leg((Stop("kill_all", 0.5),), well=True),
    Leg((Stop("power_cut_all", 0.5),), well=True),
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # two quiet processors need a minute, busy ones more


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> Toured:
    return tour(LEGS, tmp_path_factory.mktemp("transactions"), load=("transfers", "processors"))


def test_nothing_is_wrong(toured: Toured) -> None:
    assert [str(anomaly) for anomaly in toured.result.anomalies] == []


def test_coordinators_and_other_leaders_were_struck(toured: Toured) -> None:
    struck = [led.topic for span in toured.history.faults if (led := StruckBroker.of(span.what)) is not None]
    assert len(struck) == KILLS + 2
    assert "__coordinator" in struck
    assert {*struck} > {"__coordinator"}


@pytest.mark.parametrize("load", ["transfers", "processors"])
def test_transactions_were_committed(toured: Toured, load: str) -> None:
    calls = [call for call in toured.history.of("transact") if call.args["transactional_id"].startswith(load)]
    assert len([call for call in calls if call.outcome is Outcome.OK]) > 20


def test_the_group_has_read_everything(toured: Toured) -> None:
    assert [call.outcome for call in toured.history.of("caught_up")] == [Outcome.OK]
