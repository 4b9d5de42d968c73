"""The broker's retention timer visits every partition in each round, a few at a time, and none after the stop."""

from __future__ import annotations

from tests.broker.partition.test_partition import Bench
from tests.fakes.manual_clock import ManualClock
from tests.fakes.raft_group import FakeGroup
from tinymq.base.errors import CorruptData, UnknownTopic
from tinymq.base.topic_config import TopicConfig
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.partition import Partition
from tinymq.broker.replicas.retention_timer import STEP, RetentionTimer
from tinymq.format.entry import Kind


class Seen:
    def __init__(self) -> None:
        self.times = 0

    def retain(self) -> None:
        self.times += 1


def test_each_partition_is_visited_once_per_round() -> None:
    clock = ManualClock()
    seen = [Seen() for _ in range(2 * STEP + 3)]
    retaining = RetentionTimer(clock, lambda: seen, 5.0)
    retaining.start()
    for round_ in range(1, 4):
        clock.advance(5.0)
        assert {s.times for s in seen} == {round_}
    retaining.stop()
    clock.advance(60.0)
    assert {s.times for s in seen} == {3}


def test_a_stop_ends_a_round_in_the_middle() -> None:
    clock = ManualClock()
    seen = [Seen() for _ in range(3 * STEP)]
    retaining = RetentionTimer(clock, lambda: seen, 5.0)
    seen[0].retain = retaining.stop  # type: ignore[method-assign]
    retaining.start()
    clock.advance(60.0)
    assert sum(s.times for s in seen) == STEP - 1


def moves_of(bench: Bench) -> int:
    return sum(e.header.kind == Kind.COMMAND for e in bench.group.log.entries)


def aged() -> Bench:
    """Append ten records that are older than the topic's retention."""
    bench = Bench()
    bench.partition.configure(TopicConfig(retention_ms=1000))
    for _ in range(10):
        bench.send(1)
    bench.group.commit()
    bench.group.later_us = 1_100_000
    return bench


def test_a_trim_is_proposed_once_and_then_segments_are_removed() -> None:
    bench = aged()
    for _ in range(3):
        bench.partition.retain()
        assert moves_of(bench) == 1, "the trim is under way"
        assert bench.group.log.log_start_offset == 0
    bench.group.commit()
    assert bench.partition.log_start == 10
    for _ in range(3):
        bench.partition.retain()
    assert moves_of(bench) == 1, "no expired records are left"
    assert bench.group.log.log_start_offset == 10


def test_a_truncated_trim_is_proposed_again() -> None:
    bench = aged()
    bench.partition.retain()
    bench.group.lose_leadership()
    bench.partition.retain()
    assert moves_of(bench) == 0, "a follower decides nothing"
    bench.group.win()
    bench.partition.retain()
    bench.group.commit()
    assert bench.partition.log_start == 10


def test_a_follower_removes_segments_after_the_leaders_trim() -> None:
    bench = aged()
    bench.partition.retain()
    bench.group.commit()
    bench.group.lose_leadership()
    assert bench.group.log.log_start_offset == 0
    bench.partition.retain()
    assert bench.group.log.log_start_offset == 10


def test_an_unavailable_partition_is_skipped() -> None:
    """The partition is not attached yet, its replica has failed, it transfers its leadership, or it is closed."""
    Partition("t/0", Deadlines(ManualClock()), lambda call: call(), {}.get).retain()
    for spoil in ("fail", "hand over", "close"):
        bench = aged()
        if spoil == "fail":
            bench.group.failure = CorruptData("a flipped bit")
        elif spoil == "hand over":
            bench.group._leads = False
        else:
            bench.partition.close(UnknownTopic("deleted"))
        bench.partition.retain()
        assert moves_of(bench) == 0
    assert isinstance(bench.group, FakeGroup)
