"""Bounded partitions: a full partition refuses or drops its oldest records. It never exceeds its bound, and never drops
held records.
"""

from __future__ import annotations

import pytest

from tests.broker.partition.test_partition import Bench
from tests.broker.values import Applied, commits, consumes, deletes, holds, moves, opens, releases, seeks
from tests.fakes.batches import payload
from tinymq.base.errors import BatchTooLarge, NotLeader, QuotaExceeded
from tinymq.base.topic_config import OnFull, Storage, TopicConfig
from tinymq.broker.partition import capacity
from tinymq.broker.partition.capacity import LOG_BYTES_MIN, SLACK, check_commands
from tinymq.broker.partition.partition import Acks, Produced
from tinymq.format.entry import Kind
from tinymq.proto import partition_pb2 as pb

SIZE = len(payload(1))
DROP = OnFull.DROP_OLDEST


class Bounded(Bench):
    """A partition whose whole log, committed or not, is checked after each batch."""

    def bound(self, **config: object) -> None:
        self.partition.configure(TopicConfig(retention_ms=None, **config))  # type: ignore[arg-type]

    def command(self, *commands: pb.Command) -> None:
        self.partition.command(commands, 1.0, lambda outcomes: None)

    @property
    def whole(self) -> Applied:
        """The state once everything is applied."""
        applied = Applied()
        for entry in self.group.log.entries:
            applied.state.apply(entry)
        return applied

    @property
    def start(self) -> int:
        return self.whole.state.log_start

    @property
    def kept(self) -> int:
        return self.whole.state.kept_records

    @property
    def moves(self) -> int:
        return sum(e.header.kind == Kind.COMMAND for e in self.group.log.entries)


@pytest.fixture
def bench() -> Bounded:
    return Bounded()


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("config", [{"max_records": 3}, {"max_bytes": 3 * SIZE}])
def test_a_full_partition_refuses(bench: Bounded, config: dict[str, int], commit: bool) -> None:
    """Is the partition filled with committed or with uncommitted records?"""
    bench.bound(**config)
    for _ in range(3):
        bench.send(1, acks=Acks.LEADER)
    if commit:
        bench.group.commit()
    with pytest.raises(QuotaExceeded) as refused:
        bench.send(1)
    assert int(refused.value.detail["retry_after_ms"]) > 0
    assert len(bench.offsets) == 3
    bench.group.commit()
    bench.command(moves(1))
    bench.group.commit()
    bench.send(1)
    assert bench.kept == 3


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("config", [{"max_records": 3}, {"max_bytes": 3 * SIZE}])
def test_a_full_partition_drops_its_oldest_records(bench: Bounded, config: dict[str, int], commit: bool) -> None:
    bench.bound(on_full=DROP, **config)
    for n in range(10):
        bench.send(1)
        if commit:
            bench.group.commit()
        assert bench.kept == min(n + 1, 3)
        assert bench.whole.state.kept_bytes <= 3 * SIZE
    bench.group.commit()
    assert bench.offsets == list(range(10)), "each batch was accepted"
    assert bench.partition.log_start == 7


def test_a_batch_larger_than_the_bound_is_refused(bench: Bounded) -> None:
    bench.bound(max_records=3, on_full=DROP)
    with pytest.raises(BatchTooLarge) as refused:
        bench.send(4)
    assert refused.value.hint == "send fewer records in one batch, or raise the topic's max_records"
    bench.bound(max_bytes=SIZE - 1)
    with pytest.raises(BatchTooLarge) as refused:
        bench.send(1)
    assert refused.value.hint == "raise the topic's max_bytes"
    assert len(bench.group.log.entries) == 1


def test_held_records_are_not_dropped(bench: Bounded) -> None:
    bench.bound(max_records=3, on_full=DROP)
    bench.send(3)
    bench.group.commit()
    bench.command(holds(1, lease_ms=5))
    bench.group.commit()
    bench.send(1)
    with pytest.raises(QuotaExceeded) as refused:
        bench.send(1)
    assert 0 < int(refused.value.detail["retry_after_ms"]) <= 5
    bench.group.commit()
    assert bench.partition.log_start == 1
    bench.group.later_us = 5000
    bench.send(1)
    assert (bench.start, bench.kept) == (2, 3)


def test_an_uncommitted_hold_counts(bench: Bounded) -> None:
    """Otherwise the following trim would free less than the batch after it needs."""
    bench.bound(max_records=3, on_full=DROP)
    bench.send(3)
    bench.group.commit()
    bench.command(holds(0))
    with pytest.raises(QuotaExceeded):
        bench.send(1)
    bench.command(releases())
    bench.group.commit()
    bench.group.commit()  # the release follows the hold in the queue
    bench.send(1)
    assert bench.kept == 3


