"""Single rules of leases, as short transcripts. The search of leases runs all of them together."""

from __future__ import annotations

import pytest

from tests.broker.groups.test_queue_leases_model import RECORDS, SETTINGS, Replica, World, key_of
from tinymq.base.errors import SessionEnded
from tinymq.broker.groups.lease_expiry import Expiry
from tinymq.broker.groups.lease_values import Grant, SettlementResult, has_settled
from tinymq.broker.groups.queue_leases import QueueLeases
from tinymq.broker.state.queue_group import REJECTED

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
    assert leases.nack(A, 1, grant, 0, world.now_s) is SettlementResult.PROPOSED
    assert leases.ack(A, 1, grant, world.now_s) is SettlementResult.LATER


def test_a_session_whose_end_is_proposed_does_not_attach() -> None:
    world = World(0)
    granted(world, A)
    leases = world.newest.leases
    leases.end_session(A)
    with pytest.raises(SessionEnded):
        leases.attach(A, 2, [], world.now_s)
    commit(world)
    leases.attach(A, 3, [], world.now_s)


def test_nothing_is_granted_to_a_session_that_is_about_to_end_for_its_silence() -> None:
    world = World(0)
    granted(world, A)
    leases = world.newest.leases
    over_s = world.now_s + SETTINGS.session_s
    assert leases.grant(A, 1, RECORDS, 0, over_s) == []
    assert leases.hear(A, 1, over_s), "a leader that was away itself hears of it first"
    assert len(leases.grant(A, 1, RECORDS, 0, over_s)) == 1


def test_a_settlement_of_an_older_connection_is_not_carried_out() -> None:
    world = World(0)
    (grant,) = granted(world, A)
    leases = world.newest.leases
    leases.attach(A, 2, [grant], world.now_s)
    assert leases.ack(A, 1, grant, world.now_s) is SettlementResult.LATER
    assert leases.ack(A, 2, grant, world.now_s) is SettlementResult.PROPOSED


def test_a_record_that_three_dead_sessions_gave_back_is_granted_alone() -> None:
    world = World(0)
    for number in range(3):
        session = b"%d" % number * 16
        assert [grant.started for grant in granted(world, session, 3)] == [False] * 3
        world.newest.leases.end_session(session)
        commit(world)
    alone = granted(world, A, 3)
    assert [(grant.started, grant.delivery) for grant in alone] == [(True, 1)]


def test_a_record_waits_while_an_earlier_one_of_its_key_is_being_buried() -> None:
    world = World(0, keyed=True)  # records 1 and 4 have one key
    leases = world.newest.leases
    assert leases.keys is not None
    leases.keys.learn(0, [key_of(offset) for offset in range(RECORDS)])
    grants = {grant.offset: grant for grant in granted(world, A, 3)}
    world.started.add((1, 1, 1 | REJECTED))
    assert leases.reject(A, 1, grants[1], world.now_s) is SettlementResult.PROPOSED
    commit(world)
    world.log.bury(1)
    world.newest.catch_up()
    leases.expire(world.now_s)
    assert 4 not in [grant.offset for grant in leases.grant(A, RECORDS, RECORDS, 0, world.now_s)]

    world.term = 2
    world.leaders[2] = Replica(world, 2)
    later = world.newest.leases
    assert later.keys is not None
    later.keys.learn(0, [key_of(offset) for offset in range(RECORDS)])
    later.attach(A, 2, list(grants.values()), world.now_s)
    assert 4 not in [grant.offset for grant in later.grant(A, RECORDS, RECORDS, 0, world.now_s)]
    world.log.end_burial()
    world.newest.catch_up()
    later.expire(world.now_s)
    assert 4 in [grant.offset for grant in later.grant(A, RECORDS, RECORDS, 0, world.now_s)]


def test_the_worker_is_told_of_a_lease_that_ran_out_before_it_began_the_record() -> None:
    """Of one that it has begun, the answer to its settlement tells: an ack still counts while nobody has the record."""
    world = World(0)
    waiting, begun = granted(world, A, 2)
    leases = world.newest.leases
    assert leases.extend(A, 1, begun, True, world.now_s) is SettlementResult.DONE
    world.now_s += SETTINGS.lease_s
    leases.hear(A, 1, world.now_s)
    assert leases.expire(world.now_s) == Expiry(asked=[(A, waiting), (A, begun)], charged=[], freed=[])
    world.now_s += SETTINGS.ask_s
    leases.hear(A, 1, world.now_s)
    assert leases.expire(world.now_s) == Expiry(asked=[], charged=[(A, begun)], freed=[(A, waiting)])


def test_an_ack_under_an_older_grant_does_not_end_a_newer_lease() -> None:
    world = World(0)
    (older,) = granted(world, A)
    leases = world.newest.leases
    leases.close(A, 1, True, world.now_s)  # it had not started the record
    leases.attach(B, 1, [], world.now_s)
    commit(world)
    (newer,) = leases.grant(B, 1, RECORDS, 0, world.now_s)
    leases.attach(A, 2, [], world.now_s)
    assert (newer.offset, leases.ack(A, 2, older, world.now_s)) == (older.offset, SettlementResult.LOST)
    assert leases.ack(B, 1, newer, world.now_s) is SettlementResult.PROPOSED


def test_an_ack_is_answered_in_its_own_era_and_by_the_applied_state() -> None:
    world = World(0)
    (grant,) = granted(world, A)
    replica = world.newest
    world.delivered.add((1, grant.offset))
    replica.leases.ack(A, 1, grant, world.now_s)
    assert not has_settled(replica, replica.leases.era, grant), "its proposal may be lost with this leader"
    commit(world)
    assert has_settled(replica, replica.leases.era, grant)
    world.log.seek(RECORDS, 1)  # all records are settled in the new generation, whatever became of the ack
    replica.catch_up()
    replica.leases.begin_era(0)
    assert not has_settled(replica, replica.leases.era, grant)
