"""The ranges of a plan and the end of a micro-batch: tables, and a search for plans that lose or repeat an offset."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_tinymq.options.offsets import Partition
from pyspark_tinymq.options.settings import Limits
from pyspark_tinymq.plan import plan
from pyspark_tinymq.plan.plan import GONE, Bounds, Loss, Range
from tinymq.base.errors import OffsetOutOfRange, UnknownPartition

A, B, C = Partition("t", 0), Partition("t", 1), Partition("t", 2)
WHOLE = {A: Bounds(10, 100), B: Bounds(0, 50)}

RANGES = [  # (starts, ends, lenient, ranges, what is lost)
    ({A: 10, B: 0}, {A: 100, B: 50}, (), [(A, 10, 100), (B, 0, 50)], []),
    ({A: 20, B: 50}, {A: 90, B: 50}, (), [(A, 20, 90)], []),
    ({A: 3}, {A: 90}, (), [(A, 10, 90)], [A]),
    ({A: 3}, {A: 90}, (A,), [(A, 10, 90)], []),
    ({A: 3}, {A: 7}, (), [], [A]),
    ({A: 3}, {A: 7}, (A,), [], []),
    ({A: 3}, {A: 3}, (), [], []),  # removed, and nothing of it is read
    ({}, {B: 50}, (), [(B, 0, 50)], []),  # new
    ({}, {A: 5}, (), [], []),  # new, and trimmed since
    ({C: 5}, {C: 9}, (), [], [C]),
    ({C: 5}, {C: 5}, (), [], []),
    ({}, {C: 9}, (), [], [C]),
    ({A: 100}, {A: 120}, (), [(A, 100, 120)], []),  # who answered lags: the end was committed
]  # fmt: skip


@pytest.mark.parametrize(("starts", "ends", "lenient", "planned", "lost"), RANGES)
def test_ranges(
    starts: dict[Partition, int],
    ends: dict[Partition, int],
    lenient: tuple[Partition, ...],
    planned: list[tuple[Partition, int, int]],
    lost: list[Partition],
) -> None:
    found, losses = plan.ranges(starts, ends, WHOLE, lenient)
    assert [(each.at, each.start, each.end) for each in found] == planned
    assert [loss.at for loss in losses] == lost


def test_losses_are_reported() -> None:
    gone = Loss(A, "begins with 10 now: 3 to 9 were removed")
    error = plan.loss_error([gone], plan.STREAM_HINT)
    assert isinstance(error, OffsetOutOfRange)
    assert "t/0 begins with 10" in str(error)
    assert "failOnDataLoss=false" in str(error)
    assert "checkpoint" in error.hint
    assert "checkpoint" not in plan.loss_error([gone], plan.BATCH_HINT).hint
    many = [Loss(Partition("t", number), GONE) for number in range(9)]
    assert isinstance(plan.loss_error(many, ""), UnknownPartition)
    assert "and 4 more partitions" in str(plan.loss_error(many, ""))


SPLITS = [  # (sizes, tasks_min, records_max, sizes of the tasks)
    ([100], None, None, [100]),
    ([100], 4, None, [25, 25, 25, 25]),
    ([100], None, 30, [25, 25, 25, 25]),
    ([100], None, 1000, [100]),
    ([1000, 10], 4, None, [333, 333, 334, 10]),
    ([5], 100, None, [1, 1, 1, 1, 1]),
    ([10, 10], 2, None, [10, 10]),
    ([10, 10, 10], 2, None, [10, 10, 10]),
    ([7], None, 3, [2, 2, 3]),
    ([], 4, 2, []),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "tasks_min", "records_max", "pieces"), SPLITS)
def test_splits(sizes: list[int], tasks_min: int | None, records_max: int | None, pieces: list[int]) -> None:
    planned = [Range(Partition("t", number), 5, 5 + size) for number, size in enumerate(sizes)]
    assert [each.size for each in plan.split(planned, tasks_min, records_max)] == pieces


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=8),
    tasks_min=st.none() | st.integers(1, 200),
    records_max=st.none() | st.integers(1, 300),
)
def test_tasks_are_exactly_what_was_planned(sizes: list[int], tasks_min: int | None, records_max: int | None) -> None:
    planned = [Range(Partition("t", number), 100, 100 + size, True) for number, size in enumerate(sizes)]
    tasks = plan.split(planned, tasks_min, records_max)
    for each in planned:
        here = [task for task in tasks if task.at == each.at]
        assert here[0].start == each.start
        assert here[-1].end == each.end
        assert all(low.end == high.start for low, high in pairwise(here))
    assert all(task.size > 0 and task.lenient for task in tasks)
    assert records_max is None or max(task.size for task in tasks) <= records_max


ADMITTED = [  # (limits, mean sizes, how far from A: 0 of 90 and B: 0 of 10)
    (Limits(), {}, {A: 90, B: 10}),
    (Limits(rows_max=100), {}, {A: 90, B: 10}),
    (Limits(rows_max=50), {}, {A: 45, B: 5}),
    (Limits(rows_max=1), {}, {A: 1, B: 1}),  # nobody starves
    (Limits(bytes_max=1000), {A: 100.0, B: 100.0}, {A: 9, B: 1}),
    (Limits(bytes_max=10_240), {}, {A: 9, B: 1}),  # nobody knows how large they are: 1 KiB
    (Limits(rows_max=50, bytes_max=1_000_000), {A: 100.0}, {A: 45, B: 5}),
    (Limits(rows_max=50, bytes_max=900), {A: 100.0}, {A: 8, B: 1}),  # and nobody B's: as large as A's
]  # fmt: skip


@pytest.mark.parametrize(("limits", "sizes", "ends"), ADMITTED)
def test_admission(limits: Limits, sizes: dict[Partition, float], ends: dict[Partition, int]) -> None:
    assert plan.micro_batch_end({A: 0, B: 0}, {A: 90, B: 10}, limits, sizes) == ends


@settings(max_examples=60, deadline=None)
@given(
    waiting=st.dictionaries(st.integers(0, 9), st.integers(0, 1 << 40), min_size=1),
    rows_max=st.none() | st.integers(1, 1 << 40),
    bytes_max=st.none() | st.integers(1, 1 << 50),
)
def test_an_admitted_frame_grows_up_to_its_share(
    waiting: dict[int, int], rows_max: int | None, bytes_max: int | None
) -> None:
    starts = {Partition("t", number): 7 * number for number in waiting}
    ends = {at: starts[at] + count for at, count in zip(starts, waiting.values(), strict=True)}
    found = plan.micro_batch_end(starts, ends, Limits(rows_max, bytes_max), dict.fromkeys(starts, 100.0))
    assert found.keys() == ends.keys()
    assert all(starts[at] <= found[at] <= ends[at] for at in ends)
    assert all(found[at] > starts[at] for at in ends if ends[at] > starts[at])
    if rows_max is not None:
        assert sum(found[at] - starts[at] for at in ends) <= rows_max + len(ends)


WAITS = [  # (minimum, seconds waited of 60, it waits)
    (None, 0.0, False),
    (100, 0.0, False),
    (101, 0.0, True),
    (101, 59.0, True),
    (101, 60.0, False),
]


@pytest.mark.parametrize(("least", "waited_s", "waits"), WAITS)
def test_too_little_waits_but_not_for_ever(least: int | None, waited_s: float, waits: bool) -> None:
    limits = Limits(rows_min=least, delay_s_max=60.0)
    assert plan.must_wait({A: 10, B: 0}, {A: 90, B: 20}, limits, waited_s) is waits


def test_an_answer_that_lags_takes_nothing_back() -> None:
    assert plan.forward({A: 50, B: 5}, {A: 40, B: 9, C: 3}) == {A: 50, B: 9, C: 3}


def test_explicit_places_name_all_and_no_other() -> None:
    plan.check_explicit([A, B], [B, A], "startingOffsets")
    with pytest.raises(UnknownPartition, match="there is no t/2 to read; t/1 has no place"):
        plan.check_explicit([A, C], [A, B], "startingOffsets")