def test_an_uncommitted_trim_makes_no_space_for_a_second_batch(bench: Bounded) -> None:
    bench.bound(max_bytes=4 * SIZE, max_records=100, on_full=DROP)
    for _ in range(20):
        bench.send(1)
        assert bench.whole.state.kept_bytes <= 4 * SIZE
    assert bench.moves == 16
    assert bench.start == 16, "no more is dropped than necessary"


def test_a_large_partition_drops_in_steps(bench: Bounded) -> None:
    bound = 4 * SLACK
    bench.bound(max_records=bound, on_full=DROP)
    for _ in range(bound + 100):
        bench.send(1)
    bench.group.commit()
    assert bound - 5 <= bench.partition.state.kept_records <= bound
    assert bench.moves == 20, "in steps of five records"


def test_a_hold_blocks_only_the_necessary_drop(bench: Bounded) -> None:
    bound = 4 * SLACK
    bench.bound(max_records=bound, on_full=DROP)
    for _ in range(bound):
        bench.send(1)
    bench.group.commit()
    bench.command(holds(2))
    bench.group.commit()
    bench.send(1)
    assert bench.start == 2


def test_bounds_are_altered_live(bench: Bounded) -> None:
    for _ in range(10):
        bench.send(1)
    bench.group.commit()
    bench.bound(max_records=4)
    with pytest.raises(QuotaExceeded):
        bench.send(1)
    bench.partition.retain()
    bench.group.commit()
    assert bench.partition.log_start == 0, "a topic that rejects loses nothing"
    bench.bound(max_records=4, on_full=DROP)
    bench.partition.retain()
    bench.group.commit()
    assert bench.partition.log_start == 6, "at once, not with the next batch"
    bench.bound(max_bytes=2 * SIZE, on_full=DROP)
    bench.send(1)
    assert bench.kept == 2


def test_a_duplicate_needs_no_space(bench: Bounded) -> None:
    bench.bound(max_records=2)
    bench.send(2, producer=9, sequence=0)
    bench.group.commit()
    bench.send(2, producer=9, sequence=0)
    assert [answer.duplicate for answer in bench.answers if isinstance(answer, Produced)] == [False, True]


def test_a_new_leader_counts_its_predecessors_uncommitted_records(bench: Bounded) -> None:
    bench.bound(max_records=4)
    bench.send(3)
    bench.group.lose_leadership(keep_tail=True)
    bench.group.win()
    with pytest.raises(QuotaExceeded):
        bench.send(2)
    bench.send(1)
    bench.group.lose_leadership()
    bench.group.win()
    bench.send(1)
    assert bench.kept == 4, "truncated batches take no space"


def test_a_leader_that_transfers_its_leadership_drops_nothing(bench: Bounded) -> None:
    bench.bound(max_records=1, on_full=DROP)
    bench.send(1)
    bench.group._leads = False
    with pytest.raises(NotLeader):
        bench.send(1)


MEMORY = TopicConfig(storage=Storage.MEMORY, max_bytes=1000, retention_ms=None)
FULL = 4 * 1000 + LOG_BYTES_MIN


@pytest.mark.parametrize(
    ("commands", "refused"),
    [
        (opens(), True), (commits(1), True), (seeks(1, 1), True), (consumes(1), True), (holds(1), True),
        (moves(1), False), (deletes(), False), (releases(), False),
    ],
)  # fmt: skip
def test_a_full_log_in_memory_accepts_only_commands_that_free_space(commands: pb.Command, refused: bool) -> None:
    check_commands(MEMORY, FULL, [commands])
    check_commands(TopicConfig(max_bytes=1000), FULL + 1, [commands])
    if not refused:
        check_commands(MEMORY, FULL + 1, [commands])
        return
    for call in ([commands], [releases(), commands]):
        with pytest.raises(QuotaExceeded) as raised:
            check_commands(MEMORY, FULL + 1, call)
        assert int(raised.value.detail["retry_after_ms"]) > 0


def test_a_partition_in_memory_counts_the_size_of_its_log(bench: Bounded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "LOG_BYTES_MIN", 0)
    bench.bound(storage=Storage.MEMORY, max_bytes=SIZE)
    bench.send(1)
    bench.group.commit()
    for number in range(1000):
        if bench.group.log.size_bytes > 4 * SIZE:
            break
        bench.command(opens(f"c{number}"))
        bench.group.commit()
    written = len(bench.group.log.entries)
    with pytest.raises(QuotaExceeded):
        bench.command(opens("another"))
    generation = bench.partition.state.cursors["c0"].generation
    bench.command(commits(0, "c0", generation=generation))  # does not move the start: answered without an entry
    assert len(bench.group.log.entries) == written > 2
    bench.command(moves(1))
    bench.group.commit()
    assert bench.partition.log_start == 1
