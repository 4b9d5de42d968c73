"""Capacity, refusals, trims and altered settings: every violation is found, and what only looks like one is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.story import LOG, Story, T, good
from tinymq_chaos.checkers import AnomalyKind

Spoil = Callable[[Story], None]

PLACE = {"topic": T, "partition": 0}
REJECT = {"max_records": "4", "on_full": "reject"}


def look(s: Story, log_start: int, end: int) -> None:
    s.begin("o", "offsets", topic=T).ok([[0, log_start, end]])


def told(s: Story, **settings: str) -> None:
    s.history.topics[T] = settings


def weighed(s: Story, *sizes: int) -> None:
    """Return the bytes of the story's batches: of two records, of one, of one."""
    for end, size in zip((2, 3, 4), sizes, strict=True):
        s.history.weighed(LOG, end, size)


def alter(s: Story, answered: bool = True, **settings: str) -> None:
    call = s.begin("m", "alter_topic", topic=T, settings=settings)
    if answered:
        call.ok()
    else:
        call.unknown("OutcomeUnknown")


def trim(s: Story, before: int, log_start: int | None = None) -> None:
    call = s.begin("x", "trim", **PLACE, before=before)
    if log_start is None:
        call.failed("Held")
    else:
        call.ok(log_start)


def refused(s: Story, error: str = "QuotaExceeded") -> None:
    s.begin("z", "send", **PLACE, records=["z-0"], idempotent=True).failed(error)


def ended(s: Story, shown_start: int | None = None, **at: int) -> None:
    """End the story: quiet since before, if it was."""
    replicas = [s.replica(1, role="leader"), s.replica(2), s.replica(3)]
    calm_s = s.history.calm_s
    s.end(*(replace(replica, shown_start=shown_start, **at) for replica in replicas))
    s.history.calm_s = s.history.calm_s if calm_s is None else calm_s


# ---- what is wrong -------------------------------------------------------------------------------------------


def too_many_bytes(s: Story) -> None:
    told(s, max_bytes="250", on_full="drop_oldest")
    weighed(s, 100, 100, 100)
    look(s, 0, 4)


def too_many_after_it_was_lowered(s: Story) -> None:
    told(s, max_records="9", on_full="drop_oldest")
    alter(s, max_records="2")
    s.history.calm()
    s.now_s += 10
    s.send("a-0", at=4, by="a")
    s.stored("a-0")
    look(s, 2, 5)
    ended(s)


def too_many_bytes_dropped(s: Story) -> None:
    told(s, max_bytes="5000", on_full="drop_oldest")
    weighed(s, 100, 100, 100)
    look(s, 3, 4)


def too_few_bytes_kept(s: Story) -> None:
    told(s, retention_bytes="150")
    weighed(s, 100, 100, 100)
    look(s, 3, 4)
    ended(s, log_start=3)


def too_many_bytes_kept(s: Story) -> None:
    told(s, retention_bytes="150")
    weighed(s, 100, 100, 100)
    s.history.calm()
    s.now_s += 30
    ended(s)


def refused_with_room(s: Story) -> None:
    told(s, max_records="9", on_full="reject")
    s.history.commits[LOG] = [(0.0, 4)]
    refused(s)


def refused_and_there(s: Story) -> None:
    told(s, **REJECT)
    refused(s)
    s.stored("z-0")


def removed_before_it_was_lengthened(s: Story) -> None:
    """No value that may have been in force lets the record go."""
    told(s, retention_ms="20000")
    alter(s, retention_ms="40000")
    look(s, 2, 4)


def still_there_after_it_was_shortened(s: Story) -> None:
    told(s, retention_ms="600000")
    alter(s, retention_ms="1000")
    s.history.calm()
    s.now_s += 30
    ended(s)


def held(s: Story, offset: int) -> None:
    """Hold the records from `offset` on, to the end of the story."""
    s.begin("h", "hold", **PLACE, hold="h", offset=offset, lease_s=3.0).ok()


def old_records_below_a_hold(s: Story, shown_start: int) -> None:
    """The whole segment of the held record is on disk, long after the time of its records."""
    told(s, retention_ms="1000")
    held(s, 2)
    s.history.calm()
    s.now_s += 30
    ended(s, shown_start=shown_start)


def shown_below_a_hold(s: Story) -> None:
    old_records_below_a_hold(s, shown_start=0)


