"""The decisions of a coordinator, one by one, and random lives in which no two members own a partition."""

from __future__ import annotations

import random

import pytest

from tinymq.broker.coordinator import rules
from tinymq.broker.coordinator.assignors import balanced, by_range
from tinymq.broker.members.group_members import Change, Member, Members, Place, changed

PLACES = [Place(b"t" * 16, n) for n in range(4)]
A, B = Member(b"a" * 16), Member(b"b" * 16)


def after(state: Members, *changes: Change) -> Members:
    for change in changes:
        state = changed(state, change)
    return state


def joined(*names: str) -> Members:
    state = Members(group_id=7)
    for name in names:
        state = after(state, rules.heard(state, name, Member(name.encode() * 16), {}, 0))
    return after(state, rules.rebalanced(state, PLACES, balanced))


def test_an_assignment_is_given_under_rising_epochs() -> None:
    state = joined("a")
    assert [at.epoch for at in state.of("a").values()] == [(7 << 32) + n for n in (1, 2, 3, 4)]
    assert not rules.rebalanced(state, PLACES, balanced)


def test_a_partition_moves_in_three_steps_and_what_stays_is_not_touched() -> None:
    state = joined("a")
    state = after(state, rules.heard(state, "b", B, {}, 0))
    asked = after(state, rules.rebalanced(state, PLACES, balanced))
    revoked = [place for place, at in asked.owned.items() if at.revoking]
    assert len(revoked) == 2
    assert not asked.of("b")
    assert not rules.rebalanced(asked, PLACES, balanced), "nobody else gets it before it is let go"
    kept = {place: at.epoch for place, at in asked.of("a").items() if not at.revoking}
    free = after(asked, rules.heard(asked, "a", asked.members["a"], kept, state.epoch))
    given = after(free, rules.rebalanced(free, PLACES, balanced))
    assert sorted(given.of("b")) == sorted(revoked)
    assert all(at.epoch > state.epoch for at in given.of("b").values())
    assert {place: at.epoch for place, at in given.of("a").items()} == kept


def test_absence_counts_only_for_assignments_that_were_taken() -> None:
    state = joined("a")
    member = state.members["a"]
    assert not rules.heard(state, "a", member, {}, 0), "sent before the assignment arrived"
    assert len(rules.heard(state, "a", member, {}, state.epoch).owned) == 4


def test_another_life_of_a_member_gets_other_epochs() -> None:
    state = joined("a")
    before = {place: at.epoch for place, at in state.of("a").items()}
    state = after(state, rules.heard(state, "a", Member(b"x" * 16), before, state.epoch))
    assert not state.owned
    state = after(state, rules.rebalanced(state, PLACES, balanced))
    assert min(at.epoch for at in state.of("a").values()) > max(before.values())
    assert rules.lost(state, "a", b"a" * 16, before) == PLACES, "the session before has nothing any more"


def test_epochs_go_on_above_one_that_a_cursor_has() -> None:
    state = joined("a")
    assert rules.heard(state, "a", state.members["a"], {}, 0, fenced_at=(7 << 32) + 90).counter == 90
    assert rules.heard(state, "a", state.members["a"], {}, 0, fenced_at=(8 << 32) + 90).counter == 0, "another group's"


def test_silence_ends_a_session_and_an_instance_id_has_longer() -> None:
    state = Members(7, members={"a": A, "s": Member(b"s" * 16, static=True)})
    assert rules.expired(state, lambda name: 3.0, 3.0, 45.0) == ["a"]
    assert rules.expired(state, lambda name: 45.0, 3.0, 45.0) == ["a", "s"]


@pytest.mark.parametrize("seed", range(20))
def test_balanced_is_even_and_moves_no_more_than_it_must(seed: int) -> None:
    rng = random.Random(seed)
    members = [f"m{n}" for n in range(rng.randrange(1, 6))]
    places = [Place(bytes([t]) * 16, n) for t in range(3) for n in range(rng.randrange(0, 7))]
    present = {place: rng.choice([*members, "gone"]) for place in places if rng.random() < 0.8}
    target = balanced(members, places, present)
    counts = [list(target.values()).count(member) for member in members]
    assert set(target) == set(places), f"seed {seed}"
    assert max(counts) - min(counts) <= 1, f"seed {seed}"
    assert balanced(members, places, target) == target, f"seed {seed}: it stays as it is"


def test_range_gives_equal_numbers_of_topics_to_one_member() -> None:
    places = [Place(topic * 16, n) for topic in (b"t", b"u") for n in range(3)]
    target = by_range(["a", "b"], places, {})
    assert all(target[Place(b"t" * 16, n)] == target[Place(b"u" * 16, n)] for n in range(3))
    assert sorted(target.values()) == ["a", "a", "a", "a", "b", "b"]


def test_without_members_nobody_owns_anything() -> None:
    state = joined("a")
    state = after(state, rules.left(state, ["a"]))
    assert not state.owned
    assert not rules.rebalanced(state, PLACES, balanced)
    assert state.counter == 4, "epochs are never given again"
