"""Stream groups: every violation of a group's rules is found, and what only looks like one is not."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import pytest

from tests.chaos.story import Story, T
from tinymq_chaos.checkers import AnomalyKind
from tinymq_chaos.checkers.common.facts import Facts
from tinymq_chaos.checkers.records.members import group_moved_back, skipped_by_the_group, two_owners_commit
from tinymq_chaos.history import Call


def told(s: Story, by: str, kind: str, result: object = None, **args: object) -> Call:
    call = s.begin(by, kind, topic=T, group="g", **args)
    call.ok(result)
    return call


def commit(s: Story, by: str, offset: int) -> Call:
    return told(s, by, "group_commit", offsets=[[0, offset]])


def handed(s: Story, by: str, *offsets: int) -> Call:
    return told(s, by, "handed_out", [[0, offset] for offset in offsets])


def good_group(s: Story) -> None:
    told(s, "a", "assigned", [0])
    handed(s, "a", 0, 1)
    commit(s, "a", 2)
    told(s, "a", "revoked", [0])
    told(s, "b", "assigned", [0])
    handed(s, "b", 1, 2)
    commit(s, "b", 3)
    told(s, "o", "group_lag", [[0, 3]])


def a_record_that_nobody_got(s: Story) -> None:
    told(s, "o", "group_lag", [[0, 5]])


def a_cursor_that_goes_back(s: Story) -> None:
    told(s, "o", "group_lag", [[0, 1]])


def a_commit_of_the_owner_before(s: Story) -> None:
    handed(s, "b", 3)
    commit(s, "a", 4)


def a_partition_that_comes_back(s: Story) -> None:
    told(s, "a", "assigned", [0])
    handed(s, "a", 3)
    commit(s, "a", 4)


def in_a_group(spoil: Callable[[Story], None]) -> Callable[[Story], None]:
    """The same after a group that does everything right."""

    @wraps(spoil)
    def both(s: Story) -> None:
        good_group(s)
        spoil(s)

    return both


BAD = [
    (in_a_group(a_record_that_nobody_got), AnomalyKind.TAKEN_BY_NOBODY),
    (in_a_group(a_cursor_that_goes_back), AnomalyKind.CURSOR_BACK),
    (in_a_group(a_commit_of_the_owner_before), AnomalyKind.NOT_FENCED),
]


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (a_record_that_nobody_got, AnomalyKind.TAKEN_BY_NOBODY),
        (a_cursor_that_goes_back, AnomalyKind.CURSOR_BACK),
        (a_commit_of_the_owner_before, AnomalyKind.NOT_FENCED),
        (a_partition_that_comes_back, None),
        (lambda s: None, None),
    ],
)
def test_what_a_group_must_never_do_is_found(spoil: Callable[[Story], None], kind: AnomalyKind | None) -> None:
    story = Story()
    good_group(story)
    spoil(story)
    facts = Facts(story.history)
    found = [a for check in (skipped_by_the_group, group_moved_back, two_owners_commit) for a in check(facts)]
    assert {anomaly.kind for anomaly in found} == ({kind} if kind is not None else set())
