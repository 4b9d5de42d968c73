"""Tables of failure and election timeouts, derived from measured heartbeats."""

from __future__ import annotations

import pytest

from tinymq.base.config import Timing
from tinymq.raft.peers.adaptive_timeouts import HALVED_AFTER_S, ROUND_TRIP_MAX_S, HeartbeatGaps, RoundTrips, election_s

TIMING = Timing(heartbeat_s=0.1, gone_after_s=0.6, election_min_s=0.15, election_max_s=0.45)

# name: (gaps between heartbeats, gone after, doubted after), in seconds
PACES: dict[str, tuple[list[float], float, float]] = {
    "nothing heard yet": ([], 0.6, 0.3),
    "on time": ([0.1] * 50, 0.6, 0.3),
    "100 to 200 ms late, and early": ([0.1, 0.3, 0.1, 0.0, 0.2] * 10, 0.6, 0.3),
    "one of 500 ms": ([0.1, 0.5, 0.1], 0.75, 0.5),
    "one that caused a failure verdict": ([0.1, 0.9, 0.1], 1.35, 0.9),
    "as long as the largest bound": ([0.1, 1.5, 0.1], 1.5, 1.5),
    "an outage does not count as a gap between heartbeats": ([0.1, 1.6, 6.0, 0.1], 0.6, 0.3),
    "the longest gap counts, not the last": ([0.7, 0.5], 1.05, 0.7),
}


@pytest.mark.parametrize("name", PACES)
def test_the_bound_follows_the_longest_gap(name: str) -> None:
    heard, gone_after_s, doubted_after_s = PACES[name]
    gaps = HeartbeatGaps()
    for gap_s in heard:
        gaps.add(gap_s, TIMING)
    assert gaps.gone_after_s(TIMING) == pytest.approx(gone_after_s, rel=0.02)
    assert gaps.doubted_after_s(TIMING) == pytest.approx(doubted_after_s, rel=0.02)


def test_a_long_gap_is_forgotten() -> None:
    gaps = HeartbeatGaps()
    gaps.add(1.0, TIMING)
    for _ in range(int(HALVED_AFTER_S / 0.1)):
        gaps.add(0.1, TIMING)
    assert gaps.longest_s == pytest.approx(0.5, rel=0.01)
    for _ in range(int(4 * HALVED_AFTER_S / 0.1)):
        gaps.add(0.1, TIMING)
    assert gaps.gone_after_s(TIMING) == TIMING.gone_after_s


@pytest.mark.parametrize("floor_s", [0.31, 0.6, 30.0])
@pytest.mark.parametrize("gap_s", [0.0, 0.1, 0.4, 0.8, 1.4, 3.0, 70.0])
def test_the_bound_stays_between_its_ends_and_doubt_comes_first(floor_s: float, gap_s: float) -> None:
    timing = Timing(gone_after_s=floor_s)
    gaps = HeartbeatGaps()
    gaps.add(gap_s, timing)
    assert 3 * timing.heartbeat_s <= floor_s <= gaps.gone_after_s(timing) <= 2.5 * floor_s
    assert gaps.doubted_after_s(timing) <= gaps.gone_after_s(timing)


def test_with_the_default_an_isolated_leader_is_down_within_two_seconds() -> None:
    gaps = HeartbeatGaps()
    gaps.add(1.5, Timing())
    assert gaps.gone_after_s(Timing()) * 1.05 < 2.0, "also by a clock that is 5 % slow"


def test_round_trips_are_smoothed_and_few_exceed_the_estimate() -> None:
    trips = RoundTrips()
    assert trips.longest_s == 0.0
    trips.add(0.3)
    assert trips.longest_s == pytest.approx(0.9)
    for sample_s in (0.2, 0.3, 0.4, 0.3) * 25:
        trips.add(sample_s)
    assert trips.smoothed_s == pytest.approx(0.3, abs=0.02)
    assert 0.4 < trips.longest_s < 0.6
    for _ in range(100):
        trips.add(0.001)
    assert trips.longest_s < 0.005


def test_round_trips_have_a_bound() -> None:
    trips = RoundTrips()
    trips.add(ROUND_TRIP_MAX_S)
    assert trips.longest_s == ROUND_TRIP_MAX_S


def test_an_election_waits_for_round_trips() -> None:
    assert election_s(TIMING, 0.0) == (0.15, 0.45)
    assert election_s(TIMING, 0.4) == pytest.approx((0.55, 1.25))


def test_a_round_trip_across_a_cut_is_not_measured() -> None:
    """One sample of 3 s made every candidate wait 4 s, and the next in rank 8 s."""
    trips = RoundTrips()
    for _ in range(10):
        trips.add(0.03)
    before_s = trips.longest_s
    trips.add(ROUND_TRIP_MAX_S + 1)
    assert trips.longest_s == before_s
