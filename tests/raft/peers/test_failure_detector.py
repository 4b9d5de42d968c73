"""The failure detector: verdicts from heartbeats and refusals, repeated announcements, and measured delays."""

from __future__ import annotations

import pytest

from tests.raft.values import GROUP
from tinymq.base.config import Timing
from tinymq.base.types import GroupId
from tinymq.proto import peer_pb2 as pb
from tinymq.raft.peers.failure_detector import NEVER, FailureDetector, Verdict
from tinymq.raft.peers.heartbeats import Heard, Heartbeats

TIMING = Timing(heartbeat_s=0.1, gone_after_s=0.6)


def test_silence_is_reported_once() -> None:
    life = FailureDetector(TIMING)
    assert not life.alive(2)
    assert life.heard(2, session=7, now=10.0) is Verdict.ALIVE
    assert life.heard(2, session=7, now=10.3) is None
    assert life.silent(10.8) == []
    assert life.silent(10.9) == [2]
    assert life.silent(12.0) == []
    assert not life.alive(2)
    assert life.heard(2, session=7, now=15.0) is Verdict.ALIVE


def test_the_length_of_a_silence() -> None:
    life = FailureDetector(TIMING)
    assert life.silence_s(2, 10.0) == NEVER
    life.heard(2, session=7, now=10.0)
    assert life.silence_s(2, 12.5) == 2.5
    assert life.silent(12.5) == [2]
    assert life.silence_s(2, 13.0) == 3.0, "a dead broker stays silent"


def test_another_session_is_another_process() -> None:
    life = FailureDetector(TIMING)
    life.heard(2, session=7, now=10.0)
    assert life.heard(2, session=8, now=10.1) is Verdict.RESTARTED
    assert life.heard(2, session=8, now=10.2) is None
    life.silent(20.0)
    assert life.heard(2, session=9, now=20.1) is Verdict.RESTARTED  # a failure verdict in between makes no difference


def test_a_refused_connection_matters_only_for_a_live_broker() -> None:
    life = FailureDetector(TIMING)
    assert life.refused(2) is None
    life.heard(2, session=7, now=10.0)
    assert life.refused(2) is Verdict.GONE
    assert life.refused(2) is None
    assert not life.heard_by(2)


def test_only_wall_clocks_of_live_brokers_count() -> None:
    life = FailureDetector(TIMING)
    life.heard(2, session=7, now=10.0)
    life.heard(4, session=7, now=10.0)
    for broker_id, clocks_us in ((2, [5, 3]), (3, [9]), (4, [7])):
        life.peer(broker_id).clocks_us.extend(clocks_us)
    assert life.clocks_us([2, 3]) == [5], "the quickest heartbeat of each live broker with a replica"


def test_a_pause_that_caused_a_failure_verdict_causes_no_second_one() -> None:
    life = FailureDetector(TIMING)
    life.heard(2, session=7, now=10.0)
    assert life.silent(10.7) == [2]
    life.heard(2, session=7, now=10.9)
    assert life.silent(11.8) == []
    assert life.silent(10.9 + 0.9 * 1.5) == [2]


def test_the_death_of_a_process_is_no_gap() -> None:
    life = FailureDetector(TIMING)
    life.heard(2, session=7, now=10.0)
    life.heard(2, session=8, now=11.0)
    assert life.silent(11.6) == [2]


def test_doubt_comes_before_the_verdict() -> None:
    life = FailureDetector(TIMING)
    assert not life.hears(2, 10.0)
    life.heard(2, session=7, now=10.0)
    assert life.hears(2, 10.29)
    assert not life.hears(2, 10.31)
    assert life.alive(2)


def test_the_time_of_the_next_verdict() -> None:
    life = FailureDetector(TIMING)
    assert life.next_verdict_at() == NEVER
    life.heard(2, session=7, now=10.0)
    life.heard(3, session=7, now=10.2)
    life.heard(2, session=7, now=10.3)
    assert life.next_verdict_at() == pytest.approx(10.7), "broker 3 has not acknowledged a heartbeat since 10.2"
    assert life.silent(10.8) == [3]
    life.echoed(2, 1, 0.001, 10.4)
    assert life.next_verdict_at() == pytest.approx(10.9)
    life.silent(20.0)
    assert life.next_verdict_at() == NEVER


# ---- our own standstills -----------------------------------------------------------------------------------


def test_our_own_pause_does_not_count_as_a_peers_silence() -> None:
    life = FailureDetector(TIMING)
    life.heard(2, session=7, now=10.0)
    life.stood_still(6.0)
    assert life.silent(16.1) == []
    assert life.deaf(16.1) == []
    life.heard(2, session=7, now=16.15)
    assert life.silent(16.7) == [], "and the pause does not count as a gap between heartbeats"
    assert life.silent(16.75) == [2]


def test_a_silence_is_excused_once() -> None:
    """Otherwise a broker that pauses repeatedly would never notice that a peer is dead."""
    life = FailureDetector(TIMING)
    life.heard(2, session=7, now=10.0)
    life.stood_still(0.3)
    life.stood_still(0.3)
    assert life.silent(10.89) == []
    assert life.silent(10.9) == [2]


# ---- who hears us ------------------------------------------------------------------------------------------


