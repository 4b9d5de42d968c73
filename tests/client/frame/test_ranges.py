"""A filter narrows a frame to the least ranges that hold every row which it accepts."""

from __future__ import annotations

import operator
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinymq.client.frame.polars_source import arrow_condition
from tinymq.client.frame.ranges import clip, narrow, rows_of_ranges

RANGES = {0: (0, 40), 1: (5, 30), 2: (3, 3)}
OFFSET, PARTITION, VALUE = pc.field("offset"), pc.field("partition"), pc.field("value")
ROWS = pa.table(
    [
        pa.array([p for p, (first, end) in RANGES.items() for _ in range(first, end)], pa.int32()),
        pa.array([o for first, end in RANGES.values() for o in range(first, end)], pa.int64()),
        pa.array([b"%d" % (o % 3) for first, end in RANGES.values() for o in range(first, end)], pa.binary()),
    ],
    ["partition", "offset", "value"],
)
FRAME = pl.DataFrame(ROWS)


def least(table: pa.Table) -> dict[int, tuple[int, int]]:
    """The ranges that the rows of a table span."""
    found: dict[int, tuple[int, int]] = {}
    for row in table.to_pylist():
        first, end = found.get(row["partition"], (row["offset"], 0))
        found[row["partition"]] = min(first, row["offset"]), max(end, row["offset"] + 1)
    return found


EXACT = {
    "offsets": (OFFSET >= 7) & (OFFSET < 22),
    "one of some offsets": OFFSET.isin([9, 12]),
    "a partition": pa.scalar(1, pa.int32()) == PARTITION,
    "either end": (OFFSET == 8) | (OFFSET == 29),
    "no offset": OFFSET < 0,
    "not": ~(OFFSET > 10),
}


@pytest.mark.parametrize("case", EXACT)
def test_a_filter_of_places_narrows_exactly(case: str) -> None:
    assert narrow(RANGES, EXACT[case]) == least(ROWS.filter(EXACT[case]))


def test_other_columns_narrow_nothing() -> None:
    full = {p: bounds for p, bounds in RANGES.items() if bounds[0] < bounds[1]}
    assert narrow(RANGES, VALUE == b"1") == full
    assert narrow(RANGES, (VALUE == b"1") | (OFFSET == 5)) == full
    assert narrow(RANGES, (VALUE == b"1") & (OFFSET < 7)) == {0: (0, 7), 1: (5, 7)}


def test_a_wide_range_takes_few_steps() -> None:
    assert narrow({3: (0, 1 << 62)}, (OFFSET >= 1 << 60) & (OFFSET <= (1 << 60) + 5)) == {
        3: (1 << 60, (1 << 60) + 6),
    }


COMPARISONS = [operator.lt, operator.le, operator.eq, operator.ge, operator.gt, operator.ne]
places = st.tuples(st.sampled_from(["partition", "offset"]), st.sampled_from(COMPARISONS), st.integers(-2, 45))
conditions = st.recursive(
    places | st.just("value"),
    lambda inner: st.tuples(st.sampled_from(["and", "or", "not"]), inner, inner),
    max_leaves=6,
)


def polars_of(condition: Any) -> pl.Expr:
    match condition:
        case "value":
            return pl.col("value") == b"1"
        case "not", inner, _:
            return ~polars_of(inner)
        case "and", left, right:
            return polars_of(left) & polars_of(right)
        case "or", left, right:
            return polars_of(left) | polars_of(right)
    column, compare, number = condition
    found: pl.Expr = compare(pl.col(column), number)
    return found


@given(conditions)
@settings(max_examples=40, deadline=None)
def test_a_predicate_of_polars_keeps_every_row_that_it_accepts(condition: Any) -> None:
    predicate = polars_of(condition)
    accepted = least(FRAME.filter(predicate).to_arrow())
    found = arrow_condition(predicate)
    narrowed = RANGES if found is None else narrow(RANGES, found)
    for partition, (first, end) in accepted.items():
        assert narrowed[partition][0] <= first
        assert narrowed[partition][1] >= end


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ((pl.col("offset") >= 7) & (pl.col("offset") < 22), {0: (7, 22), 1: (7, 22)}),
        (pl.col("offset").is_between(7, 9), {0: (7, 10), 1: (7, 10)}),
        (pl.col("offset").is_between(7, 9, closed="left") & (pl.col("value") == b"1"), {0: (7, 10), 1: (7, 10)}),
        ((pl.col("partition") == 1) & pl.col("key").is_null(), {1: (5, 30)}),
        (pl.lit(12) < pl.col("offset"), {0: (13, 40), 1: (13, 30)}),
    ],
)
def test_a_predicate_of_polars_narrows(predicate: pl.Expr, expected: dict[int, tuple[int, int]]) -> None:
    assert narrow(RANGES, arrow_condition(predicate)) == expected


@pytest.mark.parametrize(
    "predicate",
    [
        pl.col("offset") > 1.5,
        pl.col("offset") % 2 == 0,
        pl.col("offset") == pl.col("partition"),
        pl.col("value") == b"1",
        pl.col("offset") != 4,
        pl.col("offset") > (1 << 64),
    ],
    ids=str,
)
def test_a_predicate_that_says_nothing_of_places_narrows_nothing(predicate: pl.Expr) -> None:
    assert arrow_condition(predicate) is None


@pytest.mark.parametrize(
    ("wanted", "stored", "expected"),
    [
        ((None, None), (3, 9), (3, 9)),
        ((0, 100), (3, 9), (3, 9)),
        ((4, 6), (3, 9), (4, 6)),
        ((20, 30), (3, 9), (9, 9)),
        ((0, 2), (3, 9), (3, 3)),
    ],
)
def test_a_range_is_clipped_to_what_is_stored(
    wanted: tuple[int | None, int | None], stored: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert clip(wanted, stored) == expected
    assert rows_of_ranges({0: expected}) == expected[1] - expected[0]
