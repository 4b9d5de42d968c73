"""Transactions, half messages and delayed records on real brokers while leaders and coordinators are killed."""

from __future__ import annotations

import pytest

from tests.chaos.real.tour import LEADER, Leg, Stop, Toured, tour
from tinymq_chaos.history import Outcome
from tinymq_chaos.real.faults.victims import StruckBroker

KILLS = 8
LOAD = ("transfers", "processors", "results", "halves", "scheduled")
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
    return tour(LEGS, tmp_path_factory.mktemp("transactions"), load=LOAD)


def test_nothing_is_wrong(toured: Toured) -> None:
    assert [str(anomaly) for anomaly in toured.result.anomalies] == []


def test_coordinators_and_other_leaders_were_struck(toured: Toured) -> None:
    struck = [led.topic for span in toured.history.faults if (led := StruckBroker.of(span.what)) is not None]
    assert len(struck) == KILLS + 2
    assert "__coordinator" in struck
    assert {*struck} > {"__coordinator"}


@pytest.mark.parametrize("load", ["transfers", "processors", "results"])
def test_transactions_were_committed(toured: Toured, load: str) -> None:
    calls = [call for call in toured.history.of("transact") if call.args["transactional_id"].startswith(load)]
    assert len([call for call in calls if call.outcome is Outcome.OK]) > 20


def test_both_groups_have_read_everything(toured: Toured) -> None:
    assert [call.outcome for call in toured.history.of("caught_up")] == [Outcome.OK] * 2


def test_half_messages_are_decided_by_their_senders_and_by_checkers(toured: Toured) -> None:
    ends = [call.args["commit"] for call in toured.history.of("end_half") if call.outcome is Outcome.OK]
    checks = [call.result for call in toured.history.of("check_half") if call.outcome is Outcome.OK]
    assert min(ends.count(True), ends.count(False)) > 5
    assert min(checks.count("commit"), checks.count("rollback")) > 2
    assert [call.outcome for call in toured.history.of("halves_over")] == [Outcome.OK]


def test_delayed_records_are_canceled_or_not(toured: Toured) -> None:
    stored = [call for call in toured.history.of("schedule") if call.outcome is Outcome.OK]
    canceled = [call for call in toured.history.of("cancel") if call.outcome is Outcome.OK and call.result]
    assert len(stored) > len(canceled) > 2
