"""Channels, retention and capacity: every violation is found, and what only looks like one is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos.story import LOG, Story, T, good
from tinymq_chaos.checkers import AnomalyKind
from tinymq_chaos.history import Call

Spoil = Callable[[Story], None]

CHANNEL = {"topic": T, "partition": 0, "channel": "c"}


def cursor(s: Story, kind: str, position: int | None = None, by: str = "c1", **args: object) -> Call:
    """Open a channel, answered with `position`; not at all, if None."""
    call = s.begin(by, kind, **CHANNEL | args)
    if position is not None:
        call.ok(position)
    return call


def take(s: Story, request: str, *result: object) -> Call:
    """Take a record, answered with an offset and a record, or with nothing."""
    call = s.begin("t", "consume", **CHANNEL, request=request)
    call.ok(list(result) or None)
    return call


def look(s: Story, log_start: int, end: int) -> None:
    s.begin("o", "offsets", topic=T).ok([[0, log_start, end]])


def short(s: Story, **settings: str) -> None:
    """The story's topic has settings; its records are removed below the log start of a look."""
    s.history.topics[T] = settings


def a_commit_that_is_forgotten(s: Story) -> None:
    cursor(s, "commit", 3, offset=3)
    cursor(s, "open_channel", 0)


def a_cursor_that_goes_back(s: Story) -> None:
    cursor(s, "seek", 3, offset=3)
    cursor(s, "open_channel", 0)


def a_look_behind_a_seek(s: Story) -> None:
    cursor(s, "seek", 1, offset=1)
    cursor(s, "seek", 3, offset=3)
    s.begin("o", "channels", topic=T).ok([[0, "c", 1]])


def a_cursor_of_another_channel(s: Story) -> None:
    cursor(s, "commit", 2, offset=2)
    cursor(s, "open_channel", 3)


def a_consumer_that_was_replaced(s: Story) -> None:
    cursor(s, "open_channel", 0, epoch=7)
    cursor(s, "open_channel", 0, epoch=9, by="c2")
    cursor(s, "commit", 1, offset=1, epoch=7, generation=1)


def a_commit_from_before_a_seek(s: Story) -> None:
    cursor(s, "open_channel", 0, epoch=7)
    cursor(s, "seek", 1, offset=1, epoch=7, generation=2)
    cursor(s, "commit", 3, offset=3, epoch=7, generation=1)


def one_record_to_two(s: Story) -> None:
    take(s, "r1", 0, "p-0")
    take(s, "r2", 0, "p-0")


def a_repeat_that_gets_the_next(s: Story) -> None:
    take(s, "r1", 0, "p-0")
    take(s, "r1", 1, "p-1")


def a_record_that_nobody_got(s: Story) -> None:
    take(s, "r1", 0, "p-0")
    take(s, "r2", 2, "q-0")


def a_record_that_lies_elsewhere(s: Story) -> None:
    take(s, "r1", 0, "q-9")


def removed_too_early(s: Story) -> None:
    short(s, retention_ms="20000")
    look(s, 2, 4)


def dropped_without_need(s: Story) -> None:
    short(s, max_records="1000")
    look(s, 3, 4)


def still_there(s: Story) -> None:
    short(s, retention_ms="1000")
    s.history.calm()
    s.now_s += 30
    s.history.end()
    s.history.replicas = [s.replica(1, role="leader"), s.replica(2), s.replica(3)]


def too_many(s: Story) -> None:
    short(s, max_records="3")
    look(s, 0, 4)


def removed_while_held(s: Story) -> None:
    short(s, max_bytes="100")
    s.begin("h", "hold", topic=T, partition=0, hold="h1", offset=1, lease_s=30.0).ok()
    look(s, 2, 4)


def given_up_without_need(s: Story) -> None:
    s.history.topics[T] = {"storage": "memory", "replicas": "3"}
    s.history.changed("broker 1 is killed")
    s.history.revived(LOG)


