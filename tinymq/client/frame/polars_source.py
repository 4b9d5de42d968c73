"""A frame for Polars: a lazy frame whose queries read the columns, the ranges and the number of rows that they need."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tinymq.base import extras
from tinymq.client.frame.ranges import Ranges, narrow

if TYPE_CHECKING:
    import polars as pl

PLACES = ("partition", "offset")  # the columns whose values choose what is fetched
DEPTH_MAX = 32  # of a predicate; deeper parts do not narrow the fetch, but Polars still applies them
MIRRORED = {  # each comparison with its sides exchanged
    operator.ge: operator.le,
    operator.gt: operator.lt,
    operator.le: operator.ge,
    operator.lt: operator.gt,
    operator.eq: operator.eq,
}


def lazy_frame(
    schema: pa.Schema, ranges: Callable[[], Ranges], read: Callable[[Ranges], Iterator[pa.RecordBatch]]
) -> pl.LazyFrame:
    """Return a lazy frame over the batches that `read` gives for ranges. Raises MissingExtra."""
    with extras.required("a lazy frame"):
        from polars.io.plugins import register_io_source

    def batches(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        wanted, left = ranges(), n_rows
        condition = None if predicate is None else arrow_condition(predicate)
        if condition is not None:
            wanted = narrow(wanted, condition)
        names = schema.names if with_columns is None else with_columns
        for batch in read(wanted) if left != 0 else ():
            frame = _as_frame(batch)
            if predicate is not None:
                frame = frame.filter(predicate)
            frame = frame.select(names)
            if left is not None:
                frame = frame.head(left)
                left -= frame.height
            yield frame
            if left == 0:
                return

    return register_io_source(batches, schema=_as_frame(schema.empty_table()).schema)


def _as_frame(data: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    import polars as pl

    frame = pl.from_arrow(data)
    assert isinstance(frame, pl.DataFrame), "a table has columns"
    return frame


def arrow_condition(predicate: pl.Expr, depth: int = 0) -> Any:
    """Return an Arrow expression of partition and offset that holds wherever `predicate` does; None: there is none.

    Polars shows the parts of an expression and can compare expressions, but it does not name their operators. So this
    combines the parts with each operator in turn, until the result equals the predicate.
    """
    parts = predicate.meta.pop() if depth < DEPTH_MAX else []
    if len(parts) == 2:
        for left, right in permutations(parts):
            if predicate.meta.eq(left & right):
                found = [arrow_condition(each, depth + 1) for each in (left, right)]
                known = [each for each in found if each is not None]
                return known[0] & known[1] if len(known) == 2 else known[0] if known else None
            if predicate.meta.eq(left | right):
                found = [arrow_condition(each, depth + 1) for each in (left, right)]
                return None if any(each is None for each in found) else found[0] | found[1]
    return _comparison(predicate, parts)


def _comparison(predicate: pl.Expr, parts: list[pl.Expr]) -> Any:
    import pyarrow.compute as pc

    names = [part.meta.output_name() for part in parts if part.meta.is_column()]
    values = [part for part in parts if part.meta.is_literal()]
    if len(names) != 1 or names[0] not in PLACES or len(values) != len(parts) - 1:
        return None
    column = next(part for part in parts if part.meta.is_column())
    field = pc.field(names[0])
    if len(values) == 1:
        value = _int_of(values[0])
        for compare, mirrored in MIRRORED.items():
            if value is not None and predicate.meta.eq(compare(column, values[0])):
                return compare(field, value)
            if value is not None and predicate.meta.eq(compare(values[0], column)):
                return mirrored(field, value)
    for least, most in permutations(values) if len(values) == 2 else ():
        bounds = _int_of(least), _int_of(most)
        for closed in ("both", "left", "right", "none"):
            if None not in bounds and predicate.meta.eq(column.is_between(least, most, closed=closed)):
                return (field >= bounds[0]) & (field <= bounds[1])
    return None


def _int_of(literal: pl.Expr) -> int | None:
    import polars as pl

    value = pl.select(literal).item() if pl.select(literal).height == 1 else None
    return value if isinstance(value, int) and -(1 << 63) <= value < 1 << 63 else None
