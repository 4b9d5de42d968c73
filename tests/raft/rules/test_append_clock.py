"""Append times: they never go back, and one wrong clock cannot move them."""

from __future__ import annotations

import random

from tinymq.raft.rules.append_clock import AppendClock


def test_a_term_starts_at_the_later_of_predecessor_and_cluster_time() -> None:
    assert AppendClock(100, 500, 0.0).stamp(500, 0.0) == 500
    assert AppendClock(900, 500, 0.0).stamp(500, 0.0) == 900
    assert (AppendClock(100, 500, 0.0).jump_us, AppendClock(900, 500, 0.0).jump_us) == (400, 0)


def test_stamps_follow_the_monotonic_clock_and_slew_towards_the_cluster_time() -> None:
    stamps = AppendClock(0, 1_000_000, 0.0)
    assert stamps.stamp(2_000_000, 1.0) == 2_000_000
    assert stamps.stamp(3_600_000_000, 2.0) == 3_010_000  # an hour ahead: 1 % faster
    assert stamps.stamp(0, 3.0) == 4_000_000  # an hour behind: 1 % slower
    assert stamps.stamp(None, 4.0) == 5_000_000  # nobody can tell any more


def test_a_time_behind_the_predecessor_is_waited_for_without_standing_still() -> None:
    stamps = AppendClock(10_000_000, 0, 0.0)
    assert stamps.stamp(1_000_000, 1.0) == 10_990_000


def test_without_cluster_time_a_term_starts_at_its_predecessor_and_catches_up_once() -> None:
    stamps = AppendClock(1_000_000, None, 0.0)
    assert not stamps.known
    assert stamps.stamp(None, 1.0) == 2_000_000
    assert stamps.stamp(9_000_000, 1.5) == 2_500_000, "no jump until the leader knows the time"
    stamps.learn(10_000_000, 2.0)
    assert stamps.known
    assert stamps.jump_us == 7_000_000
    assert stamps.stamp(10_000_000, 2.0) == 10_000_000
    assert stamps.stamp(11_000_000, 3.0) == 11_000_000


def test_a_cluster_time_learned_late_moves_no_stamp_back() -> None:
    stamps = AppendClock(5_000_000, None, 0.0)
    stamps.learn(1_000_000, 1.0)
    assert (stamps.known, stamps.jump_us, stamps.stamp(1_000_000, 1.0)) == (True, 0, 6_000_000)


def test_stamps_never_go_back() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        now, last = 0.0, rng.randrange(10**9)
        stamps = AppendClock(last, rng.choice([None, rng.randrange(10**9)]), now)
        for _ in range(100):
            now += rng.choice([0.0, 0.0, 0.001, 1.0])
            if not stamps.known and rng.random() < 0.1:
                stamps.learn(rng.randrange(10**12), now)
            stamp = stamps.stamp(rng.choice([None, rng.randrange(10**12)]), now)
            assert stamp >= last
            last = stamp
