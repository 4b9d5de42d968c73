"""The list of checkers that judge real runs is written down, and slack follows the load of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

import tinymq_chaos.real
from tinymq_chaos.checkers import CHECKERS, Facts
from tinymq_chaos.history import History
from tinymq_chaos.real.product.system import RUN
from tinymq_chaos.real.system.verdict import (
    CROWD_CALM_MAX,
    CROWD_FAIR,
    CROWD_MAX,
    NOT_JUDGED,
    SPEED,
    Slack,
    checkers,
    name_of,
)
from tinymq_chaos.workloads import WORKLOADS

PAGE = (Path(tinymq_chaos.real.__file__).parent / "README.md").read_text()
NAMES = [name_of(checker) for checker in CHECKERS]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_of_every_checker_whether_it_judges_here(name: str) -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1]]
    assert ("**not judged**" in row) == (name in NOT_JUDGED)


def test_all_others_judge() -> None:
    assert {*NOT_JUDGED} < {*NAMES}
    assert [name_of(checker) for checker in checkers(Slack())] == [name for name in NAMES if name not in NOT_JUDGED]


def test_slack_follows_the_machine_up_to_a_bound() -> None:
    still, busy, worn = Slack(), Slack().of(0.2, 2.0, 1.5), Slack().of(0.0, 100.0, 100.0)
    assert Slack().of(0.0, 0.3, 0.2) == still
    assert (busy.answer_s, busy.progress_s) == (2 * still.answer_s + 0.2, 1.5 * still.progress_s + 0.2)
    assert worn.linger_s == CROWD_MAX * still.linger_s
    assert worn.progress_s == CROWD_CALM_MAX * still.progress_s


def test_speed_is_not_judged_on_an_overloaded_machine() -> None:
    asked = [name_of(checker) for checker in checkers(Slack().of(0.0, CROWD_FAIR + 1, 1.0))]
    assert {*NAMES} - {*asked} == {*SPEED} | {*NOT_JUDGED}
    assert {*SPEED} == {
        "lingering_leaders", "restless", "no_progress", "slow_writes", "refused_by_the_last_topic",
        "unfinished_transactions", "not_caught_up", "halves_left_open",
    }  # fmt: skip
    assert Slack().of(0.0, CROWD_FAIR, 1.0).fair


def test_an_answer_within_its_slack_is_not_late() -> None:
    now_s = [0.0]
    history = History(lambda: now_s[0])
    call = history.invoke("p", "send", 4.0, topic="t#00", partition=0, records=["p-0"])
    now_s[0] = 4.9
    call.unknown("OutcomeUnknown")
    (strict,) = [c for c in checkers(Slack()) if name_of(c) == "unanswered"]
    (busy,) = [c for c in checkers(Slack().of(0.5, 1.0, 1.0)) if name_of(c) == "unanswered"]
    assert len(list(strict(Facts(history)))) == 1
    assert list(busy(Facts(history))) == []


def test_leaders_that_change_while_brokers_are_stopped_are_not_restless() -> None:
    now_s = [0.0]
    history = History(lambda: now_s[0])
    history.changed("all faults are over")
    (restless,) = [c for c in checkers(Slack()) if name_of(c) == "restless"]
    now_s[0] = 20.0
    history.end()
    for term in range(1, 6):
        now_s[0] += 0.1
        history.led(("t#00", 0), term, term % 3 + 1)
    assert list(restless(Facts(history))) == []
    history.ended_s = now_s[0]  # the same before the end
    assert len(list(restless(Facts(history)))) == 1


def test_every_workload_that_runs_is_named_on_the_page() -> None:
    assert {*RUN} - {"counted"} < {*WORKLOADS}  # that one is for real processes alone
    assert all(f"`{name}`" in PAGE for name in RUN)
