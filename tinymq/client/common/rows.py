"""Read a record batch of SCHEMA by columns of Python objects, or by rows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import NamedTuple

import pyarrow as pa

Headers = tuple[tuple[str, bytes | None], ...]
Row = tuple[bytes | None, bytes | None, Headers, int]
"""(key, value, headers, timestamp in microseconds since 1970 UTC)."""


class Columns(NamedTuple):
    """The columns of a batch, each with an item per record. None of their items can fail to be read."""

    keys: Iterable[bytes | None]
    values: Iterable[bytes | None]
    headers: Iterable[Headers]
    times_us: Iterable[int]


def columns_of(batch: pa.RecordBatch) -> Columns:
    """Return the columns of a batch of SCHEMA."""
    keys, values, headers, times = batch.columns
    return Columns(_items_of(keys), _items_of(values), _headers_of(headers), _times_of(times))


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Return every record of a batch of SCHEMA as a Row."""
    return list(zip(*columns_of(batch), strict=True))


def _items_of(column: pa.Array) -> Iterable[bytes | None]:
    # A column of nulls needs no list: most topics have no keys.
    return repeat(None, len(column)) if column.null_count == len(column) else column.to_pylist()


def _headers_of(column: pa.Array) -> Iterable[Headers]:
    if column.null_count == len(column):
        return repeat((), len(column))
    return [tuple((h["key"], h["value"]) for h in row) if row else () for row in column.to_pylist()]


def _times_of(column: pa.Array) -> list[int]:
    times: list[int] = column.view(pa.int64()).to_pylist()  # a cast would load pyarrow.compute
    return times
