"""QueueService: every violation in its answers is found, and what only looks like one is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.story import LOG, Story, T, good
from tinymq_chaos.checkers import AnomalyKind

Spoil = Callable[[Story], None]

QUEUE = {"topic": T, "partition": 0}


def fetch(s: Story, offset: int, message: list[object] | None, start: int = 0, end: int = 4) -> None:
    s.begin("l", "fetch", **QUEUE, offset=offset).ok([message, start, end])


def size(s: Story, messages: int, channel: str = "") -> None:
    s.begin("l", "size", **QUEUE, channel=channel).ok(messages)


def take(s: Story, request: str, *result: object, partition: int | None = 0) -> None:
    call = s.begin("t", "consume", topic=T, partition=partition, channel="c", request=request, reads=True)
    if result or partition is not None:
        call.ok(list(result) or None)
    else:
        call.unknown("OutcomeUnknown")


def another_message_at_an_offset(s: Story) -> None:
    fetch(s, 1, [1, "q-0"])


def a_message_that_never_was(s: Story) -> None:
    fetch(s, 4, [4, "q-1"])


def an_end_that_is_taken_back(s: Story) -> None:
    fetch(s, 5, None, end=5)


def a_message_that_is_passed_over(s: Story) -> None:
    fetch(s, 0, [1, "p-1"])


def none_where_one_is(s: Story) -> None:
    fetch(s, 2, None)


def shown_before_it_is_committed(s: Story) -> None:
    s.history.commits[LOG] = [(0.0, 4)]
    s.stored("z-0")
    s.begin("z", "send", **QUEUE, records=["z-0"], idempotent=False).unknown("OutcomeUnknown")
    fetch(s, 4, [4, "z-0"])


def fewer_than_are_acknowledged(s: Story) -> None:
    size(s, 2)


def nothing_to_take_where_something_is(s: Story) -> None:
    take(s, "r1", 0, "p-0")
    take(s, "r2", 1, "p-1")
    take(s, "r3")


def more_than_are_committed(s: Story) -> None:
    s.history.commits[LOG] = [(0.0, 4)]
    size(s, 5)


def more_left_than_there_are(s: Story) -> None:
    s.history.commits[LOG] = [(0.0, 4)]
    take(s, "r1", 0, "p-0")
    size(s, 4, "c")


def fewer_left_than_were_not_taken(s: Story) -> None:
    take(s, "r1", 0, "p-0")
    size(s, 1, "c")


def passed_over_by_a_reading_taker(s: Story) -> None:
    take(s, "r1", 0, "p-0")
    take(s, "r2", 2, "q-0")


BAD: list[tuple[Spoil, AnomalyKind]] = [
    (another_message_at_an_offset, AnomalyKind.INCONSISTENT_OFFSET),
    (a_message_that_never_was, AnomalyKind.INCONSISTENT_OFFSET),
    (an_end_that_is_taken_back, AnomalyKind.DIRTY_READ),
    (a_message_that_is_passed_over, AnomalyKind.SKIPPED_POLL),
    (none_where_one_is, AnomalyKind.SKIPPED_POLL),
    (shown_before_it_is_committed, AnomalyKind.UNCOMMITTED),
    (fewer_than_are_acknowledged, AnomalyKind.STALE),
    (nothing_to_take_where_something_is, AnomalyKind.STALE),
    (more_than_are_committed, AnomalyKind.MISCOUNTED),
    (more_left_than_there_are, AnomalyKind.MISCOUNTED),
    (fewer_left_than_were_not_taken, AnomalyKind.MISCOUNTED),
    (passed_over_by_a_reading_taker, AnomalyKind.TAKEN_BY_NOBODY),
]


def all_is_as_it_is(s: Story) -> None:
    fetch(s, 1, [1, "p-1"])
    fetch(s, 4, None)
    fetch(s, 9, None)
    size(s, 3)  # a record without an answer is not committed yet
    size(s, 4)


def nothing_to_take_where_all_may_be_taken(s: Story) -> None:
    """Three are acknowledged; one request may have taken one of any queue, and the fourth came during the request."""
    take(s, "r1", 0, "p-0")
    take(s, "r2", 1, "p-1")
    take(s, "any 1", partition=None)
    asked = s.begin("t", "consume", **QUEUE, channel="c", request="r3")
    s.send("p-2", at=4)
    asked.ok()
    s.stored("p-2")


def what_is_left_for_a_channel(s: Story) -> None:
    size(s, 4, "c")
    take(s, "r1", 0, "p-0")
    take(s, "r2", 1, "p-1")
    size(s, 2, "c")


def what_a_trim_removed(s: Story) -> None:
    s.history.changed("FAULT trim: 0f/0 of broker 1 to 3")
    take(s, "r1", 0, "p-0")
    take(s, "r2", 2, "q-0")
    fetch(s, 0, [2, "q-0"], start=2)
    size(s, 2)


def what_a_crash_in_company_removed(s: Story) -> None:
    s.history.changed("FAULT crash_at_point: broker 1 at: head, and 3 operations")
    size(s, 1)


def an_unnamed_request_without_an_answer(s: Story) -> None:
    """The request may have taken one of any queue."""
    take(s, "r1", 0, "p-0")
    take(s, "any 1", partition=None)
    take(s, "r2", 2, "q-0")


@pytest.mark.parametrize(
    "tell",
    [
        all_is_as_it_is,
        nothing_to_take_where_all_may_be_taken,
        what_is_left_for_a_channel,
        what_a_trim_removed,
        what_a_crash_in_company_removed,
        an_unnamed_request_without_an_answer,
    ],
    ids=lambda tell: tell.__name__,
)
def test_each_harmless_history_has_no_anomalies(tell: Spoil) -> None:
    story = good()
    tell(story)
    story.end()
    assert story.kinds() == set()


def test_a_queue_that_was_deleted_is_not_looked_for() -> None:
    story = good()
    other = {"topic": T, "partition": 7}
    story.begin("o", "send", **other, records=["o-0"], idempotent=False).ok([7, 0])
    story.begin("o", "delete_partition", **other).ok()
    story.end()
    assert story.kinds() == set()
