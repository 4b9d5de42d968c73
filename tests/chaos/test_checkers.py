"""Every anomaly that a checker can name is found in a history that has it, and in a good one there is none."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos import (
    test_checkers_answers,
    test_checkers_capacity,
    test_checkers_channels,
    test_checkers_half_messages,
    test_checkers_members,
    test_checkers_moves,
    test_checkers_processing,
    test_checkers_queue_groups,
    test_checkers_queues,
    test_checkers_recreated,
    test_checkers_scheduled,
    test_checkers_staged_acks,
    test_checkers_times,
    test_checkers_transactions,
    test_checkers_twins,
    test_elections,
    test_ledger,
)
from tests.chaos.story import LOG, Story, T, chained, good
from tinymq_chaos.checkers import CHECKERS, OF_A_KIND_MAX, AnomalyKind, Checker, check
from tinymq_chaos.history import FinalReplica

Spoil = Callable[[Story], None]


def bad(spoil: Spoil) -> Story:
    """Register a good history with one thing wrong; `spoil` ends it if it wants replicas of its own."""
    story = good()
    spoil(story)
    if story.history.ended_s is None:
        story.end()
    return story


def test_a_good_history_has_no_anomalies() -> None:
    story = good()
    story.end()
    assert story.kinds() == set()


def test_records_missing_at_the_end_of_a_row_are_no_gap() -> None:
    story = good()
    for name in ("a-0", "a-1"):
        story.send(name, by="a", row="a/0").unknown("OutcomeUnknown")
    story.send("b-0", by="a", row="a/1").unknown("OutcomeUnknown")
    story.stored("a-0")
    story.stored("b-0")
    story.end()
    assert story.kinds() == set()


def test_an_empty_history_has_no_anomalies() -> None:
    assert Story().kinds() == set()


def lost_at_the_end(s: Story) -> None:
    s.send("p-2", at=4)


def lost_and_replaced(s: Story) -> None:
    s.send("p-2", at=4)
    s.send("r-0", at=4, by="r")
    s.stored("r-0")


def lost_with_every_replica(s: Story) -> None:
    s.end(s.replica(1, upto=0, log=("other", 0)))


def damaged(s: Story) -> None:
    s.send("p-2").unknown("OutcomeUnknown")
    s.stored("!b'p-2 48 0123'")


def from_nowhere(s: Story) -> None:
    s.stored("z-0")


def shown_damaged(s: Story) -> None:
    s.stored("q-3")
    s.send("q-3", at=4, by="q")
    s.poll(4, "!b'q-3 48'")


def sent_to_another_topic(s: Story) -> None:
    s.begin("x", "send", topic="u#00", partition=0, records=["x-0"], idempotent=True).unknown("OutcomeUnknown")
    s.stored("x-0")


def reordered(s: Story) -> None:
    s.send("a-0", by="a").unknown("OutcomeUnknown")
    s.send("a-1", by="a").unknown("OutcomeUnknown")
    s.stored("a-1")
    s.stored("a-0")


def one_left_out_of_a_row(s: Story) -> None:
    for name in ("a-0", "a-1", "a-2"):
        s.send(name, by="a", row="a/0").unknown("OutcomeUnknown")
    s.stored("a-0")
    s.stored("a-2")


def half_a_batch(s: Story) -> None:
    s.send("a-0", "a-1", by="a").unknown("OutcomeUnknown")
    s.stored("a-0")


def twice(s: Story) -> None:
    s.send("a-0", at=4, by="a")
    s.stored("a-0")
    s.stored("a-0")


def failed_and_there(s: Story) -> None:
    s.stored("q-2")


def failed_and_shown(s: Story) -> None:
    s.poll(4, "q-2")
    s.end(s.replica(1, upto=0, log=("other", 0)))


def one_record_at_two_offsets(s: Story) -> None:
    s.send("a-0", at=5, by="a")
    s.stored("a-0")


def shown_at_another_offset(s: Story) -> None:
    s.poll(4, "q-1")


def shown_and_taken_back(s: Story) -> None:
    s.send("a-0", by="a").unknown("OutcomeUnknown")
    s.poll(4, "a-0")


def an_end_taken_back(s: Story) -> None:
    s.begin("d", "offsets", topic=T).ok([[0, 0, 5]])


def a_follower_shows_another_record(s: Story) -> None:
    s.send("a-0", by="a").unknown("OutcomeUnknown")
    s.poll(3, "a-0", reader="f", replica="follower")


def taken_back(s: Story) -> None:
    s.poll(3, "q-1")


def skipping(s: Story) -> None:
    s.poll(2, "q-0", reader="d")


def skipping_within_a_poll(s: Story) -> None:
    call = s.begin("r2", "poll", reader="r2", topic=T)
    call.ok([[0, 0, ["p-0"]], [0, 2, ["q-0"]]])


def sent_later_and_earlier_there(s: Story) -> None:
    s.stored("a-1", "a-0")
    s.send("a-0", at=5, by="a", idempotent=False)
    s.send("a-1", at=4, by="a", idempotent=False)


def never_shown(s: Story) -> None:
    s.begin("end", "drain", reader="end", topic=T).ok([[0, 2]])


def differing_replicas(s: Story) -> None:
    one, other = s.replica(1), s.replica(2)
    changed = (*other.entries[:3], replace(other.entries[3], term=2, header_crc=1))
    s.end(one, replace(other, entries=changed), s.replica(3))


def a_missing_index(s: Story) -> None:
    one = s.replica(1)
    s.end(replace(one, entries=one.entries[:2] + one.entries[3:]))


def a_missing_offset(s: Story) -> None:
    one = s.replica(1)
    s.end(replace(one, entries=(*one.entries[:3], replace(one.entries[3], base_offset=7))))


def a_log_that_begins_after_its_end(s: Story) -> None:
    s.begin("d", "offsets", topic=T).ok([[0, 4, 3]])


def a_broken_chain(s: Story) -> None:
    one = s.replica(1)
    s.end(replace(one, entries=(*one.entries[:3], replace(one.entries[3], prev_crc=7))))


def terms_that_go_back(s: Story) -> None:
    entries = tuple(chained([(2, ()), (2, ("p-0", "p-1")), (1, ("q-0",)), (2, ("q-1",))]))
    s.end(FinalReplica(LOG, 1, "leader", high_watermark=4, commit_index=4, log_start=0, entries=entries))


def a_high_watermark_beyond_the_commit(s: Story) -> None:
    s.end(replace(s.replica(1), commit_index=3))


def damage_without_a_cause(s: Story) -> None:
    s.history.damaged(LOG, 2, "the log ends at entry 3; it was durable up to 4")


def a_replica_in_quarantine(s: Story) -> None:
    s.end(s.replica(1), s.replica(2), s.replica(3, role="quarantined"))


def a_replica_that_lags(s: Story) -> None:
    s.end(s.replica(1), s.replica(2), s.replica(3, upto=3))


def another_leader(s: Story) -> None:
    s.history.led(LOG, 1, 3)


def a_leader_that_lingers(s: Story) -> None:
    s.history.led(LOG, 2, 2)
    s.now_s += 4
    s.history.leads_no_more(1)


def leaders_that_come_and_go(s: Story) -> None:
    s.history.changed("a chain: 1 - 2 - 3")
    s.now_s += 6
    for term in range(2, 6):
        s.history.leads_no_more(1 + term % 2)
        s.history.led(LOG, term, 2 - term % 2)
        s.now_s += 1


def slow_writes(s: Story) -> None:
    s.history.calm()
    s.now_s += 3
    for n in range(30):
        call = s.send(f"s-{n}", by="s")
        s.now_s += 0.15
        call.ok([0, 4 + n])
        s.stored(f"s-{n}")
    s.now_s += 3
    s.history.end()
    s.history.replicas = [s.replica(1)]


def a_topic_that_is_gone(s: Story) -> None:
    s.begin("m", "create_topic", name="u", partitions=1).ok("aa")
    s.begin("m", "get_topic", name="u").failed("UnknownTopic")


def a_call_that_never_ends(s: Story) -> None:
    s.send("a-0", by="a")


def a_call_that_ends_late(s: Story) -> None:
    call = s.begin("d", "offsets", topic=T)
    s.now_s += 1.5
    call.failed("DeadlineExceeded")


def nothing_written_after_the_faults(s: Story) -> None:
    s.history.calm()
    s.begin("a", "send", 20.0, topic=T, partition=0, records=["a-0"])
    s.now_s += 6
    s.history.end()
    s.history.replicas = [s.replica(1)]


def no_topic_made_after_the_faults(s: Story) -> None:
    s.history.calm()
    s.begin("m", "create_topic", name="u", partitions=1).failed("DeadlineExceeded")
    s.now_s += 6
    s.history.end()
    s.history.replicas = [s.replica(1)]


def not_read_to_the_end(s: Story) -> None:
    s.begin("end", "drain", reader="end", topic=T).failed("DeadlineExceeded")


def acknowledged_before_the_commit(s: Story) -> None:
    s.history.commits[LOG] = [(0.0, 4)]
    s.send("a-0", at=4, by="a")
    s.now_s += 0.1
    s.history.committed(LOG, 5)
    s.stored("a-0")


def shown_before_the_commit(s: Story) -> None:
    s.history.commits[LOG] = [(0.0, 4)]
    s.send("a-0", by="a").unknown("OutcomeUnknown")
    s.stored("a-0")
    s.poll(4, "a-0")
    s.now_s += 0.1
    s.history.committed(LOG, 5)


def an_end_told_before_the_commit(s: Story) -> None:
    s.history.commits[LOG] = [(0.0, 4)]
    s.send("a-0", by="a").unknown("OutcomeUnknown")
    s.stored("a-0")
    s.begin("d", "offsets", topic=T).ok([[0, 0, 5]])


def further_than_shown(s: Story) -> None:
    s.begin("r", "position", reader="r", topic=T).ok([[0, 6]])


def not_as_far_as_shown(s: Story) -> None:
    s.begin("r", "position", reader="r", topic=T).ok([[0, 2]])


def damaged_on_one_replica(s: Story) -> None:
    one = s.replica(3)
    *rest, last = one.entries
    s.end(s.replica(1, role="leader"), s.replica(2), replace(one, entries=(*rest, replace(last, records=("!entry",)))))


BAD: list[tuple[Spoil, AnomalyKind]] = [
    (acknowledged_before_the_commit, AnomalyKind.UNCOMMITTED),
    (shown_before_the_commit, AnomalyKind.UNCOMMITTED),
    (an_end_told_before_the_commit, AnomalyKind.UNCOMMITTED),
    (lost_at_the_end, AnomalyKind.LOST_WRITE),
    (lost_and_replaced, AnomalyKind.LOST_WRITE),
    (lost_with_every_replica, AnomalyKind.LOST_WRITE),
    (damaged, AnomalyKind.CHANGED_RECORD),
    (damaged_on_one_replica, AnomalyKind.CHANGED_RECORD),
    (from_nowhere, AnomalyKind.CHANGED_RECORD),
    (shown_damaged, AnomalyKind.CHANGED_RECORD),
    (sent_to_another_topic, AnomalyKind.CHANGED_RECORD),
    (reordered, AnomalyKind.REORDERED),
    (one_left_out_of_a_row, AnomalyKind.REORDERED),
    (half_a_batch, AnomalyKind.REORDERED),
    (twice, AnomalyKind.DUPLICATE),
    (failed_and_there, AnomalyKind.ABORTED_READ),
    (failed_and_shown, AnomalyKind.ABORTED_READ),
    (one_record_at_two_offsets, AnomalyKind.INCONSISTENT_OFFSET),
    (shown_at_another_offset, AnomalyKind.INCONSISTENT_OFFSET),
    (shown_and_taken_back, AnomalyKind.DIRTY_READ),
    (an_end_taken_back, AnomalyKind.DIRTY_READ),
    (a_follower_shows_another_record, AnomalyKind.NOT_A_PREFIX),
    (taken_back, AnomalyKind.NONMONOTONIC_POLL),
    (skipping, AnomalyKind.SKIPPED_POLL),
    (skipping_within_a_poll, AnomalyKind.SKIPPED_POLL),
    (further_than_shown, AnomalyKind.SKIPPED_POLL),
    (not_as_far_as_shown, AnomalyKind.NONMONOTONIC_POLL),
    (sent_later_and_earlier_there, AnomalyKind.NONMONOTONIC_SEND),
    (never_shown, AnomalyKind.UNSEEN_WRITE),
    (differing_replicas, AnomalyKind.REPLICAS_DIFFER),
    (a_missing_index, AnomalyKind.GAP),
    (a_missing_offset, AnomalyKind.GAP),
    (a_log_that_begins_after_its_end, AnomalyKind.GAP),
    (a_broken_chain, AnomalyKind.BROKEN_CHAIN),
    (terms_that_go_back, AnomalyKind.BROKEN_CHAIN),
    (a_high_watermark_beyond_the_commit, AnomalyKind.HIGH_WATERMARK),
    (damage_without_a_cause, AnomalyKind.INNOCENT_DAMAGE),
    (a_replica_in_quarantine, AnomalyKind.NOT_HEALED),
    (a_replica_that_lags, AnomalyKind.NOT_HEALED),
    (another_leader, AnomalyKind.TWO_LEADERS),
    (a_leader_that_lingers, AnomalyKind.LINGERING_LEADER),
    (leaders_that_come_and_go, AnomalyKind.RESTLESS),
    (slow_writes, AnomalyKind.SLOW),
    (a_topic_that_is_gone, AnomalyKind.NOT_LINEARIZABLE),
    (a_call_that_never_ends, AnomalyKind.NO_ANSWER),
    (a_call_that_ends_late, AnomalyKind.NO_ANSWER),
    (nothing_written_after_the_faults, AnomalyKind.NO_PROGRESS),
    (no_topic_made_after_the_faults, AnomalyKind.NO_PROGRESS),
    (not_read_to_the_end, AnomalyKind.NO_PROGRESS),
    *test_checkers_channels.BAD,
    *test_checkers_queues.BAD,
    *test_checkers_moves.BAD,
    *test_checkers_capacity.BAD,
    *test_checkers_times.BAD,
    *test_checkers_answers.BAD,
    *test_checkers_recreated.BAD,
    *test_checkers_scheduled.BAD,
    *test_checkers_transactions.BAD,
    *test_checkers_processing.BAD,
    *test_checkers_members.BAD,
    *test_checkers_queue_groups.BAD,
    *test_checkers_staged_acks.BAD,
    *test_checkers_half_messages.BAD,
    *test_checkers_twins.BAD,
]


@pytest.mark.parametrize(("spoil", "kind"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
def test_each_violation_is_found(spoil: Spoil, kind: AnomalyKind) -> None:
    assert kind in bad(spoil).kinds()


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [(s, k) for s, k in BAD if k not in (AnomalyKind.GAP, AnomalyKind.SKIPPED_POLL, AnomalyKind.NO_ANSWER)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_the_data_source_is_found_by_its_name(spoil: Spoil, kind: AnomalyKind) -> None:
    """The first line leads a person to the cause; the other anomalies follow from it."""
    besides = {
        AnomalyKind.DUPLICATE: {AnomalyKind.REORDERED},
        AnomalyKind.BROKEN_CHAIN: {AnomalyKind.NO_PROGRESS},
        AnomalyKind.CHANGED_RECORD: {AnomalyKind.LOST_WRITE},
        AnomalyKind.NO_PROGRESS: {AnomalyKind.NO_ANSWER},
        AnomalyKind.LOST_WRITE: {AnomalyKind.NONMONOTONIC_SEND, AnomalyKind.DIRTY_READ},
        AnomalyKind.ABORTED_READ: {AnomalyKind.LOST_WRITE, AnomalyKind.DIRTY_READ, AnomalyKind.REORDERED},
        AnomalyKind.HIGH_WATERMARK: {AnomalyKind.NOT_HEALED},
        AnomalyKind.INCONSISTENT_OFFSET: {AnomalyKind.LOST_WRITE},
        AnomalyKind.WRONG_ANSWER: {AnomalyKind.UNCOMMITTED},
    }
    found = bad(spoil).kinds()
    assert found - besides.get(kind, set()) == {kind}


@pytest.mark.parametrize(
    ("takes_s", "left_s", "kinds"),
    [(4.0, 0.1, set()), (4.0, 1.5, {AnomalyKind.NO_PROGRESS}), (1.0, 0.1, set())],
    ids=["at its deadline", "with time left", "before its deadline"],
)
def test_a_call_that_ended_right_after_the_faults_is_no_standstill(
    takes_s: float, left_s: float, kinds: set[AnomalyKind]
) -> None:  # fmt: skip
    def last_of_its_time(s: Story) -> None:
        late = s.begin("a", "send", 4.0, topic=T, partition=0, records=["a-0"])
        s.now_s += takes_s - left_s
        s.history.calm()
        s.now_s += left_s
        late.unknown("OutcomeUnknown")
        s.now_s += 6
        s.history.end()
        s.history.replicas = [s.replica(1)]

    assert bad(last_of_its_time).kinds() == kinds


def test_every_kind_has_a_bad_history() -> None:
    told = {kind for _, kind in (*BAD, *test_ledger.BAD, *test_elections.BAD)}
    assert told == set(AnomalyKind)


@pytest.mark.parametrize("checker", CHECKERS, ids=lambda checker: checker.__name__)
def test_no_checker_is_idle(checker: Checker) -> None:
    """Without the checker, some bad history would pass for a better one."""
    others = [c for c in CHECKERS if c is not checker]
    assert any(k not in {a.kind for a in check(bad(s).history, checkers=others)} for s, k in BAD)


# ---- what is no anomaly --------------------------------------------------------------------------------------


def test_a_stopped_leader_may_lead_on_for_a_while() -> None:
    story = good()
    story.history.changed("1 is stopped", paused=[1])
    story.now_s += 1
    story.history.led(LOG, 2, 2)
    story.now_s += 5
    story.history.changed("1 goes on")
    story.now_s += 1
    story.history.leads_no_more(1, LOG)
    story.end()
    assert story.kinds() == set()


def test_a_leader_of_a_deleted_topic_need_not_report_its_end() -> None:
    story = good()
    story.history.led(LOG, 2, 2)
    story.begin("m", "delete_topic", name="t").unknown("OutcomeUnknown")
    story.end(story.replica(1, upto=0, log=("other", 0)))
    assert story.kinds() == set()


def test_a_fault_that_begins_may_change_leaders() -> None:
    story = good()
    for term in range(2, 6):
        story.history.changed("another cut")
        story.now_s += 1
        story.history.leads_no_more(1 + term % 2)
        story.history.led(LOG, term, 2 - term % 2)
        story.now_s += 1
    story.history.leads_no_more(2)
    story.end()
    assert story.kinds() == set()


def test_records_that_only_the_leader_acknowledged_may_be_lost() -> None:
    story = good()
    story.send("a-0", at=9, by="a", acks="leader")
    story.end()
    assert story.kinds() == set()


def test_a_plain_producer_may_write_twice() -> None:
    story = good()
    story.send("a-0", by="a", idempotent=False).unknown("OutcomeUnknown")
    story.stored("a-0")
    story.stored("a-0")
    story.end()
    assert story.kinds() == set()


def test_a_deleted_topic_has_no_promises() -> None:
    story = good()
    story.begin("m", "delete_topic", name="t").unknown("OutcomeUnknown")
    story.end(story.replica(1, upto=0, log=("other", 0)))
    assert story.kinds() == set()


def test_without_replicas_the_records_of_readers_are_the_log() -> None:
    """For a harness that cannot look into brokers."""
    story = good()
    story.end()
    story.history.replicas = []
    assert story.kinds() == set()
    story.poll(0, "p-0", "q-0", reader="x")
    assert story.kinds() == {AnomalyKind.INCONSISTENT_OFFSET}


def test_at_most_a_few_anomalies_of_each_kind_are_returned() -> None:
    story = good()
    for n in range(20):
        story.send(f"a-{n}", at=4 + n, by="a")
    story.end()
    assert len(check(story.history)) == OF_A_KIND_MAX


# ---- speed ---------------------------------------------------------------------------------------------------


def test_half_a_minute_of_load_costs_twice_as_much_as_a_quarter() -> None:
    """Thirty virtual seconds: 3,000 sends of three records, read by three readers from three replicas."""
    assert steps(3_000) < 2.2 * steps(1_500)


def steps(sends: int) -> int:
    """Return the number of calls of Python and C functions that the check makes."""
    story = good()
    offset = 4
    for n in range(sends):
        names = [f"{n % 4}-{n}-{i}" for i in range(3)]
        story.send(*names, at=offset, by=f"p{n % 4}")
        story.stored(*names)
        for reader in ("r", "d2", "d3"):
            story.poll(offset, *names, reader=reader)
        offset += 3
    story.end()
    profile = cProfile.Profile()
    assert profile.runcall(check, story.history) == []
    return sum(entry.callcount for entry in profile.getstats())
