"""The decisions of a coordinator, one by one, and random lives in which no two members own a partition."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tinymq.base.errors import Fenced, QuotaExceeded
from tinymq.base.types import PartitionId
from tinymq.broker.coordinator import rules
from tinymq.broker.coordinator.assignors import balanced, by_range
from tinymq.broker.coordinator.rules import MemberHeartbeat
from tinymq.broker.coordinator.sessions import MEMBERS_MAX, GroupSessions
from tinymq.broker.members.group_members import Member, Members, MembersDelta, changed

PLACES = [PartitionId(b"t" * 16, n) for n in range(4)]
A, B = Member(b"a" * 16), Member(b"b" * 16)


def beats(
    name: str = "a",
    owned: dict[PartitionId, int] | None = None,
    taken: int = 0,
    *,
    session: bytes = b"",
    static: bool = False,
    number: int = 1,
    **more: Any,
) -> MemberHeartbeat:
    return MemberHeartbeat(
        name, Member(session or name.encode() * 16, static=static), number, owned or {}, taken, **more
    )


def after(state: Members, *changes: MembersDelta) -> Members:
    for change in changes:
        state = changed(state, change)
    return state


def joined(*names: str) -> Members:
    state = Members(group_id=7)
    for name in names:
        state = after(state, rules.heard(state, beats(name)))
    return after(state, rules.rebalanced(state, PLACES, balanced))


def test_an_assignment_is_given_under_rising_epochs() -> None:
    state = joined("a")
    assert [at.epoch for at in state.of("a").values()] == [(7 << 32) + n for n in (1, 2, 3, 4)]
    assert not rules.rebalanced(state, PLACES, balanced)


def test_what_is_assigned_again_has_a_new_epoch() -> None:
    state = joined("a")
    first = {place: at.epoch for place, at in state.of("a").items()}
    state = after(state, rules.heard(state, beats(taken=state.epoch)))
    assert not state.owned
    state = after(state, rules.rebalanced(state, PLACES, balanced))
    assert min(at.epoch for at in state.of("a").values()) > max(first.values())


def test_a_partition_moves_in_three_steps_and_what_stays_is_not_touched() -> None:
    state = joined("a")
    state = after(state, rules.heard(state, beats("b")))
    asked = after(state, rules.rebalanced(state, PLACES, balanced))
    revoked = [place for place, at in asked.owned.items() if at.revoking]
    assert len(revoked) == 2
    assert not asked.of("b")
    assert not rules.rebalanced(asked, PLACES, balanced), "nobody else gets it before it is let go"
    kept = {place: at.epoch for place, at in asked.of("a").items() if not at.revoking}
    free = after(asked, rules.heard(asked, beats(owned=kept, taken=state.epoch)))
    given = after(free, rules.rebalanced(free, PLACES, balanced))
    assert sorted(given.of("b")) == sorted(revoked)
    assert all(at.epoch > state.epoch for at in given.of("b").values())
    assert {place: at.epoch for place, at in given.of("a").items()} == kept


def test_absence_counts_only_for_assignments_that_were_taken() -> None:
    state = joined("a")
    assert not rules.heard(state, beats()), "sent before the assignment arrived"
    assert len(rules.heard(state, beats(taken=state.epoch)).owned) == 4


def test_another_life_of_a_member_gets_its_partitions_under_other_epochs() -> None:
    state = joined("a", "b")
    before = {place: at.epoch for place, at in state.of("a").items()}
    state = after(state, rules.heard(state, beats(session=b"x" * 16, owned=before, taken=state.epoch)))
    assert set(state.of("a")) == set(before), "they waited for its return"
    assert min(at.epoch for at in state.of("a").values()) > max(before.values())
    assert rules.lost(state, "a", b"a" * 16, before) == list(before), "the session before has nothing any more"


def test_another_life_of_a_member_does_not_get_what_is_being_taken_back() -> None:
    state = joined("a")
    state = after(state, rules.heard(state, beats("b")))
    state = after(state, rules.rebalanced(state, PLACES, balanced))
    state = after(state, rules.heard(state, beats(session=b"x" * 16)))
    assert len(state.of("a")) == 2
    state = after(state, rules.rebalanced(state, PLACES, balanced))
    assert len(state.of("b")) == 2


def test_of_two_sessions_of_one_instance_id_the_later_one_goes_on() -> None:
    state = joined("a")
    second = beats(session=b"x" * 16, static=True)
    state = after(state, rules.heard(state, second))
    for again in (beats(), beats(joined=True), beats(session=b"y" * 16, joined=True)):
        with pytest.raises(Fenced):
            rules.heard(state, again)
    assert not rules.closed(state, "a", b"a" * 16), "the first one leaves, and its successor stays"
    third = after(state, rules.heard(state, beats(session=b"z" * 16, static=True)))
    assert third.members["a"].replaced == (b"a" * 16, b"x" * 16)
    assert rules.closed(third, "a", b"z" * 16).members == {"a": None}


@pytest.mark.parametrize("seen", [{"fenced_at": (7 << 32) + 90}, {"taken": (7 << 32) + 90}])
def test_epochs_go_on_above_those_that_a_member_has_seen(seen: dict[str, int]) -> None:
    """After a loss of the coordinator's log."""
    state = joined("a")
    assert rules.heard(state, beats(**seen)).counter == 90  # type: ignore[arg-type]
    assert rules.heard(state, beats(fenced_at=(8 << 32) + 90)).counter == 0, "another group's"
    assert rules.heard(state, beats(fenced_at=(7 << 32) + (1 << 32) - 1)).counter == 0, "no room would be left"


