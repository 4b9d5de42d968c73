"""Who is alive, from heartbeats and refusals; heartbeats repeat what was not acknowledged."""

from __future__ import annotations

from tests.raft.values import GROUP
from tinymq.proto import peer_pb2 as pb
from tinymq.raft.heartbeats import Heard, Heartbeats
from tinymq.raft.liveness import Liveness, Verdict
from tinymq.types import GroupId


def test_silence_is_reported_once() -> None:
    life = Liveness(0.8)
    assert not life.alive(2)
    assert life.heard(2, session=7, now=10.0) is Verdict.ALIVE
    assert life.heard(2, session=7, now=10.5) is None
    assert life.silent(11.0) == []
    assert life.silent(11.4) == [2]
    assert life.silent(12.0) == []
    assert not life.alive(2)
    assert life.heard(2, session=7, now=12.0) is Verdict.ALIVE


def test_another_session_is_another_process() -> None:
    life = Liveness(0.8)
    life.heard(2, session=7, now=10.0)
    assert life.heard(2, session=8, now=10.1) is Verdict.RESTARTED
    assert life.heard(2, session=8, now=10.2) is None
    life.silent(20.0)
    assert life.heard(2, session=9, now=20.1) is Verdict.RESTARTED  # gone between makes no difference


def test_a_refused_connection_is_news_only_of_who_was_alive() -> None:
    life = Liveness(0.8)
    assert life.refused(2) is None
    life.heard(2, session=7, now=10.0)
    assert life.refused(2) is Verdict.GONE
    assert life.refused(2) is None


def test_wall_clocks_of_the_living_alone() -> None:
    life = Liveness(0.8)
    life.heard(2, session=7, now=10.0)
    life.peer(2).wall_offset_us = 5
    life.peer(3).wall_offset_us = 9
    assert life.wall_offsets_us() == [5]


def pair() -> tuple[Heartbeats, Heartbeats]:
    return Heartbeats(Liveness(0.8)), Heartbeats(Liveness(0.8))


def say(a: Heartbeats, b: Heartbeats, session: int = 7) -> tuple[pb.Heartbeat, Heard]:
    """Broker 1's next heartbeat, as broker 2 hears it."""
    beat = a.next(2, 1_000_000, 10.0).heartbeat
    return beat, b.heard(1, session, beat, 1_000_500, 10.0)


def test_a_leadership_given_up_is_named_until_acknowledged() -> None:
    a, b = pair()
    a.stepped_down(2, GROUP, 5)
    for _ in range(3):
        assert say(a, b)[1].stepped_down == [(GROUP, 5)]
    a.heard(2, 9, b.next(1, 0, 10.0).heartbeat, 0, 10.0)
    assert say(a, b)[1].stepped_down == []


def test_an_acknowledgement_of_an_older_term_is_not_enough() -> None:
    a, b = pair()
    a.stepped_down(2, GROUP, 5)
    say(a, b)
    a.stepped_down(2, GROUP, 6)
    a.heard(2, 9, b.next(1, 0, 10.0).heartbeat, 0, 10.0)
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
        a.heard(2, 9, b.next(1, 0, 10.0).heartbeat, 0, 10.0)
    assert len(told) == 5_000


def test_heartbeats_tell_of_the_wall_clock_and_echo() -> None:
    a, b = pair()
    beat, _ = say(a, b)
    assert b._liveness.peer(1).wall_offset_us == -500
    assert b.next(1, 0, 10.0).heartbeat.echo == beat.sequence == 1
