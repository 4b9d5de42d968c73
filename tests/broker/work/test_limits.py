"""The share of one partition in its group's bounds."""

from __future__ import annotations

import pytest

from tinymq.broker.work.limits import GroupLimits, GroupShare, active_sessions

A, B, C = b"a", b"b", b"c"


@pytest.mark.parametrize(("most", "places"), [(1, 1), (10, 3), (3, 3), (100, 7), (2, 5)])
def test_shares_of_the_concurrency_are_the_whole_and_none_is_nothing(most: int, places: int) -> None:
    shares = []
    for place in range(places):
        share = GroupShare(0.0)
        share.divide(GroupLimits(concurrency_max=most), place, places)
        assert share.concurrency_max is not None
        shares.append(share.concurrency_max)
    assert sum(shares) == max(most, places)
    assert max(shares) - min(shares) <= 1


def test_leased_records_take_their_part_of_the_concurrency() -> None:
    share = GroupShare(0.0)
    assert share.most(7, 0.0) is None, "without a bound"
    share.divide(GroupLimits(concurrency_max=10), 0, 2)
    assert [share.most(leased, 0.0) for leased in (0, 4, 5, 6)] == [5, 1, 0, 0]


def test_a_rate_is_kept_over_any_time_and_a_pause_saves_up_one_second() -> None:
    share, granted, now_s = GroupShare(0.0), 0, 0.0
    share.divide(GroupLimits(rate_max=10), 0, 4)
    assert share.rate_max == 2.5
    for _ in range(4000):
        now_s += 0.05
        most = share.most(0, now_s)
        assert most is not None
        share.granted(most)
        granted += most
    assert granted == pytest.approx(2.5 * now_s, abs=2.5)
    assert share.most(0, now_s + 3600) == 2


def test_less_than_one_record_per_second_is_still_one_now_and_then() -> None:
    share, granted = GroupShare(0.0), 0
    share.divide(GroupLimits(rate_max=1), 0, 4)
    for tick in range(1, 41):
        most = share.most(0, tick * 0.2)
        assert most is not None
        share.granted(most)
        granted += most
    assert granted == 2, "one in four seconds"


def test_the_workers_that_began_first_have_the_places() -> None:
    assert active_sessions([B, A, C], [A, B, C], (), 2) == {B, A}
    assert active_sessions([B, A, C], [A, C], (), 1) == {A}
    assert active_sessions([B, A, C], [A, B, C], (), None) == {A, B, C}


def test_who_has_records_keeps_its_place_also_without_a_connection() -> None:
    assert active_sessions([A, B], [A, B], {B}, 1) == {B}
    assert active_sessions([A, B], [A], {B}, 1) == {B}, "B may be back in a moment"
