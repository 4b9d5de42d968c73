"""The rules of a member, one by one: until when it owns what, and which answers and assignments count."""

from __future__ import annotations

import pytest

from tinymq.client.group.fetched_records import TopicPartition
from tinymq.client.group.member_state import Assigned, Beat, MemberState, Ownership

REJOIN_S = 3.0
T = b"t" * 16
P, Q = TopicPartition("orders", 0), TopicPartition("orders", 1)


def given(place: TopicPartition, epoch: int, *, revoking: bool = False) -> Assigned:
    return Assigned(place, Ownership(T, epoch), revoking)


@pytest.fixture
def member() -> MemberState:
    """Joined at 10 s, and owns P under epoch 1."""
    state = MemberState(REJOIN_S)
    beats(state, 10.0)
    assert state.assigned([given(P, 1)], 5, 1, 10.1).take == [(P, Ownership(T, 1))]
    return state


def beats(state: MemberState, now_s: float, *lost: TopicPartition, late_s: float = 0.05, term: int = 5) -> Beat:
    beat = state.beat(now_s)
    state.answered(beat, {(T, place.partition) for place in lost}, term, now_s + late_s)
    return beat


def test_the_time_counts_from_when_the_heartbeat_was_sent(member: MemberState) -> None:
    assert member.alive(12.99)
    assert not member.alive(13.0)
    beat = member.beat(11.0)
    member.answered(beat, (), 5, 12.9)
    assert member.alive(13.9)
    assert not member.alive(14.0)


def test_what_the_time_took_away_stays_lost(member: MemberState) -> None:
    """The answer comes after the time was over, and before anything has looked at the clock."""
    beat = member.beat(12.0)
    assert member.answered(beat, (), 5, 13.5) == [P]
    assert member.alive(13.5)
    assert member.owned == {}
    assert member.assigned([given(P, 1)], 5, 2, 13.6).take == [], "the same assignment gives nothing back"
    assert member.assigned([given(P, 2)], 5, 3, 13.7).take == [(P, Ownership(T, 2))]


def test_an_assignment_is_dropped_when_the_time_is_over(member: MemberState) -> None:
    step = member.assigned([given(P, 1), given(Q, 2)], 5, 2, 13.0)
    assert (step.lost, step.take) == ([P], [])
    beat = beats(member, 13.1)
    assert (beat.owned, beat.taken) == ({}, 2), "its absence counts from now on"


def test_heartbeats_have_rising_numbers_and_the_whole_list(member: MemberState) -> None:
    first, second = member.beat(10.5), member.beat(10.6)
    assert first.number < second.number
    assert second.owned == {P: Ownership(T, 1)}
    assert second.taken == 1
    assert second.joined


def test_a_heartbeat_before_the_first_answer_is_of_a_new_session() -> None:
    state = MemberState(REJOIN_S)
    assert not state.beat(1.0).joined
    assert not state.alive(1.0)


def test_an_answer_is_about_the_list_that_was_sent(member: MemberState) -> None:
    beat = member.beat(10.5)
    member.assigned([given(P, 4)], 5, 2, 10.6)
    assert member.answered(beat, {(T, 0)}, 5, 10.7) == [], "P was lost under epoch 1, and is owned under 4"
    assert member.answered(member.beat(10.8), {(T, 0)}, 5, 10.9) == [P]


def test_what_is_kept_is_not_touched_and_what_is_not_listed_is_lost(member: MemberState) -> None:
    step = member.assigned([given(P, 1), given(Q, 2)], 5, 2, 10.2)
    assert (step.lost, step.revoke, step.take) == ([], [], [(Q, Ownership(T, 2))])
    step = member.assigned([given(Q, 2)], 5, 3, 10.3)
    assert (step.lost, step.revoke, step.take) == ([P], [], [])


def test_a_partition_is_let_go_when_the_owner_is_done_with_it(member: MemberState) -> None:
    step = member.assigned([given(P, 1, revoking=True)], 5, 2, 10.2)
    assert step.revoke == [(P, Ownership(T, 1))]
    assert member.owned, "until it is let go"
    assert member.assigned([given(P, 1, revoking=True)], 5, 3, 10.3).revoke == [], "it is asked once"
    member.let_go(P, Ownership(T, 1), fenced_at=9)
    assert (member.beat(10.4).owned, member.beat(10.4).fenced_at) == ({}, 9)


def test_a_partition_that_was_assigned_again_is_not_let_go_with_the_one_before(member: MemberState) -> None:
    member.assigned([given(P, 4)], 5, 2, 10.2)
    member.let_go(P, Ownership(T, 1))
    assert member.owned == {P: Ownership(T, 4)}


def test_a_coordinator_that_was_replaced_assigns_nothing(member: MemberState) -> None:
    beats(member, 10.5, term=6)
    step = member.assigned([given(Q, 9)], 5, 2, 10.6)
    assert (step.ignored, list(step.take), list(step.lost)) == (True, [], [])
    assert member.owned == {P: Ownership(T, 1)}
    assert member.assigned([given(P, 1), given(Q, 9)], 6, 2, 10.7).take == [(Q, Ownership(T, 9))]


def test_a_topic_that_is_not_known_yet_is_assigned_again_later(member: MemberState) -> None:
    assert member.assigned([given(P, 1), given(TopicPartition("", 0), 2)], 5, 2, 10.2).take == []
    assert member.beat(10.3).taken == 2


def test_a_member_that_left_owns_nothing(member: MemberState) -> None:
    member.end()
    assert not member.alive(10.2)
    assert member.beat(10.2).owned == {}