def on_disk_without_a_hold(s: Story) -> None:
    told(s, retention_ms="1000")
    s.history.calm()
    s.now_s += 30
    ended(s, shown_start=4)


def on_disk_until_a_later_entry_is_synced(s: Story) -> None:
    told(s, retention_ms="1000", sync="40000")
    s.history.calm()
    s.now_s += 30
    ended(s, shown_start=4)


def a_trim_that_goes_too_far(s: Story) -> None:
    trim(s, 1, 1)
    look(s, 2, 4)


def a_trim_that_takes_more_than_was_asked_for(s: Story) -> None:
    told(s, retention_ms="40000")
    trim(s, 1, 1)
    look(s, 2, 4)


def a_refused_trim_that_removes(s: Story) -> None:
    trim(s, 2)
    look(s, 2, 4)


def shown_after_a_trim(s: Story) -> None:
    trim(s, 3, 3)
    s.now_s += 4
    s.begin("late", "open", reader="late", topic=T, replica="leader").ok([[0, 0]])
    s.poll(0, "p-0", "p-1", "q-0", reader="late")


def fetched_after_a_trim(s: Story) -> None:
    trim(s, 3, 3)
    s.now_s += 4
    s.begin("l", "fetch", **PLACE, offset=1).ok([[1, "p-1"], 0, 4])


def counted_after_a_trim(s: Story) -> None:
    s.history.commits[LOG] = [(0.0, 4)]
    trim(s, 3, 3)
    s.begin("l", "size", **PLACE, channel="").ok(2)


def a_trim_that_is_undone(s: Story) -> None:
    trim(s, 3, 3)
    ended(s, shown_start=2)


def a_setting_that_is_forgotten(s: Story) -> None:
    told(s, retention_ms="20000")
    alter(s, retention_ms="40000")
    s.begin("m", "settings", topic=T).ok({"retention_ms": "20000"})


BAD: list[tuple[Spoil, AnomalyKind]] = [
    (too_many_bytes, AnomalyKind.OVER_CAPACITY),
    (too_many_after_it_was_lowered, AnomalyKind.OVER_CAPACITY),
    (too_many_bytes_dropped, AnomalyKind.REMOVED_EARLY),
    (too_few_bytes_kept, AnomalyKind.REMOVED_EARLY),
    (too_many_bytes_kept, AnomalyKind.KEPT_TOO_LONG),
    (refused_with_room, AnomalyKind.REFUSED),
    (refused_and_there, AnomalyKind.ABORTED_READ),
    (removed_before_it_was_lengthened, AnomalyKind.REMOVED_EARLY),
    (still_there_after_it_was_shortened, AnomalyKind.KEPT_TOO_LONG),
    (shown_below_a_hold, AnomalyKind.KEPT_TOO_LONG),
    (on_disk_without_a_hold, AnomalyKind.KEPT_TOO_LONG),
    (a_trim_that_goes_too_far, AnomalyKind.REMOVED_EARLY),
    (a_trim_that_takes_more_than_was_asked_for, AnomalyKind.REMOVED_EARLY),
    (a_refused_trim_that_removes, AnomalyKind.REMOVED_EARLY),
    (shown_after_a_trim, AnomalyKind.TRIMMED_READ),
    (fetched_after_a_trim, AnomalyKind.TRIMMED_READ),
    (counted_after_a_trim, AnomalyKind.MISCOUNTED),
    (a_trim_that_is_undone, AnomalyKind.TRIMMED_READ),
    (a_setting_that_is_forgotten, AnomalyKind.NOT_LINEARIZABLE),
]


# ---- what is no anomaly --------------------------------------------------------------------------------------


def on_disk_in_the_segment_of_a_held_record(s: Story) -> None:
    old_records_below_a_hold(s, shown_start=2)


def trimmed_before_its_time(s: Story) -> None:
    told(s, retention_ms="40000")
    trim(s, 2, 2)
    look(s, 2, 4)


def trimmed_below_the_bytes_to_keep(s: Story) -> None:
    told(s, retention_bytes="150")
    weighed(s, 100, 100, 100)
    trim(s, 3, 3)
    look(s, 3, 4)
    ended(s, log_start=3)


def as_many_bytes_as_have_room(s: Story) -> None:
    told(s, max_bytes="300", on_full="drop_oldest")
    weighed(s, 100, 100, 100)
    look(s, 2, 4)
    look(s, 0, 3)


