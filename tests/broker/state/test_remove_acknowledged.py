"""`retention=acknowledged`: the log start follows the lowest cursor, and no record goes that a channel has not read."""

from __future__ import annotations

import pytest

from tests.broker.partition.test_capacity import Bounded
from tests.broker.values import Applied, acknowledged, commits, deletes, holds, moves, opens, releases, seeks
from tinymq.base.errors import InvalidConfig, QuotaExceeded
from tinymq.base.topic_config import OnFull, Retention, TopicConfig, promise
from tinymq.format.entry import Kind
from tinymq.proto import partition_pb2 as pb

READ = Retention.ACKNOWLEDGED


@pytest.fixture
def at() -> Applied:
    applied = Applied()
    applied.batch(10)
    return applied


@pytest.fixture
def bench() -> Bounded:
    bench = Bounded()
    bench.bound(retention=READ, max_records=4)
    return bench


def start(at: Applied, upto: int = 1 << 40) -> int:
    (outcome,) = at.run(acknowledged(upto))
    assert outcome.error is None
    return outcome.log_start


def test_a_record_is_removed_when_every_channel_has_read_it(at: Applied) -> None:
    assert start(at) == 0, "without a channel nobody has read anything"
    at.run(opens("a"), opens("b"), commits(7, "a"))
    assert start(at) == 0
    at.run(commits(4, "b", generation=2))
    assert start(at) == 4
    at.run(deletes("b"))
    assert start(at, upto=5) == 5
    assert start(at) == 7
    at.run(deletes("a"))
    assert start(at) == 7


def test_a_channel_that_seeks_back_before_the_command_keeps_its_records(at: Applied) -> None:
    at.run(opens("a"), commits(8, "a"))
    at.run(seeks(3, channel="a"), acknowledged(8))
    assert at.state.log_start == 3
    at.run(commits(8, "a", generation=2), opens("new", start=4), acknowledged(8))
    assert at.state.log_start == 4


def test_held_records_stay(at: Applied) -> None:
    at.run(opens("a"), commits(8, "a"), holds(5))
    assert start(at) == 5
    at.run(releases())
    assert start(at) == 8


def test_a_cursor_below_the_start_holds_nothing_back(at: Applied) -> None:
    at.run(opens("a"), moves(6))
    assert start(at) == 6
    at.run(commits(7, "a"))
    assert start(at) == 7


def test_reading_makes_room(bench: Bounded) -> None:
    for _ in range(4):
        bench.send(1)
    bench.command(opens())
    bench.group.commit()
    with pytest.raises(QuotaExceeded) as refused:
        bench.send(1)
    assert refused.value.hint == "read it, or raise the topic's bounds"
    bench.command(commits(2))
    bench.group.commit()
    with pytest.raises(QuotaExceeded) as refused:
        bench.send(1)
    assert int(refused.value.detail["retry_after_ms"]) < 100, "the move of the start is on its way"
    bench.group.commit()
    bench.send(2)
    assert (bench.partition.log_start, bench.kept) == (2, 4)


def test_time_and_bytes_remove_nothing(bench: Bounded) -> None:
    bench.partition.configure(TopicConfig(retention=READ, retention_ms=1000, retention_bytes=1))
    for _ in range(4):
        bench.send(1)
    bench.command(opens())
    bench.group.commit()
    bench.group.later_us = 10**9
    bench.partition.retain()
    bench.group.commit()
    assert bench.partition.log_start == 0
    bench.command(commits(3))
    bench.group.commit()
    bench.partition.retain()
    bench.partition.retain()
    assert sum(e.header.kind == Kind.COMMAND for e in bench.group.log.entries) == 3, "one move at a time"
    bench.group.commit()
    assert bench.partition.log_start == 3
    assert bench.group.log.entries[-1].header.version == 2, "an older build stops instead of skipping it"


def test_a_soft_hold_keeps_read_records(bench: Bounded) -> None:
    bench.send(4)
    bench.command(opens(), commits(3))
    bench.group.commit()
    bench.partition.grant_soft_lease(pb.Hold(hold_id=b"h" * 16, offset=1, lease_ms=1000))
    bench.partition.retain()
    bench.group.commit()
    assert bench.partition.log_start == 1


def test_dropping_the_oldest_contradicts_it() -> None:
    with pytest.raises(InvalidConfig, match="drop_oldest"):
        TopicConfig(retention=READ, on_full=OnFull.DROP_OLDEST, max_records=1)


def test_the_soft_lease_covers_read_records() -> None:
    said = promise(TopicConfig(retention=READ))
    assert "once every channel of its partition has read it" in said
    assert "days" not in said
