"""A follower's decision on an Append, as tables: hazards 2 and 11."""

from __future__ import annotations

import random

import pytest

from tests.raft.values import ListLog, chain
from tinymq.base.errors import BrokenInvariant
from tinymq.format.entry import Entry
from tinymq.raft.rules.log_matching import Conflict, Match, next_after_conflict, receive
from tinymq.raft.rules.messages import Append, AppendAck


def append(log: list[Entry], prev: int, count: int, term: int = 9, commit: int = 0) -> Append:
    return Append(term, prev, log[prev - 1].term if prev else 0, commit, log[prev : prev + count])


def ack_of(conflict: Conflict, commit: int) -> AppendAck:
    return AppendAck(
        term=9,
        durable=0,
        received=0,
        conflict=True,
        next=conflict.next,
        next_term=conflict.next_term,
        commit=commit,
        count=0,
    )


def test_present_entries_are_skipped_and_nothing_is_truncated() -> None:
    log = chain([0, 1, 1, 1, 1])
    decision = receive(ListLog(log), 1, append(log, prev=1, count=2))
    assert decision == Match(None, (), 3)


def test_only_the_new_end_of_an_overlapping_append_is_appended() -> None:
    theirs = chain([0, 1, 1, 1, 1])
    decision = receive(ListLog(theirs[:3]), 1, append(theirs, prev=1, count=4))
    assert decision == Match(None, theirs[3:], 5)


def test_only_conflicting_entries_are_truncated() -> None:
    common = chain([0, 1, 1])
    ours = common + chain([2, 2], common[-1])
    theirs = common + chain([3, 3, 3], common[-1])
    decision = receive(ListLog(ours), 3, append(theirs, prev=1, count=5))
    assert decision == Match(4, theirs[3:], 6)


def test_a_conflict_with_committed_entries_is_a_broken_invariant() -> None:
    common = chain([0, 1])
    ours = common + chain([2], common[-1])
    theirs = common + chain([3], common[-1])
    with pytest.raises(BrokenInvariant, match="committed"):
        receive(ListLog(ours), 3, append(theirs, prev=2, count=1))


def test_a_gap_is_answered_with_the_end_of_our_log() -> None:
    theirs = chain([0, 1, 1, 1, 1])
    assert receive(ListLog(theirs[:2]), 1, append(theirs, prev=4, count=1)) == Conflict(3, 1)


def test_another_term_at_prev_is_answered_with_the_commit_index() -> None:
    common = chain([0, 1, 1])
    ours = common + chain([2] * 50, common[-1])
    theirs = common + chain([3] * 50, common[-1])
    conflict = receive(ListLog(ours), 3, append(theirs, prev=40, count=1))
    assert conflict == Conflict(4, 1)


def test_an_empty_append_verifies_up_to_prev() -> None:
    log = chain([0, 1, 1])
    assert receive(ListLog(log), 1, append(log, prev=3, count=0)) == Match(None, (), 3)
    assert receive(ListLog(log), 1, append(log, prev=2, count=0)) == Match(None, (), 2)


@pytest.mark.parametrize(
    ("prev", "count", "verified", "appended"), [(1, 2, 3, 0), (1, 3, 4, 0), (1, 6, 7, 2), (4, 3, 7, 2)]
)
def test_entries_removed_by_retention_count_as_matching(prev: int, count: int, verified: int, appended: int) -> None:
    theirs = chain([0] + [1] * 6)
    decision = receive(ListLog(theirs[:5], trimmed=4), 5, append(theirs, prev, count))
    assert isinstance(decision, Match)
    assert (decision.truncate_from, decision.verified, len(decision.entries)) == (None, verified, appended)


def test_the_leader_continues_where_terms_agree_or_after_the_followers_commit() -> None:
    common = chain([0, 1, 1])
    theirs = ListLog(common + chain([3, 3, 3], common[-1]))
    assert (
        next_after_conflict(
            theirs, AppendAck(term=9, durable=0, received=0, conflict=True, next=4, next_term=1, commit=2, count=0)
        )
        == 4
    )
    assert (
        next_after_conflict(
            theirs, AppendAck(term=9, durable=0, received=0, conflict=True, next=6, next_term=2, commit=2, count=0)
        )
        == 3
    )


def repaired(theirs: list[Entry], ours: list[Entry], commit: int, prev: int) -> int:
    """Pass messages between a leader and a follower until the logs are equal. Returns the number of Appends."""
    leader, follower = ListLog(theirs), ListLog(ours)
    for sent in range(1, 10):
        decision = receive(follower, commit, append(theirs, prev, len(theirs) - prev))
        if isinstance(decision, Match):
            if decision.truncate_from is not None:
                follower.truncate_from(decision.truncate_from)
            follower.append(decision.entries)
            assert follower.entries == theirs
            return sent
        prev = next_after_conflict(leader, ack_of(decision, commit)) - 1
    raise AssertionError("not repaired")


@pytest.mark.parametrize("seed", range(300))
def test_any_divergence_is_repaired_in_one_round_trip(seed: int) -> None:
    """Hazard 11: one conflict answer repairs any pair of tails."""
    rng = random.Random(seed)
    common = chain([0, *sorted(rng.choices(range(1, 4), k=rng.randrange(20)))])
    last = common[-1]
    ours = common + chain(sorted(rng.choices([4, 6], k=rng.randrange(30))), last)
    theirs = common + chain(sorted(rng.choices([5, 7], k=rng.randrange(1, 30))), last)
    commit = rng.randint(1, len(common))
    assert repaired(theirs, ours, commit, prev=rng.randint(commit, len(theirs))) <= 2
