"""Times of records: append times that go back, and look-ups by time that miss a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.story import Story, T, good
from tinymq_chaos.checkers import AnomalyKind
from tinymq_chaos.history import FinalReplica

Spoil = Callable[[Story], None]
SECOND = 1_000_000
TIMES = [10 * SECOND, 30 * SECOND, 20 * SECOND, 40 * SECOND]  # of the four records of a good story


def timed(s: Story, *appended_us: int) -> FinalReplica:
    """Return a replica whose records have TIMES, and whose entries have these append times."""
    replica, times = s.replica(1, role="leader"), iter(TIMES)
    entries = [
        replace(entry, append_time_us=at_us, timestamps=tuple(next(times) for _ in entry.records))
        for entry, at_us in zip(replica.entries, appended_us or [5, 6, 6, 7], strict=True)
    ]
    return replace(replica, entries=tuple(entries))


def looked_up(s: Story, time_s: int, offset: int, *known: int | None) -> None:
    answer: list[Any] = [0, offset, *(known or (None, None, None))]
    s.begin("t", "find_time", topic=T, time_us=time_s * SECOND).ok([answer])
    s.end(timed(s))


def an_append_time_that_goes_back(s: Story) -> None:
    s.end(timed(s, 5, 7, 6, 8))


def another_append_time_than_the_log_has(s: Story) -> None:
    call = s.send("q-3", by="q")
    s.stored("q-3")
    call.ok([0, 4, 9])
    replica = s.replica(1, role="leader")
    s.end(replace(replica, entries=tuple(replace(entry, append_time_us=8) for entry in replica.entries)))


def a_record_before_the_one_that_was_found(s: Story) -> None:
    looked_up(s, 20, 2)


def a_record_before_the_end(s: Story) -> None:
    looked_up(s, 40, 4)


def a_record_that_is_too_early(s: Story) -> None:
    looked_up(s, 25, 0, TIMES[0], 0, 4)


def another_timestamp_than_the_record_has(s: Story) -> None:
    looked_up(s, 20, 1, TIMES[1] + 1, 0, 4)


def a_timestamp_where_no_record_is(s: Story) -> None:
    looked_up(s, 50, 4, TIMES[3], 0, 4)


def a_place_behind_the_end(s: Story) -> None:
    looked_up(s, 50, 5, -1, 0, 4)


BAD: list[tuple[Spoil, AnomalyKind]] = [
    (an_append_time_that_goes_back, AnomalyKind.TIME_BACK),
    (another_append_time_than_the_log_has, AnomalyKind.WRONG_TIME),
    (a_record_before_the_one_that_was_found, AnomalyKind.WRONG_TIME),
    (a_record_before_the_end, AnomalyKind.WRONG_TIME),
    (a_record_that_is_too_early, AnomalyKind.WRONG_TIME),
    (another_timestamp_than_the_record_has, AnomalyKind.WRONG_TIME),
    (a_timestamp_where_no_record_is, AnomalyKind.WRONG_TIME),
    (a_place_behind_the_end, AnomalyKind.WRONG_TIME),
]


@pytest.mark.parametrize(
    ("time_s", "offset", "answer"),
    [
        (5, 0, (TIMES[0], 0, 4)),
        (10, 0, (TIMES[0], 0, 4)),
        (11, 1, (TIMES[1], 0, 4)),
        (20, 1, (None, None, None)),
        (31, 3, (TIMES[3], 0, 4)),
        (31, 3, (-1, 0, 3)),  # of a follower that does not know of the last record
        (31, 2, (None, None, None)),  # of one that knows even less, to a caller that is not told
        (41, 4, (-1, 0, 4)),
        (5, 1, (TIMES[1], 1, 4)),  # the first record was trimmed
    ],
)
def test_a_right_place_is_right(time_s: int, offset: int, answer: tuple[int | None, ...]) -> None:
    story = good()
    looked_up(story, time_s, offset, *answer)
    assert story.kinds() == set()


def test_records_that_a_fault_removed_on_one_replica_are_not_missed_there() -> None:
    story = good()
    story.history.heads[T, 0] = 2
    looked_up(story, 5, 2)
    assert story.kinds() == set()


def test_records_that_were_removed_during_a_look_up_are_not_missed() -> None:
    story = good()
    story.begin("t", "find_time", topic=T, time_us=5 * SECOND).ok([[0, 2, TIMES[2], 0, 4]])
    story.end(replace(timed(story), shown_start=2))
    assert story.kinds() == set()