def test_a_broker_that_stops_acknowledging_is_deaf_but_alive() -> None:
    life = FailureDetector(TIMING)
    life.heard(2, session=7, now=10.0)
    assert life.heard_by(2), "until its acknowledgements stop"
    for tenth in range(1, 30):
        now = 10.0 + tenth / 10
        life.heard(2, session=7, now=now)
        life.echoed(2, min(tenth, 10), 0.001, now)  # from 11.0 on it receives nothing from us
        assert life.deaf(now) == ([2] if tenth == 17 else []), tenth
    assert life.alive(2)
    assert not life.heard_by(2)
    life.echoed(2, 31, 0.001, 13.0)
    assert life.heard_by(2)


def test_a_silent_broker_is_not_deaf() -> None:
    life = FailureDetector(TIMING)
    life.heard(2, session=7, now=10.0)
    assert life.silent(11.0) == [2]
    assert life.deaf(20.0) == []
    assert not life.heard_by(2)


def test_elections_take_the_longest_round_trip_to_the_living() -> None:
    life = FailureDetector(TIMING)
    assert life.election_s([2, 3]) == (TIMING.election_min_s, TIMING.election_max_s)
    for peer, round_trip_s in ((2, 0.1), (3, 0.2)):
        life.heard(peer, session=7, now=10.0)
        life.echoed(peer, 1, round_trip_s, 10.0)
    assert life.election_s([2, 3])[0] == pytest.approx(TIMING.election_min_s + 0.6)
    assert life.election_s([2])[0] == pytest.approx(TIMING.election_min_s + 0.3), "broker 3 has no replica of the group"
    life.refused(3)
    assert life.election_s([2, 3])[0] == pytest.approx(TIMING.election_min_s + 0.3)


# ---- heartbeats --------------------------------------------------------------------------------------------


def pair() -> tuple[Heartbeats, Heartbeats]:
    return Heartbeats(FailureDetector(TIMING)), Heartbeats(FailureDetector(TIMING))


def say(a: Heartbeats, b: Heartbeats, session: int = 7) -> tuple[pb.Heartbeat, Heard]:
    """Deliver broker 1's next heartbeat to broker 2."""
    beat = a.next(2, 1_000_000, 10.0).heartbeat
    return beat, b.heard(1, session, beat, 10.0)


def test_a_leadership_given_up_is_named_until_acknowledged() -> None:
    a, b = pair()
    a.stepped_down(2, GROUP, 5)
    for _ in range(3):
        assert say(a, b)[1].stepped_down == [(GROUP, 5)]
    a.heard(2, 9, b.next(1, 0, 10.0).heartbeat, 10.0)
    assert say(a, b)[1].stepped_down == []


def test_an_acknowledgement_of_an_older_term_is_not_enough() -> None:
    a, b = pair()
    a.stepped_down(2, GROUP, 5)
    say(a, b)
    a.stepped_down(2, GROUP, 6)
    a.heard(2, 9, b.next(1, 0, 10.0).heartbeat, 10.0)
    assert say(a, b)[1].stepped_down == [(GROUP, 6)]


def test_a_heartbeat_is_bounded_however_many_groups_stepped_down() -> None:
    a, b = pair()
    for partition in range(5_000):
        a.stepped_down(2, GroupId(GROUP.topic_id, partition), 1)
    told: set[GroupId] = set()
    for _ in range(3):
        beat, heard = say(a, b)
        assert beat.ByteSize() < 1 << 18
        told |= {group for group, _ in heard.stepped_down}
        a.heard(2, 9, b.next(1, 0, 10.0).heartbeat, 10.0)
    assert len(told) == 5_000


def test_heartbeats_carry_the_wall_clock_and_an_echo() -> None:
    a, b = pair()
    beat, _ = say(a, b)
    assert b._liveness.clocks_us([1]) == [1_000_000 - 10_000_000], "its wall clock minus our monotonic clock"
    assert b._liveness.clocks_us([2]) == []
    assert b.next(1, 0, 10.0).heartbeat.echo == beat.sequence == 1


def test_round_trips_are_measured_without_the_time_that_the_peer_took() -> None:
    """Only our own clock counts: the peer's clock starts at another value."""
    a, b = pair()
    b.heard(1, 7, a.next(2, 0, 10.0).heartbeat, 500.02)  # 20 ms on the way there
    a.heard(2, 9, b.next(1, 0, 500.11).heartbeat, 10.14)  # 90 ms at the peer; 30 ms on the way back
    assert a._liveness.peer(2).round_trips.smoothed_s == pytest.approx(0.05, abs=1e-4)


def test_an_echo_of_a_process_before_this_one_proves_nothing() -> None:
    b = Heartbeats(FailureDetector(TIMING))
    old = Heartbeats(FailureDetector(TIMING))
    for _ in range(5):
        b.heard(1, 7, old.next(2, 0, 10.0).heartbeat, 10.0)
    late = b.next(1, 0, 10.0).heartbeat
    a = Heartbeats(FailureDetector(TIMING))  # broker 1 has restarted
    a.next(2, 0, 10.5)
    a.heard(2, 9, late, 10.6)
    life = a._liveness.peer(2)
    assert (life.echo, life.round_trips.measured) == (0, False)
    b.heard(1, 8, a.next(2, 0, 10.7).heartbeat, 10.7)
    a.heard(2, 9, b.next(1, 0, 10.8).heartbeat, 10.8)
    assert (life.echo, life.round_trips.measured) == (2, True)
