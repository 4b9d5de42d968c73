"""Which records have expired, and the effect of moving the log start."""

from __future__ import annotations

import pytest

from tests.broker.values import Applied, holds, moves
from tests.fakes.raft_group import NOW_US
from tinymq.base.errors import InvalidRequest
from tinymq.base.topic_config import TopicConfig
from tinymq.broker.state.retention import due_start
from tinymq.broker.state.state import PartitionState
from tinymq.proto import partition_pb2 as pb

SECOND_US = 1_000_000


@pytest.fixture
def at() -> Applied:
    """A record of 100 bytes each second, ten of them, from one second after NOW_US on."""
    applied = Applied()
    for _ in range(10):
        applied.batch(1, size=100, later_us=SECOND_US)
    return applied


def due(config: TopicConfig, state: PartitionState, now_us: int) -> int:
    return due_start(config, state, now_us, now_us)


@pytest.mark.parametrize(("seconds", "start"), [(0, 0), (5, 0), (6, 0), (7, 1), (11, 5), (15, 9), (16, 10), (99, 10)])
def test_by_age(at: Applied, seconds: int, start: int) -> None:
    """A record exactly as old as `retention_ms` stays; just after six seconds, the first record is older than five."""
    config = TopicConfig(retention_ms=5000)
    assert due(config, at.state, NOW_US + seconds * SECOND_US) == start
    if seconds:
        oldest_kept_us = NOW_US + (start + 1) * SECOND_US
        assert start == 10 or oldest_kept_us >= NOW_US + (seconds - 5) * SECOND_US


@pytest.mark.parametrize(("keep", "start"), [(1, 9), (100, 9), (101, 8), (200, 8), (950, 0), (1000, 0), (5000, 0)])
def test_retention_by_bytes_keeps_at_least_the_limit(at: Applied, keep: int, start: int) -> None:
    config = TopicConfig(retention_ms=None, retention_bytes=keep)
    assert due(config, at.state, NOW_US) == start


def test_by_both(at: Applied) -> None:
    now_us = NOW_US + 8 * SECOND_US + 1
    assert due(TopicConfig(retention_ms=5000, retention_bytes=100), at.state, now_us) == 9
    assert due(TopicConfig(retention_ms=5000, retention_bytes=900), at.state, now_us) == 3
    assert due(TopicConfig(retention_ms=None), at.state, now_us + 10**15) == 0


def test_held_records_do_not_expire_and_the_start_never_moves_back(at: Applied) -> None:
    config = TopicConfig(retention_ms=1000)
    at.run(holds(4, lease_ms=10_000))
    assert due(config, at.state, at.now_us + 9 * SECOND_US) == 4
    assert due(config, at.state, at.now_us + 10 * SECOND_US) == 10
    at.run(moves(3), moves(4))
    assert due(TopicConfig(), at.state, at.now_us) == 4
    assert due(config, at.state, 0) == 4, "a clock that went back removes nothing"


def test_without_cluster_time_nothing_expires_by_age(at: Applied) -> None:
    assert due_start(TopicConfig(retention_ms=1000), at.state, at.now_us + 10**15, None) == 0
    assert due_start(TopicConfig(retention_ms=1000, retention_bytes=100), at.state, at.now_us + 10**15, None) == 9


def test_records_appended_without_cluster_time_age_from_its_arrival(at: Applied) -> None:
    config = TopicConfig(retention_ms=5000)
    at.noop(known=False)
    at.batch(4, size=100, later_us=SECOND_US)
    at.noop(known=False)
    at.batch(2, size=100, later_us=SECOND_US)
    assert due(config, at.state, at.now_us + 10**15) == 10, "its time may be the present"
    loaded = PartitionState()
    loaded.load(at.state.dump())
    at.state = loaded
    at.noop(jump_us=100 * SECOND_US, later_us=100 * SECOND_US)
    at.batch(1, size=100, later_us=SECOND_US)
    assert due(config, at.state, at.now_us + 4 * SECOND_US) == 10
    assert due(config, at.state, at.now_us + 4 * SECOND_US + 1) == 16
    assert due(config, at.state, at.now_us + 5 * SECOND_US + 1) == 17


def test_a_leader_that_learns_the_time_at_once_changes_no_age(at: Applied) -> None:
    """As after each restart of a broker with the only replica."""
    config = TopicConfig(retention_ms=5000)
    last_us = at.now_us
    at.noop(known=False)
    at.noop(jump_us=SECOND_US, later_us=SECOND_US)
    assert due(config, at.state, last_us + 5 * SECOND_US) == 9
    assert due(config, at.state, last_us + 5 * SECOND_US + 1) == 10


@pytest.mark.parametrize("reason", [pb.MoveStart.RETENTION, pb.MoveStart.CAPACITY, pb.MoveStart.TRIM])
def test_a_trim_moves_forward_and_not_beyond_the_end(at: Applied, reason: pb.MoveStart.Reason.ValueType) -> None:
    starts = [at.run(moves(to, reason))[0].log_start for to in (4, 3, 4, 0, 7, (1 << 64) - 1, 1)]
    assert starts == [4, 4, 4, 4, 7, 10, 10]
    assert (at.state.kept_records, at.state.kept_bytes) == (0, 0)


def test_an_unknown_reason_moves_nothing(at: Applied) -> None:
    (outcome,) = at.run(pb.Command(move_start=pb.MoveStart(offset=4, reason=9)))  # type: ignore[arg-type]
    assert isinstance(outcome.error, InvalidRequest)
    assert at.state.log_start == 0


def test_kept_records_are_counted_exactly_and_bytes_by_batches() -> None:
    at = Applied()
    for _ in range(3):
        at.batch(10, size=1000)
    at.run(moves(5))
    assert (at.state.kept_records, at.state.kept_bytes) == (25, 3000), "the batch with the start is kept whole"
    at.run(moves(10))
    assert (at.state.kept_records, at.state.kept_bytes) == (20, 2000)


def test_commands_count_to_no_size(at: Applied) -> None:
    before = (at.state.kept_records, at.state.kept_bytes, at.state.record_bytes, at.state.retention_index.marks)
    at.run(holds(4), moves(0))
    assert (at.state.kept_records, at.state.kept_bytes, at.state.record_bytes, at.state.retention_index.marks) == before
