"""Acks in transactions: what must never happen to their records is found, and what only looks like it is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.story import Story
from tests.chaos.test_checkers_queue_groups import good_group, in_a_group, job, lease, settle, state
from tinymq_chaos.checkers import AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.checkers.records import staged_acks
from tinymq_chaos.group_changes import ENDED, GRANTED

CHECKERS = [staged_acks.granted_while_staged, staged_acks.charged_while_staged]


def take(s: Story) -> None:
    """A worker has the record at 2, and stages its ack."""
    lease(s, GRANTED, "a", 2)
    job(s, "a", 2)
    lease(s, ENDED, "a", 2)
    state(s, 2, staged=(2,))


def a_record_that_a_transaction_has(s: Story) -> None:
    take(s)
    lease(s, GRANTED, "b", 2)


def a_charge_by_a_rollback(s: Story) -> None:
    take(s)
    state(s, 2, failures=((2, 1, 0, 0),))


def a_charge_before_the_decision(s: Story) -> None:
    take(s)
    state(s, 2, failures=((2, 1, 0, 0),), staged=(2,))


FOUND = [
    (a_record_that_a_transaction_has, AnomalyKind.LEASED_TWICE),
    (a_charge_by_a_rollback, AnomalyKind.CHARGED),
    (a_charge_before_the_decision, AnomalyKind.CHARGED),
]
BAD = [(in_a_group(spoil), kind) for spoil, kind in FOUND]


# ---- what is no violation -------------------------------------------------------------------------------------------


def committed(s: Story) -> None:
    take(s)
    settle(s, "a", 2)
    state(s, 3, 2)


def rolled_back_and_done_by_another(s: Story) -> None:
    take(s)
    state(s, 2)
    lease(s, GRANTED, "b", 2)
    job(s, "b", 2)
    lease(s, ENDED, "b", 2)
    state(s, 2, failures=((2, 1, 0, 0),))


def failed_before(s: Story) -> None:
    state(s, 2, failures=((2, 1, 0, 0),))
    state(s, 2, failures=((2, 1, 0, 0),), staged=(2,))
    state(s, 2, failures=((2, 1, 0, 0),))


def moved_back_meanwhile(s: Story) -> None:
    take(s)
    state(s, 0, generation=2)
    lease(s, GRANTED, "b", 2, generation=2)
    state(s, 0, failures=((2, 1, 0, 0),), generation=2)


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        *FOUND,
        (committed, None),
        (rolled_back_and_done_by_another, None),
        (failed_before, None),
        (moved_back_meanwhile, None),
    ],
)
def test_what_must_not_happen_to_a_staged_ack_is_found(
    spoil: Callable[[Story], None], kind: AnomalyKind | None
) -> None:
    story = Story()
    good_group(story)
    spoil(story)
    facts = Facts(story.history)
    found = [anomaly for checker in CHECKERS for anomaly in checker(facts)]
    assert {anomaly.kind for anomaly in found} == ({kind} if kind is not None else set()), found