def test_a_late_heartbeat_of_a_member_that_left_says_nothing() -> None:
    sessions, state = GroupSessions(since_s=0.0), Members(7)
    assert sessions.hear(beats(number=1), state, 1.0)
    assert sessions.hear(beats(number=3, leave=True), state, 2.0)
    assert not sessions.hear(beats(number=2), state, 2.5)
    sessions.forget({}, 3.0, 3.0)
    assert not sessions.hear(beats(number=2), state, 3.0)
    sessions.forget({}, 8.0, 3.0)
    assert sessions.sessions == {}


def test_a_group_has_a_bound_of_members() -> None:
    sessions, state = GroupSessions(since_s=0.0), Members(7, members={"old": A})
    for number in range(MEMBERS_MAX):
        sessions.hear(beats(f"m{number}"), state, 1.0)
    with pytest.raises(QuotaExceeded):
        sessions.hear(beats("more"), state, 1.0)
    assert sessions.hear(beats("old"), state, 1.0), "it is a member already"


def test_members_count_as_heard_when_their_coordinator_began() -> None:
    silent_s = GroupSessions(since_s=10.0).silences(12.0)
    assert silent_s("a") == 2.0


def test_an_owner_that_does_not_let_go_in_time_loses_the_partition() -> None:
    state = joined("a")
    state = after(state, rules.heard(state, beats("b")))
    asked = after(state, rules.rebalanced(state, PLACES, balanced))
    sessions = GroupSessions(since_s=0.0)
    assert sessions.late(asked, 100.0, revoke_s=30.0) == {}
    late = sessions.late(asked, 130.0, revoke_s=30.0)
    assert len(late) == 2
    assert set(rules.freed(asked, late).owned) == set(late)
    assert not rules.freed(asked, {place: epoch + 1 for place, epoch in late.items()}).owned, "another one was asked"


def test_silence_ends_a_session_and_an_instance_id_has_longer() -> None:
    state = Members(7, members={"a": A, "s": Member(b"s" * 16, static=True)})
    assert rules.expired(state, lambda name: 3.0, 3.0, 45.0) == ["a"]
    assert rules.expired(state, lambda name: 45.0, 3.0, 45.0) == ["a", "s"]


@pytest.mark.parametrize("seed", range(20))
def test_balanced_is_even_and_moves_no_more_than_it_must(seed: int) -> None:
    rng = random.Random(seed)
    members = [f"m{n}" for n in range(rng.randrange(1, 6))]
    places = [PartitionId(bytes([t]) * 16, n) for t in range(3) for n in range(rng.randrange(0, 7))]
    present = {place: rng.choice([*members, "gone"]) for place in places if rng.random() < 0.8}
    target = balanced(members, places, present)
    counts = [list(target.values()).count(member) for member in members]
    assert set(target) == set(places), f"seed {seed}"
    assert max(counts) - min(counts) <= 1, f"seed {seed}"
    assert balanced(members, places, target) == target, f"seed {seed}: it stays as it is"


def test_range_gives_equal_numbers_of_topics_to_one_member() -> None:
    places = [PartitionId(topic * 16, n) for topic in (b"t", b"u") for n in range(3)]
    target = by_range(["a", "b"], places, {})
    assert all(target[PartitionId(b"t" * 16, n)] == target[PartitionId(b"u" * 16, n)] for n in range(3))
    assert sorted(target.values()) == ["a", "a", "a", "a", "b", "b"]


def test_without_members_nobody_owns_anything() -> None:
    state = joined("a")
    state = after(state, rules.left(state, ["a"]))
    assert not state.owned
    assert not rules.rebalanced(state, PLACES, balanced)
    assert state.counter == 4, "epochs are never given again"