def given_up_after_kills(s: Story) -> None:
    """Records that are synced at intervals survive kills."""
    s.history.topics[T] = {"sync": "100", "replicas": "3"}
    for broker in (1, 2, 3):
        s.history.changed(f"broker {broker} is killed in the middle of its work")
    s.history.revived(LOG)


def given_up_after_one_failed_sync(s: Story) -> None:
    s.history.topics[T] = {"sync": "100", "replicas": "3"}
    s.history.changed("broker 1 fails to sync")
    s.history.changed("broker 1 loses power")
    s.history.revived(LOG)


def a_number_that_was_given(s: Story) -> None:
    for number in (1, 2, 1):
        s.begin("o", "add_partition", topic=T).ok(number)


def an_epoch_for_two(s: Story) -> None:
    cursor(s, "open_channel", 0, epoch=7)
    cursor(s, "open_channel", 0, epoch=7, by="c2")


def lost_long_after_a_majority(s: Story) -> None:
    s.history.topics[T] = {"storage": "memory", "replicas": "3"}
    for broker in (1, 2):
        s.history.changed(f"broker {broker} is killed")
    s.history.revived(LOG)
    s.now_s += 30
    s.send("p-2", at=4)


def answered_early_long_after_a_majority(s: Story) -> None:
    """Commits are judged again after the recovery, from the remaining log on."""
    s.history.topics[T] = {"storage": "memory", "replicas": "3"}
    s.history.commits[LOG] = [(0.0, 9)]
    for broker in (1, 2):
        s.history.changed(f"broker {broker} is killed")
    s.history.revived(LOG, 4)
    s.now_s += 30
    s.send("p-2", at=4)
    s.stored("p-2")


def lost_although_synced(s: Story) -> None:
    """Acknowledged when the topic had been `always` for long."""
    s.history.topics[T] = {"sync": "5000", "replicas": "3"}
    s.begin("a", "alter_topic", topic=T, settings={"sync": "always"}).ok()
    s.now_s += 30
    s.send("p-2", at=4)
    s.now_s += 2
    for broker in (1, 2):
        s.history.changed(f"broker {broker} loses power")
    s.history.revived(LOG)


def lost_after_a_broker_was_filled(s: Story) -> None:
    """Broker 1 has lost power and caught up. Then only broker 2 loses power: a majority still has the record."""
    s.history.topics[T] = {"storage": "memory", "replicas": "3"}
    s.history.changed("broker 1 is killed")
    s.now_s += 2
    s.history.caught_up(LOG, 1)
    s.send("p-2", at=4)
    s.history.changed("broker 2 is killed")
    s.history.revived(LOG)


def lost_long_after_a_slow_disk(s: Story) -> None:
    """The disk had been well for long when the power failed."""
    s.history.topics[T] = {"sync": "100", "replicas": "3"}
    s.history.changed("FAULT slow_disk: twice at [1]")
    s.history.changed("FAULT slow_disk is over")
    s.now_s += 5
    s.send("p-2", at=4)
    s.now_s += 5
    for broker in (1, 2):
        s.history.changed(f"broker {broker} loses power")
    s.history.revived(LOG)


