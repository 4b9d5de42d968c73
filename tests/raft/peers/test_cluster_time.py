"""The cluster's time: a majority of the group's brokers agrees on it, however wrong the other clocks are."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import pytest

from tests.fakes.manual_clock import ManualClock
from tinymq.raft.peers.cluster_time import APART_US_MAX, ClusterTime, agreed_us

DAYS_US = 8 * 24 * 3_600_000_000


@pytest.mark.parametrize(
    ("clocks_us", "brokers", "agreed"),
    [
        ([7], 1, 7),
        ([7], 2, None),
        ([7, 9], 2, 7),
        ([7, DAYS_US], 2, None),
        ([7, 9], 3, 7),
        ([7, DAYS_US], 3, None),
        ([-DAYS_US, 7], 3, None),
        ([DAYS_US], 3, None),
        ([7, 8, DAYS_US], 3, 8),
        ([-DAYS_US, 7, 8], 3, 7),
        ([7, 8, 9, DAYS_US], 4, 8),
        ([7, 8, DAYS_US, DAYS_US], 4, None),
        ([7, 8, 9, DAYS_US, DAYS_US], 5, 9),
        ([7, 8, DAYS_US, DAYS_US], 5, None),
        ([7, 8, 9], 5, 7),
        ([7, 8], 5, None),
        ([7, 7 + APART_US_MAX], 2, 7),
        ([7, 8 + APART_US_MAX], 2, None),
    ],
)
def test_a_majority_agrees(clocks_us: list[int], brokers: int, agreed: int | None) -> None:
    assert agreed_us(clocks_us, brokers) == agreed
    assert agreed_us(clocks_us[::-1], brokers) == agreed


@pytest.mark.parametrize("brokers", range(1, 8))
def test_no_minority_of_wrong_clocks_moves_it(brokers: int) -> None:
    """Right clocks are within 9 of 0. Try every wrong minority and every set of brokers that may be heard."""
    for wrong in range((brokers - 1) // 2 + 1):
        for lies in itertools.product((-DAYS_US, DAYS_US), repeat=wrong):
            clocks = [*lies, *range(brokers - wrong)]
            for heard in range(1, brokers + 1):
                for some in itertools.combinations(clocks, heard):
                    agreed = agreed_us(some, brokers)
                    assert agreed is None or 0 <= agreed < 9, (some, brokers)
            assert agreed_us(clocks, brokers) is not None, "when all clocks are heard, the time is known"


class Heard:
    """The other brokers' clocks, as seconds ahead of ours."""

    def __init__(self) -> None:
        self.ahead_us: dict[int, int] = {}

    def clocks_us(self, brokers: Collection[int]) -> list[int]:
        return [self.ahead_us[b] for b in sorted(brokers) if b in self.ahead_us]


def test_only_brokers_with_a_replica_count() -> None:
    clock, heard = ManualClock(), Heard()
    time, told = ClusterTime(1, clock, heard), []
    time.on_known = lambda: told.append(time.now_us())
    time.look()
    assert time.now_us() == clock.wall_us(), "a cluster of one broker is its own majority"
    time.count({2, 3})
    assert time.now_us() is None
    heard.ahead_us[4] = clock.wall_us() - int(clock.monotonic() * 1e6)
    time.look()
    assert time.now_us() is None, "broker 4 has no replica"
    heard.ahead_us[2] = heard.ahead_us[4]
    time.look()
    assert told[-1:] == [time.now_us()] == [clock.wall_us()]
    clock.advance(5.0)
    assert time.now_us() == clock.wall_us()


def test_our_own_clock_counts_even_if_it_is_wrong() -> None:
    clock, heard = ManualClock(), Heard()
    time = ClusterTime(1, clock, heard)
    right_us = clock.wall_us() - int(clock.monotonic() * 1e6)
    heard.ahead_us = {2: right_us, 3: right_us}
    time.count({2, 3})
    before_us = clock.wall_us()
    clock.wall_skew_us = DAYS_US
    assert time.now_us() == before_us
    time.look()
    assert time.now_us() == before_us
