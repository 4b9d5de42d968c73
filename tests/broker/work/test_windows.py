"""Why a queue group grants nothing more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tinymq.broker.groups.lease_values import Era, Grant, Lease, QueueSettings
from tinymq.broker.groups.queue_leases import QueueLeases
from tinymq.broker.state.queue_group import STATE_BYTES_MAX, Burial, Failure, QueueGroup
from tinymq.broker.work.windows import SHARE_BYTES_MIN, Blocked, Obstacle, full_window, has_room

SETTINGS = QueueSettings(leased_max=4, waiting_max=3, keyed=True)


class Applied:
    """A group that has settled nothing."""

    position = 0

    def __init__(self) -> None:
        self.group = QueueGroup(generation=1)


@pytest.fixture
def applied() -> Applied:
    return Applied()


def leases_of(applied: Applied, settings: QueueSettings) -> QueueLeases:
    return QueueLeases(1, applied, 0, settings, 0.0)


def blocked(leases: QueueLeases, applied: Applied, settings: QueueSettings, *, room: bool = True) -> Blocked | None:
    return full_window(leases, applied.group, settings, has_room=room)


def test_nothing_hinders_an_empty_group(applied: Applied) -> None:
    assert blocked(leases_of(applied, SETTINGS), applied, SETTINGS) is None


def test_the_window_of_leases(applied: Applied) -> None:
    leases = leases_of(applied, SETTINGS)
    for offset in range(4):
        assert blocked(leases, applied, SETTINGS) is None
        leases.leases[offset] = Lease(b"a", Grant(offset, 1, offset, 1, Era(0, 1), False), 0.0, 30.0, False)
    assert blocked(leases, applied, SETTINGS) == (Obstacle.WINDOW_FULL, "4 records are leased: leased_max", None)


def test_the_window_of_records_that_wait(applied: Applied) -> None:
    leases = leases_of(applied, SETTINGS)
    for offset in range(3):
        assert blocked(leases, applied, SETTINGS) is None
        applied.group.failures[offset] = Failure(1, 0, 0)
    found = blocked(leases, applied, SETTINGS)
    assert found is not None
    assert (found.by, found.reason.rpartition(": ")[2]) == (Obstacle.WINDOW_FULL, "waiting_max")


def test_the_key_that_holds_back_most_is_named_by_its_first_record(applied: Applied) -> None:
    leases = leases_of(applied, SETTINGS)
    assert leases.keys is not None
    leases.keys.learn(0, [7, 8, 8, 7, 8])
    for offset in range(4):
        leases.keys.enter(offset, True)
    found = blocked(leases, applied, SETTINGS)
    assert found is not None
    assert (found.by, found.offset) == (Obstacle.KEY_BLOCKED, 0)
    leases.keys.enter(4, True)
    found = blocked(leases, applied, SETTINGS)
    assert found is not None
    assert (found.offset, found.reason) == (1, "3 records wait for earlier ones of their keys, 2 of one key")


def test_a_keyed_group_may_lease_one_record_at_a_time(applied: Applied) -> None:
    """Half of a window of one is not nothing."""
    settings = replace(SETTINGS, leased_max=1)
    leases = leases_of(applied, settings)
    assert blocked(leases, applied, settings) is None
    leases.attach(b"a" * 16, 1, [], 0.0)
    applied.group.open_session(b"a" * 16)
    applied.group.granted_below = 10
    assert leases.keys is not None
    leases.keys.learn(0, [7])
    assert [grant.offset for grant in leases.grant(b"a" * 16, 1, 1, 0, 0.0)] == [0]


def test_the_share_of_the_state(applied: Applied) -> None:
    leases = leases_of(applied, SETTINGS)
    found = blocked(leases, applied, SETTINGS, room=False)
    assert found is not None
    assert found.by is Obstacle.WINDOW_FULL
    group = applied.group
    group.burials[0] = Burial(b"i" * 16, 1, b"t" * 16, 0, 0, b"x" * (SHARE_BYTES_MIN - 100))
    assert has_room(group, 1)
    assert has_room(group, STATE_BYTES_MAX // SHARE_BYTES_MIN - 1)
    assert not has_room(group, STATE_BYTES_MAX // SHARE_BYTES_MIN), "each has the least share"
    assert not has_room(group, 10_000)
