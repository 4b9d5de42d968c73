"""Single rules of leases, as short transcripts. The search of leases runs all of them together."""

from __future__ import annotations

import pytest

from tests.broker.groups.test_queue_leases_model import RECORDS, Replica, World
from tinymq.base.errors import SessionEnded
from tinymq.broker.groups.lease_values import Grant, Verdict
from tinymq.broker.groups.queue_leases import QueueLeases

A, B = b"a" * 16, b"b" * 16


def commit(world: World) -> None:
    """Commit everything that is proposed."""
    while True:
        world.commit()
        if not world.newest.under_way:
            return


def granted(world: World, session: bytes, most: int = 1) -> list[Grant]:
    """What a worker on connection 1 gets."""
    leases = world.newest.leases
    leases.attach(session, 1, [], world.now_s)
    commit(world)
    leases.grant(session, most, RECORDS, 0, world.now_s)  # proposes the mark
    commit(world)
    return leases.grant(session, most, RECORDS, 0, world.now_s)


def test_a_session_that_is_not_known_begins_with_nothing() -> None:
    world = World(0)
    (grant,) = granted(world, A)
    world.term = 2
    world.leaders[2] = Replica(world, 2)
    assert world.newest.leases.attach(B, 2, [grant], world.now_s) == [grant.offset]
    assert world.newest.leases.attach(A, 3, [grant], world.now_s) == []


def test_a_settlement_waits_for_the_one_that_is_under_way() -> None:
    world = World(0)
    (grant,) = granted(world, A)
    leases: QueueLeases = world.newest.leases
    assert leases.nack(A, 1, grant, 0, world.now_s) is Verdict.PROPOSED
    assert leases.ack(A, 1, grant, world.now_s) is Verdict.LATER


def test_a_session_whose_end_is_proposed_does_not_attach() -> None:
    world = World(0)
    granted(world, A)
    leases = world.newest.leases
    leases.end_session(A)
    with pytest.raises(SessionEnded):
        leases.attach(A, 2, [], world.now_s)
    commit(world)
    leases.attach(A, 3, [], world.now_s)


def test_a_settlement_of_an_older_connection_is_not_carried_out() -> None:
    world = World(0)
    (grant,) = granted(world, A)
    leases = world.newest.leases
    leases.attach(A, 2, [grant], world.now_s)
    assert leases.ack(A, 1, grant, world.now_s) is Verdict.LATER
    assert leases.ack(A, 2, grant, world.now_s) is Verdict.PROPOSED


def test_a_record_that_three_dead_sessions_gave_back_is_granted_alone() -> None:
    world = World(0)
    for number in range(3):
        session = b"%d" % number * 16
        assert [grant.started for grant in granted(world, session, 3)] == [False] * 3
        world.newest.leases.end_session(session)
        commit(world)
    alone = granted(world, A, 3)
    assert [(grant.started, grant.delivery) for grant in alone] == [(True, 1)]