BAD: list[tuple[Spoil, AnomalyKind]] = [
    (lost_after_a_broker_was_filled, AnomalyKind.NEEDLESS_LOSS),
    (lost_long_after_a_slow_disk, AnomalyKind.LOST_WRITE),
    (lost_although_synced, AnomalyKind.LOST_WRITE),
    (answered_early_long_after_a_majority, AnomalyKind.UNCOMMITTED),
    (lost_long_after_a_majority, AnomalyKind.LOST_WRITE),
    (a_number_that_was_given, AnomalyKind.GIVEN_TWICE),
    (an_epoch_for_two, AnomalyKind.GIVEN_TWICE),
    (given_up_without_need, AnomalyKind.NEEDLESS_LOSS),
    (given_up_after_kills, AnomalyKind.NEEDLESS_LOSS),
    (given_up_after_one_failed_sync, AnomalyKind.NEEDLESS_LOSS),
    (a_commit_that_is_forgotten, AnomalyKind.LOST_COMMIT),
    (a_cursor_that_goes_back, AnomalyKind.CURSOR_BACK),
    (a_look_behind_a_seek, AnomalyKind.CURSOR_BACK),
    (a_cursor_of_another_channel, AnomalyKind.CURSOR_STRAYED),
    (a_consumer_that_was_replaced, AnomalyKind.NOT_FENCED),
    (a_commit_from_before_a_seek, AnomalyKind.NOT_FENCED),
    (one_record_to_two, AnomalyKind.TAKEN_TWICE),
    (a_repeat_that_gets_the_next, AnomalyKind.TAKEN_TWICE),
    (a_record_that_nobody_got, AnomalyKind.TAKEN_BY_NOBODY),
    (a_record_that_lies_elsewhere, AnomalyKind.DIRTY_READ),
    (removed_too_early, AnomalyKind.REMOVED_EARLY),
    (dropped_without_need, AnomalyKind.REMOVED_EARLY),
    (still_there, AnomalyKind.KEPT_TOO_LONG),
    (too_many, AnomalyKind.OVER_CAPACITY),
    (removed_while_held, AnomalyKind.BROKEN_HOLD),
]


# ---- what is no anomaly --------------------------------------------------------------------------------------


def a_seek_that_was_not_answered(s: Story) -> None:
    cursor(s, "commit", 3, offset=3)
    cursor(s, "seek", offset=1).unknown("OutcomeUnknown")
    cursor(s, "open_channel", 1)


def a_seek_beside_a_look(s: Story) -> None:
    cursor(s, "commit", 3, offset=3)
    seek = cursor(s, "seek", offset=1)
    cursor(s, "open_channel", 1)
    seek.ok(1)


def a_commit_behind_the_cursor(s: Story) -> None:
    cursor(s, "commit", 3, offset=3)
    cursor(s, "commit", 3, offset=2)


def a_commit_without_an_answer(s: Story) -> None:
    cursor(s, "commit", offset=2).unknown("OutcomeUnknown")
    cursor(s, "open_channel", 2)


def another_channel(s: Story) -> None:
    cursor(s, "commit", 3, offset=3)
    s.begin("o", "open_channel", topic=T, partition=0, channel="d").ok(0)


def a_request_without_an_answer(s: Story) -> None:
    take(s, "r1", 0, "p-0")
    s.begin("t", "consume", **CHANNEL, request="r2").unknown("OutcomeUnknown")
    take(s, "r3", 2, "q-0")


def a_repeated_request(s: Story) -> None:
    s.begin("t", "consume", **CHANNEL, request="r1").unknown("OutcomeUnknown")
    take(s, "r1", 0, "p-0")
    take(s, "r1", 0, "p-0")
    take(s, "r2", 1, "p-1")
    take(s, "r3", 2, "q-0")
    take(s, "r4", 3, "q-1")
    take(s, "r5")
    take(s, "r5")


def old_enough(s: Story) -> None:
    short(s, retention_ms="5000")
    s.now_s += 6
    look(s, 2, 4)
    replicas = [s.replica(1, role="leader"), s.replica(2), s.replica(3)]
    s.end(*(replace(replica, log_start=4) for replica in replicas))


def as_much_as_has_room(s: Story) -> None:
    short(s, max_records="4")
    look(s, 0, 4)
    look(s, 4, 4)  # the record for which the leader made room is not there yet


def a_hold_that_is_over(s: Story) -> None:
    short(s, max_bytes="100")
    s.begin("h", "hold", topic=T, partition=0, hold="h1", offset=1, lease_s=0.5).ok()
    s.begin("h", "hold", topic=T, partition=0, hold="h2", offset=0, lease_s=30.0).ok()
    s.begin("h", "release", topic=T, partition=0, hold="h2").ok()
    s.now_s += 1
    look(s, 2, 4)


