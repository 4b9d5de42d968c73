"""Append times: they never go back, and one wrong clock moves them by 1 % at most."""

from __future__ import annotations

import random

from tinymq.raft.stamps import TermStamps, lower_median


def test_lower_median() -> None:
    assert lower_median([3]) == 3
    assert lower_median([9, 1]) == 1
    assert lower_median([9, 1, 5]) == 5
    assert lower_median([1, 2, 3, 10**18]) == 2


def test_a_term_starts_at_the_greater_of_predecessor_and_median() -> None:
    assert TermStamps(100, 500, 0.0).stamp(500, 0.0) == 500
    assert TermStamps(900, 500, 0.0).stamp(500, 0.0) == 900


def test_stamps_follow_the_monotonic_clock_and_slew_towards_the_median() -> None:
    stamps = TermStamps(0, 1_000_000, 0.0)
    assert stamps.stamp(2_000_000, 1.0) == 2_000_000
    assert stamps.stamp(3_600_000_000, 2.0) == 3_010_000  # an hour ahead: 1 % faster
    assert stamps.stamp(0, 3.0) == 4_000_000  # an hour behind: 1 % slower


def test_a_median_behind_the_predecessor_is_waited_for_without_standing_still() -> None:
    stamps = TermStamps(10_000_000, 0, 0.0)
    assert stamps.stamp(1_000_000, 1.0) == 10_990_000


def test_stamps_never_go_back() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        now, last = 0.0, rng.randrange(10**9)
        stamps = TermStamps(last, rng.randrange(10**9), now)
        for _ in range(100):
            now += rng.choice([0.0, 0.0, 0.001, 1.0])
            stamp = stamps.stamp(rng.randrange(10**12), now)
            assert stamp >= last
            last = stamp