def refused_although_a_fault_removed_the_head(s: Story) -> None:
    """A fault that takes the head of one replica's log makes no room in the partition."""
    refused_with_room(s)
    s.history.changed("FAULT trim: 0f/0 of broker 1 to 3")


def lowered_and_nothing_came_since(s: Story) -> None:
    told(s, max_records="9", on_full="reject")
    alter(s, max_records="2")
    look(s, 0, 4)


def an_alteration_without_an_answer(s: Story) -> None:
    told(s, retention_ms="20000")
    alter(s, answered=False, retention_ms="100")
    look(s, 2, 4)


def an_alteration_of_a_moment_ago(s: Story) -> None:
    """Not every leader has heard of it."""
    told(s, max_records="2", on_full="drop_oldest")
    s.history.topics[T]["max_records"] = "9"
    alter(s, max_records="2")
    s.send("a-0", at=4, by="a")
    s.stored("a-0")
    look(s, 0, 5)


def bytes_that_are_kept(s: Story) -> None:
    told(s, retention_bytes="150")
    weighed(s, 100, 100, 100)
    look(s, 2, 4)
    s.history.calm()
    s.now_s += 30
    ended(s, log_start=2)


def refused_for_good_reason(s: Story) -> None:
    told(s, **REJECT)
    s.history.commits[LOG] = [(0.0, 4)]
    refused(s)


def refused_while_another_is_on_its_way(s: Story) -> None:
    told(s, max_records="5", on_full="reject")
    s.history.commits[LOG] = [(0.0, 4)]
    s.begin("y", "send", **PLACE, records=["y-0"], idempotent=True).unknown("OutcomeUnknown")
    refused(s)


def a_reader_that_was_open_before_a_trim(s: Story) -> None:
    s.begin("early", "open", reader="early", topic=T, replica="leader").ok([[0, 0]])
    trim(s, 3, 3)
    s.now_s += 4
    s.poll(0, "p-0", "p-1", reader="early")


def shown_by_a_leader_that_was_stopped(s: Story) -> None:
    s.history.changed("FAULT pause: broker 1", paused=[1])
    trim(s, 3, 3)
    s.now_s += 4
    s.begin("late", "open", reader="late", topic=T, replica="leader").ok([[0, 0]])
    s.history.changed("FAULT pause is over")
    s.poll(0, "p-0", "p-1", reader="late")


def nothing_written_while_it_is_full(s: Story) -> None:
    told(s, **REJECT)
    s.history.calm()
    s.begin("z", "send", 4.0, **PLACE, records=["z-0"], idempotent=True)
    s.now_s += 4
    s.history.calls[-1].failed("QuotaExceeded")
    s.now_s += 4
    ended(s)


def a_trim_without_an_answer(s: Story) -> None:
    s.begin("x", "trim", **PLACE, before=3).unknown("OutcomeUnknown")
    look(s, 3, 4)
    s.begin("l", "size", **PLACE, channel="").ok(1)


def settings_as_they_were_told(s: Story) -> None:
    told(s, retention_ms="20000")
    alter(s, answered=False, retention_ms="30000")
    s.begin("m", "settings", topic=T).ok({"retention_ms": "20000"})
    s.begin("m", "settings", topic=T).ok({"retention_ms": "30000", "max_bytes": "none"})
    alter(s, retention_ms="40000")
    s.begin("m", "settings", topic=T).ok({"retention_ms": "40000"})


@pytest.mark.parametrize(
    "tell",
    [
        on_disk_in_the_segment_of_a_held_record,
        trimmed_before_its_time,
        trimmed_below_the_bytes_to_keep,
        as_many_bytes_as_have_room,
        refused_although_a_fault_removed_the_head,
        lowered_and_nothing_came_since,
        an_alteration_without_an_answer,
        an_alteration_of_a_moment_ago,
        bytes_that_are_kept,
        refused_for_good_reason,
        refused_while_another_is_on_its_way,
        a_reader_that_was_open_before_a_trim,
        shown_by_a_leader_that_was_stopped,
        nothing_written_while_it_is_full,
        a_trim_without_an_answer,
        settings_as_they_were_told,
        on_disk_until_a_later_entry_is_synced,
    ],
    ids=lambda tell: tell.__name__,
)
def test_each_harmless_history_has_no_anomalies(tell: Spoil) -> None:
    story = good()
    tell(story)
    if story.history.ended_s is None:
        story.end()
    assert story.kinds() == set()
