"""Half messages: every violation is found, and what only looks like one is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.story import LOG, Story, T, good
from tinymq_chaos.checkers import AnomalyKind
from tinymq_chaos.history import Call

Spoil = Callable[[Story], None]


def half(s: Story, record: str = "h-0") -> Call:
    """Begin to store a half message."""
    return s.begin(
        "h", "half", topic=T, partition=0, records=[record], producer=record, idempotent=True, producer_group="g",
        check_after_s=1.0,
    )  # fmt: skip


def end(s: Story, *, commit: bool, record: str = "h-0") -> Call:
    return s.begin("h", "end_half", records=[record], commit=commit, wait="visible", attempt=0)


def check(s: Story, verdict: str) -> None:
    s.begin("c", "check_half", records=["h-0"], number=0).ok(verdict)


def over(s: Story, *left: list[object]) -> None:
    s.begin("o", "halves_over", group="g").ok(list(left))


# ---- visible, and it should not be -----------------------------------------------------------------------------


def visible_and_nobody_committed_it(s: Story) -> None:
    half(s).ok("1-0-1")
    check(s, "unknown")
    s.stored("h-0")


def visible_before_its_commit(s: Story) -> None:
    half(s).ok("1-0-1")
    s.stored("h-0")
    s.poll(4, "h-0")
    end(s, commit=True).ok(True)


def visible_before_its_checker_commits_it(s: Story) -> None:
    s.history.commits = {LOG: [(0.0, 4)]}
    half(s).ok("1-0-1")
    s.stored("h-0")
    s.history.committed(LOG, 5)
    check(s, "commit")


def rolled_back_and_there(s: Story) -> None:
    half(s).ok("1-0-1")
    check(s, "commit")
    end(s, commit=False).ok(False)
    s.stored("h-0")


def refused_and_there(s: Story) -> None:
    half(s).failed("TransactionAborted")
    check(s, "commit")
    s.stored("h-0")


def there_twice(s: Story) -> None:
    half(s).ok("1-0-1")
    end(s, commit=True).ok(True)
    s.stored("h-0")
    s.stored("h-0")


# ---- not visible, and it should be -----------------------------------------------------------------------------


def committed_and_not_there(s: Story) -> None:
    half(s).ok("1-0-1")
    check(s, "rollback")
    end(s, commit=True).ok(False)
    over(s)


def dropped_by_nobody(s: Story) -> None:
    half(s).ok("1-0-1")
    check(s, "commit")
    end(s, commit=True).failed("TransactionAborted")
    over(s)


def shown_later_than_said(s: Story) -> None:
    s.history.commits = {LOG: [(0.0, 4)]}
    half(s).ok("1-0-1")
    end(s, commit=True).ok(True)
    s.stored("h-0")
    s.now_s += 1
    s.history.committed(LOG, 5)


# ---- decisions -------------------------------------------------------------------------------------------------


def said_to_be_both(s: Story) -> None:
    half(s).ok("1-0-1")
    end(s, commit=True).ok(True)
    s.stored("h-0")
    end(s, commit=False).ok(False)


def open_for_ever(s: Story) -> None:
    half(s).ok("1-0-1")
    s.begin("o", "halves_over", group="g").failed("DeadlineExceeded")


def nobody_is_asked(s: Story) -> None:
    half(s).ok("1-0-1")
    end(s, commit=False).ok(False)
    over(s, ["h-0", True])


BAD: list[tuple[Spoil, AnomalyKind]] = [
    (visible_and_nobody_committed_it, AnomalyKind.UNDECIDED),
    (visible_before_its_commit, AnomalyKind.UNDECIDED),
    (visible_before_its_checker_commits_it, AnomalyKind.UNDECIDED),
    (rolled_back_and_there, AnomalyKind.ABORTED_READ),
    (refused_and_there, AnomalyKind.ABORTED_READ),
    (there_twice, AnomalyKind.DUPLICATE),
    (committed_and_not_there, AnomalyKind.LOST_WRITE),
    (dropped_by_nobody, AnomalyKind.LOST_WRITE),
    (shown_later_than_said, AnomalyKind.UNCOMMITTED),
    (said_to_be_both, AnomalyKind.TWO_DECISIONS),
    (open_for_ever, AnomalyKind.NO_PROGRESS),
    (nobody_is_asked, AnomalyKind.STUCK),
]


# ---- what is no violation --------------------------------------------------------------------------------------


def committed(s: Story) -> None:
    half(s).ok("1-0-1")
    end(s, commit=True).unknown("OutcomeUnknown")
    end(s, commit=True).ok(True)
    s.stored("h-0")
    s.poll(4, "h-0")
    end(s, commit=False).failed("InvalidRequest")
    over(s)


def rolled_back_by_a_checker(s: Story) -> None:
    half(s).ok("1-0-1")
    check(s, "rollback")
    end(s, commit=True).failed("TransactionAborted")
    over(s)


def committed_by_a_checker(s: Story) -> None:
    half(s).ok("1-0-1")
    check(s, "unknown")
    check(s, "commit")
    s.stored("h-0")
    over(s, ["h-0", False])


def two_words_and_the_first_one_counts(s: Story) -> None:
    half(s).ok("1-0-1")
    end(s, commit=False).unknown("OutcomeUnknown")
    check(s, "commit")
    over(s)


def not_stored(s: Story) -> None:
    half(s).failed("TransactionAborted")
    half(s, "h-1").unknown("OutcomeUnknown")
    over(s)


@pytest.mark.parametrize(
    "tell",
    [
        committed,
        rolled_back_by_a_checker,
        committed_by_a_checker,
        two_words_and_the_first_one_counts,
        not_stored,
    ],
)
def test_what_may_happen(tell: Spoil) -> None:
    story = good()
    tell(story)
    story.end()
    assert story.kinds() == set()


def test_due_times_are_not_judged_beside_wrong_clocks() -> None:
    story = good()
    story.history.changed("FAULT wall_jump: of broker 1")
    nobody_is_asked(story)
    story.end()
    assert story.kinds() == set()


def test_a_log_that_is_not_whole_shows_no_loss() -> None:
    story = good()
    committed_and_not_there(story)
    story.end()
    story.history.replicas = []
    assert AnomalyKind.LOST_WRITE not in story.kinds()
