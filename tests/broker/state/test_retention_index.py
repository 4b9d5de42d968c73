"""The retention index against a list of every batch: its marks are true, close enough, bounded, and the same after a
load.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from itertools import pairwise

import pytest

from tinymq.broker.state import retention_index
from tinymq.broker.state.retention_index import MARKS_MAX, RUNS, RetentionIndex
from tinymq.proto import partition_pb2 as pb


class Batches:
    """All batches so far, and their retention marks."""

    def __init__(self, marks: RetentionIndex | None = None) -> None:
        self.marks = marks or RetentionIndex()
        self.ends: list[tuple[int, int, int]] = []  # (offset after it, bytes up to there, append time)
        self.start = 0

    @property
    def end(self) -> tuple[int, int, int]:
        return self.ends[-1] if self.ends else (0, 0, 0)

    def add(self, count: int, size: int, append_us: int) -> None:
        offset, below, _ = self.end
        self.marks.note(offset, below, size, append_us)
        self.ends.append((offset + count, below + size, append_us))

    def move(self, offset: int) -> None:
        self.start = offset
        self.marks.start_at(offset, self.end[0], self.end[1])

    def reload(self) -> None:
        state = pb.State(log_start=self.start)
        self.marks.dump(state)
        self.marks = RetentionIndex.load(pb.State.FromString(state.SerializeToString()), self.end[0], self.end[1])

    def check(self) -> None:
        """Check that each mark is true."""
        known = {(offset, below): time_us for offset, below, time_us in self.ends}
        assert len(self.marks.marks) <= MARKS_MAX
        for mark in self.marks.marks[1:]:
            assert known[mark.offset, mark.bytes] == mark.append_us
            assert mark.offset > self.start
        if self.marks.marks:
            first = self.marks.marks[0]
            assert first.offset <= self.start
            assert (first.offset, first.bytes) in known or (first.offset, first.bytes) == (0, 0)

    def older_than(self, cutoff_us: int) -> int:
        """Exactly."""
        return next((end for end, _, time_us in reversed(self.ends) if time_us < cutoff_us), 0)


@pytest.mark.parametrize("seed", range(12))
def test_against_every_batch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw bursts, pauses and sizes of all kinds."""
    if seed % 2:
        monkeypatch.setattr(retention_index, "MARKS_MAX", 40)
        monkeypatch.setattr(retention_index, "RUNS", 10)
    rng = random.Random(seed)
    all_batches, other = Batches(), Batches()
    now_us = 1_700_000_000_000_000
    for n in range(3000):
        now_us += rng.choice([0, 1, 1000, rng.randrange(10_000_000) if n % 100 == 0 else 5])
        batch = (rng.randrange(1, 5), rng.choice([100, 100, 100, 5000]), now_us)
        all_batches.add(*batch)
        other.add(*batch)
        if n % 37 == 0:
            other.reload()
        if rng.random() < 0.005:
            to = rng.randrange(all_batches.start, all_batches.end[0] + 1)
            all_batches.move(to)
            other.move(to)
        if n % 50 == 0:
            all_batches.check()
            cutoff_us = rng.randrange(all_batches.ends[0][2], now_us + 2)
            assert all_batches.marks.older_than(cutoff_us, all_batches.end[0]) <= all_batches.older_than(cutoff_us)
            assert all_batches.marks.below(all_batches.start) == all_batches.marks.start_bytes
    assert other.marks.marks == all_batches.marks.marks
    assert all_batches.marks.older_than(now_us + 1, all_batches.end[0]) == all_batches.end[0], "all of it"


def test_runs_are_short() -> None:
    """The distance in bytes and in time, relative to the kept part."""
    batches = Batches()
    for n in range(20_000):
        batches.add(1, 100, 1_000_000 + 10 * n)
    runs = list(pairwise(batches.marks.marks))
    assert len(runs) > RUNS
    for one, two in runs:
        assert two.bytes - one.bytes <= 100 * 20_000 / RUNS
        assert two.append_us - one.append_us <= 10 * 20_000 / RUNS
    cutoff_us = 1_000_000 + 10 * 15_000
    exact = bisect_left(batches.ends, cutoff_us, key=lambda end: end[2])
    assert 0 <= exact - batches.marks.older_than(cutoff_us, 20_000) <= 20_000 / RUNS


def test_ten_million_batches_need_no_more_memory() -> None:
    marks = RetentionIndex()
    at = 0
    for step in (1, 100, 10_000, 1_000_000):
        for _ in range(3000):
            marks.note(at, at * 10, 10 * step, at)
            at += step
    assert len(marks.marks) <= MARKS_MAX
    assert at > 3_000_000_000


def test_records_before_a_pause_can_expire_first() -> None:
    batches = Batches()
    for n in range(5000):
        batches.add(1, 100, 1_000_000 + n)
    batches.add(1, 100, 90_000_000)
    assert batches.marks.older_than(1_005_000, 5001) == 5000
    assert batches.marks.older_than(90_000_000, 5001) == 5000
    assert batches.marks.older_than(90_000_001, 5001) == 5001


def test_by_bytes() -> None:
    batches = Batches()
    for n in range(10):
        batches.add(2, 100, n)
    marks = batches.marks
    assert [marks.with_at_most(below) for below in (-1, 0, 99, 100, 250, 899, 900)] == [0, 0, 0, 2, 4, 16, 18]
    found = [marks.with_at_least(below) for below in (0, 1, 100, 101, 900, 901)]
    assert [mark and mark.offset for mark in found] == [0, 2, 2, 4, 18, None]
    assert [marks.below(offset) for offset in (0, 1, 2, 3, 17, 18, 19)] == [0, 0, 100, 100, 800, 900, 900]


def test_a_record_was_appended_by_the_time_that_the_index_says() -> None:
    """Never earlier than it was appended, and later by less than one run."""
    rng = random.Random(3)
    batches = Batches()
    now_us = 0
    for _ in range(3000):
        now_us += rng.choice((0, 1, 5, 1000))
        batches.add(rng.randrange(1, 4), rng.randrange(1, 100), now_us)
    run_us = now_us // RUNS + 1000
    for offset in range(0, batches.end[0], 17):
        appended_us = next(time_us for end, _, time_us in batches.ends if end > offset)
        assert appended_us <= batches.marks.appended_by(offset) <= appended_us + run_us
