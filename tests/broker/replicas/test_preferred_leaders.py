"""Preferred-leader election: which leaderships return to the preferred broker, when, and which stay."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.fakes.manual_clock import ManualClock
from tinymq.base.types import METADATA_GROUP, GroupId, TopicId
from tinymq.broker.replicas.preferred_leaders import (
    BACKOFF,
    TRY_S,
    Failures,
    Misplaced,
    PreferredLeaders,
    Target,
    decide,
)
from tinymq.raft import LeadershipOrigin, Membership, Replica

ONE, TWO = (GroupId(TopicId(b"t" * 16), n) for n in (0, 1))
RETURN_S = 10.0
HOME = Target(alive_since_s=100.0, registered=True)
AWAY = Misplaced(ONE, preferred=1, origin=LeadershipOrigin.WON, since_s=90.0, ready=True)


# ---- the decision ------------------------------------------------------------------------------------------------


def given_back(away: Misplaced = AWAY, home: Target | None = HOME, now_s: float = 110.0) -> bool:
    return decide([away], {} if home is None else {1: home}, now_s, RETURN_S) is away


@pytest.mark.parametrize("origin", [LeadershipOrigin.WON, LeadershipOrigin.TRANSFERRED, LeadershipOrigin.MANUAL])
def test_a_broker_that_has_been_back_for_a_while_gets_its_leadership(origin: LeadershipOrigin) -> None:
    assert given_back(replace(AWAY, origin=origin))
    assert not given_back(replace(AWAY, origin=origin), now_s=109.9)


def test_a_leadership_stays_for_a_while_before_it_returns() -> None:
    assert not given_back(replace(AWAY, since_s=105.0))
    assert given_back(replace(AWAY, since_s=105.0), now_s=115.0)


@pytest.mark.parametrize(
    ("away", "home"),
    [
        (AWAY, None),
        (AWAY, replace(HOME, registered=False)),
        (AWAY, replace(HOME, backoff_until_s=111.0)),
        (replace(AWAY, ready=False), HOME),
    ],
)
def test_no_leadership_returns_to_a_dead_unregistered_avoided_or_unready_broker(
    away: Misplaced, home: Target | None
) -> None:
    assert not given_back(away, home)


@pytest.mark.parametrize(
    ("origin", "back"),
    [(LeadershipOrigin.WON, True), (LeadershipOrigin.TRANSFERRED, True), (LeadershipOrigin.MANUAL, False)],
)
def test_a_manual_transfer_stays_while_the_preferred_broker_is_up(origin: LeadershipOrigin, back: bool) -> None:
    away = replace(AWAY, origin=origin, since_s=100.5)
    assert given_back(away, now_s=1e6) is back


def test_the_longest_misplaced_leadership_returns_first() -> None:
    later = replace(AWAY, group=TWO, since_s=95.0)
    assert decide([later, AWAY], {1: HOME}, 110.0, RETURN_S) is AWAY
    same = replace(AWAY, group=TWO)
    assert decide([same, AWAY], {1: HOME}, 110.0, RETURN_S) is AWAY
    assert decide([], {1: HOME}, 110.0, RETURN_S) is None


def test_the_backoff_grows_with_failures_up_to_a_bound_and_resets() -> None:
    failures = Failures(0.0)
    for _ in range(10):
        failures = failures.again(failures.until_s + 1.0)
    assert failures.until_s - failures.at_s == BACKOFF.pause_s_max
    later_s = failures.at_s + 3 * BACKOFF.pause_s_max
    assert failures.again(later_s).until_s - later_s == BACKOFF.pause_s_min


# ---- looking, on a clock -----------------------------------------------------------------------------------------


class FakeGroup:
    """A replica as the election sees it: this broker leads it; `to` is set during a transfer."""

    def __init__(self, group_id: GroupId, preferred: int = 1, origin: LeadershipOrigin = LeadershipOrigin.WON) -> None:
        self.id = group_id
        self.membership = Membership(group_id, 1, tuple(Replica(b, bytes(16)) for b in (preferred, 2, 3)))
        self.term = 5
        self.origin: LeadershipOrigin | None = origin
        self.why = ""
        self.is_transferring = False

    @property
    def is_leader(self) -> bool:
        return self.origin is not None

    def transfer_obstacle(self, broker_id: int) -> str:
        return self.why


class FakeHost:
    def __init__(self, *groups: FakeGroup) -> None:
        self.groups = {g.id: g for g in groups}
        self.living = {1, 3}
        self.asked: list[tuple[GroupId, int | None, float | None]] = []

    def alive(self, broker_id: int) -> bool:
        return broker_id in self.living

    def transfer(self, group_id: GroupId, to: int | None = None, *, within_s: float | None = None) -> bool:
        self.asked.append((group_id, to, within_s))
        self.groups[group_id].is_transferring = True
        return True


class Home2:
    """Broker 2, whose peers 1 and 3 are alive and registered."""

    def __init__(self, *groups: FakeGroup) -> None:
        self.clock = ManualClock()
        self.host = FakeHost(*groups)
        self.registered = {1, 3}
        self.homecoming = PreferredLeaders(
            2, self.host, lambda b: b in self.registered, self.clock, random.Random(1), RETURN_S  # type: ignore[arg-type]
        )  # fmt: skip
        for group in groups:
            self.changed(group)

    def changed(self, group: FakeGroup) -> None:
        self.homecoming.group_changed(group)  # type: ignore[arg-type]

    def gone_home(self, group: FakeGroup) -> None:
        group.origin, group.is_transferring = None, False
        self.changed(group)

    def pass_s(self, seconds: float) -> None:
        for _ in range(int(seconds * 100)):
            self.clock.advance(0.01)

    @property
    def asked(self) -> list[GroupId]:
        return [group for group, _, _ in self.host.asked]

    @property
    def resting(self) -> bool:
        return not any(timer.call is not None for _, _, timer in self.clock._timers)


def test_leaderships_return_one_at_a_time_with_a_pause() -> None:
    one, two = FakeGroup(ONE), FakeGroup(TWO)
    here = Home2(one, two)
    here.homecoming.peer_changed(1, True)
    here.pass_s(9.5)
    assert here.asked == []
    here.pass_s(2.0)
    assert here.host.asked == [(ONE, 1, TRY_S)]
    here.pass_s(0.5)
    assert here.asked == [ONE], "the first transfer is under way"
    here.gone_home(one)
    here.pass_s(0.1)
    assert here.asked == [ONE], "a pause"
    here.pass_s(1.0)
    assert here.asked == [ONE, TWO]
    here.gone_home(two)
    here.pass_s(3.0)
    assert here.resting


def test_a_failed_transfer_backs_off_for_all_groups_of_the_target() -> None:
    one, two = FakeGroup(ONE), FakeGroup(TWO)
    here = Home2(one, two)
    here.homecoming.peer_changed(1, True)
    here.pass_s(12.0)
    one.is_transferring = False  # its deadline passed
    here.pass_s(BACKOFF.pause_s_min - 3.0)
    assert here.asked == [ONE]
    here.pass_s(5.0)
    assert here.asked == [ONE, ONE]
    one.is_transferring = False
    here.pass_s(2 * BACKOFF.pause_s_min - 3.0)
    assert here.asked == [ONE, ONE]
    here.homecoming.peer_changed(1, False)
    here.homecoming.peer_changed(1, True)  # a restarted process starts without backoff
    here.pass_s(RETURN_S + 2.0)
    assert here.asked == [ONE, ONE, ONE]


def test_a_leadership_given_away_by_a_live_preferred_broker_stays_for_a_while() -> None:
    """For example, its disk hung."""
    one = FakeGroup(ONE, origin=LeadershipOrigin.TRANSFERRED)
    here = Home2(one)
    here.pass_s(BACKOFF.pause_s_min - 2.0)
    assert here.asked == []
    here.pass_s(4.0)
    assert here.asked == [ONE]
    here.gone_home(one)
    here.pass_s(5.0)
    one.origin, one.term = LeadershipOrigin.TRANSFERRED, 7
    here.changed(one)
    here.pass_s(2 * BACKOFF.pause_s_min - 2.0)
    assert here.asked == [ONE], "longer each time"
    here.pass_s(4.0)
    assert here.asked == [ONE, ONE]


def test_many_groups_given_away_at_once_count_as_one_failure() -> None:
    here = Home2(*(FakeGroup(GroupId(ONE.topic_id, n), origin=LeadershipOrigin.TRANSFERRED) for n in range(20)))
    here.pass_s(BACKOFF.pause_s_min + 2.0)
    assert len(here.asked) == 1


def test_a_manual_transfer_stays_until_the_preferred_broker_restarts() -> None:
    one = FakeGroup(ONE, origin=LeadershipOrigin.MANUAL)
    here = Home2(one)
    here.pass_s(100.0)
    assert here.asked == []
    here.homecoming.peer_changed(1, False)
    here.homecoming.peer_changed(1, True)
    here.pass_s(RETURN_S + 2.0)
    assert here.asked == [ONE]


@pytest.mark.parametrize("what", ["dead", "unregistered", "not ready"])
def test_the_election_waits_for_missing_conditions_and_checks_again(what: str) -> None:
    one = FakeGroup(ONE)
    here = Home2(one)
    here.homecoming.peer_changed(1, True)
    if what == "dead":
        here.host.living.discard(1)
        here.homecoming.peer_changed(1, False)
    elif what == "unregistered":
        here.registered.discard(1)
    else:
        one.why = "it is catching up"
    here.pass_s(50.0)
    assert here.asked == []
    one.why = ""
    here.registered.add(1)
    here.host.living.add(1)
    here.pass_s(RETURN_S + 2.0)
    assert here.asked == [ONE]


def test_the_metadata_group_and_preferred_leaders_are_left_alone() -> None:
    here = Home2(FakeGroup(METADATA_GROUP), FakeGroup(ONE, preferred=2))
    assert here.resting
    here.pass_s(60.0)
    assert here.asked == []


def test_a_closed_group_or_a_stopping_broker_ends_the_election() -> None:
    one, two = FakeGroup(ONE), FakeGroup(TWO)
    here = Home2(one, two)
    here.pass_s(5.0)
    del here.host.groups[ONE]
    here.pass_s(7.0)
    assert here.asked == [TWO]
    here.homecoming.stop()
    assert here.resting
    here.changed(FakeGroup(ONE))
    assert here.resting