def lost_with_a_majority(s: Story) -> None:
    """Of a topic in memory."""
    s.history.topics[T] = {"storage": "memory", "replicas": "3"}
    s.send("p-2", at=4)
    for broker in (1, 2):
        s.history.changed(f"broker {broker} is killed")
    s.history.revived(LOG)


def lost_on_a_slow_disk(s: Story) -> None:
    """A sync may take long: nobody knows what was synced."""
    s.history.topics[T] = {"sync": "100", "replicas": "3"}
    s.send("p-2", at=4)
    s.now_s += 1
    s.history.changed("FAULT slow_disk: twice at [1]")
    for broker in (1, 2):
        s.history.changed(f"broker {broker} loses power")
    s.history.changed("FAULT slow_disk is over")
    s.history.revived(LOG)


def lost_before_a_filled_broker_had_synced(s: Story) -> None:
    """Broker 1 has caught up, and loses power before its interval ends."""
    s.history.topics[T] = {"sync": "5000", "replicas": "3"}
    s.send("p-2", at=4)
    s.history.changed("broker 1 loses power")
    s.history.caught_up(LOG, 1)
    for broker in (1, 2):
        s.history.changed(f"broker {broker} loses power")
    s.history.revived(LOG)


def given_up_after_failed_syncs(s: Story) -> None:
    """Each of the two lost unsynced records: one by a failed sync, the other by a power cut."""
    s.history.topics[T] = {"sync": "100", "replicas": "3"}
    s.history.changed("broker 1 fails to sync")
    s.history.changed("broker 1 has ended")
    s.history.changed("broker 2 loses power")
    s.history.revived(LOG)


def lost_under_an_earlier_setting(s: Story) -> None:
    """Its group was stuck from the power cut on, until long after the topic was altered."""
    s.history.topics[T] = {"sync": "5000", "replicas": "3"}
    s.history.commits[LOG] = [(s.now_s, 5)]
    s.send("p-2", at=4)
    for broker in (1, 2):
        s.history.changed(f"broker {broker} loses power")
    s.begin("a", "alter_topic", topic=T, settings={"sync": "always"}).ok()
    s.now_s += 60
    s.history.revived(LOG)


@pytest.mark.parametrize(
    "tell",
    [
        lost_under_an_earlier_setting,
        lost_on_a_slow_disk,
        lost_before_a_filled_broker_had_synced,
        a_seek_that_was_not_answered,
        a_seek_beside_a_look,
        a_commit_behind_the_cursor,
        a_commit_without_an_answer,
        another_channel,
        a_request_without_an_answer,
        a_repeated_request,
        old_enough,
        as_much_as_has_room,
        a_hold_that_is_over,
        lost_with_a_majority,
        given_up_after_failed_syncs,
    ],
    ids=lambda tell: tell.__name__,
)
def test_each_harmless_history_has_no_anomalies(tell: Spoil) -> None:
    story = good()
    tell(story)
    if story.history.ended_s is None:
        story.end()
    assert story.kinds() == set()


@pytest.mark.parametrize("fault", ["wall_jump", "wrong_start"])
@pytest.mark.parametrize("brokers", [1, 3])
def test_a_wrong_clock_is_an_excuse_where_there_is_no_other(fault: str, brokers: int) -> None:
    story = good()
    story.history.changed(f"FAULT {fault}: broker 1 by +1 h")
    removed_too_early(story)
    story.end()
    del story.history.replicas[brokers:]
    assert story.kinds() == ({AnomalyKind.REMOVED_EARLY} if brokers > 1 else set())


def test_a_log_that_begins_inside_a_batch_is_read_from_there() -> None:
    """Retention moves the start to any record."""
    story = good()
    names = [f"b-{n}" for n in range(3)]
    base = sum(len(records) for _, records in story.entries)
    story.send(*names, at=base, by="b")
    story.stored(*names)
    replicas = [replace(story.replica(n), log_start=base + 1) for n in (1, 2, 3)]
    story.poll(base + 2, "b-2", reader="late")
    story.end(*replicas)
    assert story.kinds() == set()
    assert LOG in {replica.log for replica in replicas}
