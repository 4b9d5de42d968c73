"""Holds: the errors that refuse them, their expiry, and their maximum number."""

from __future__ import annotations

import pytest

from tests.broker.values import Applied, holds, moves, releases, request
from tinymq.base.errors import Held, InvalidRequest, OffsetOutOfRange, QuotaExceeded, TinymqError
from tinymq.broker.state.holds import HOLDS_MAX, LEASE_MS_MAX
from tinymq.proto import partition_pb2 as pb

RETENTION, CAPACITY, TRIM = pb.MoveStart.RETENTION, pb.MoveStart.CAPACITY, pb.MoveStart.TRIM


@pytest.fixture
def at() -> Applied:
    """Ten records from 2 on."""
    applied = Applied()
    applied.batch(12)
    applied.run(moves(2))
    return applied


def error(at: Applied, command: pb.Command) -> TinymqError:
    (outcome,) = at.run(command)
    assert outcome.error is not None
    return outcome.error


def test_a_hold_names_its_deadline(at: Applied) -> None:
    (outcome,) = at.run(holds(5, lease_ms=700))
    assert (outcome.error, outcome.until_us, outcome.log_start) == (None, at.now_us + 700_000, 2)
    (outcome,) = at.run(holds(5, lease_ms=300), later_us=200_000)
    assert outcome.until_us == at.now_us + 300_000
    assert len(at.state.holds) == 1, "renewed"


@pytest.mark.parametrize("reason", [RETENTION, CAPACITY])
def test_held_records_stay_until_the_lease_ends(at: Applied, reason: pb.MoveStart.Reason.ValueType) -> None:
    at.run(holds(5, 1, lease_ms=1), holds(7, 2, lease_ms=2))
    assert at.run(moves(9, reason), later_us=999)[0].log_start == 5
    assert at.run(moves(9, reason))[0].log_start == 7, "it ends exactly at its deadline"
    assert len(at.state.holds) == 1
    assert at.run(moves(9, reason), later_us=1000)[0].log_start == 9


def test_a_trim_of_held_records_is_refused(at: Applied) -> None:
    at.run(holds(5))
    refused = error(at, moves(6))
    assert isinstance(refused, Held)
    assert refused.detail["offset"] == "5"
    assert 900 < int(refused.detail["retry_after_ms"]) <= 1000
    assert at.run(moves(5))[0].log_start == 5
    at.run(releases())
    assert at.run(moves(6))[0].log_start == 6


def test_releasing_an_unknown_hold_succeeds(at: Applied) -> None:
    assert at.run(releases(9))[0].error is None


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        (holds(1), OffsetOutOfRange),
        (holds(13), OffsetOutOfRange),
        (holds(5, lease_ms=0), InvalidRequest),
        (holds(5, lease_ms=LEASE_MS_MAX + 1), InvalidRequest),
        (pb.Command(hold=pb.Hold(hold_id=b"x", offset=5, lease_ms=1)), InvalidRequest),
    ],
)
def test_refused(at: Applied, command: pb.Command, wrong: type[TinymqError]) -> None:
    assert type(error(at, command)) is wrong
    assert len(at.state.holds) == 0


@pytest.mark.parametrize("offset", [2, 12])
def test_both_ends_can_be_held(at: Applied, offset: int) -> None:
    assert at.run(holds(offset))[0].error is None


def test_the_number_of_live_holds_is_bounded(at: Applied) -> None:
    outcomes = at.run(*[holds(5, n, lease_ms=10 + n) for n in range(HOLDS_MAX)])
    assert not any(outcome.error for outcome in outcomes)
    refused = error(at, holds(5, 99))
    assert isinstance(refused, QuotaExceeded)
    assert refused.detail["retry_after_ms"] == "10"
    assert at.run(holds(5, 3))[0].error is None, "a renewal"
    assert at.run(holds(5, 99), later_us=10_000)[0].error is None
    assert len(at.state.holds) == HOLDS_MAX


def test_a_deadline_out_of_range_becomes_the_latest_time(at: Applied) -> None:
    at.now_us = (1 << 63) - 3
    (outcome,) = at.run(holds(5))
    assert outcome.until_us == (1 << 63) - 1
    at.state.load(at.state.dump())
    assert request(1) in at.state.holds._holds


def test_a_lease_given_without_cluster_time_survives_the_jump(at: Applied) -> None:
    at.run(holds(3, 1, lease_ms=1))
    at.noop(known=False, later_us=2_000)
    at.run(holds(5, 2, lease_ms=10))
    at.noop(jump_us=1_000_000, later_us=1_000_000)
    assert [hold.until_us - at.now_us for _, hold in at.state.holds.live(at.now_us)] == [10_000]
    assert at.run(moves(9, RETENTION), later_us=9_999)[0].log_start == 5
    assert at.run(moves(9, RETENTION))[0].log_start == 9


def test_a_jump_of_a_correct_clock_extends_no_lease(at: Applied) -> None:
    """A leader starts some time after its predecessor ended: leases ran in between."""
    at.run(holds(5, lease_ms=10))
    at.noop(jump_us=1_000_000, later_us=1_000_000)
    assert at.state.holds.live(at.now_us) == []
