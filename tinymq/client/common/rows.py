"""Read the rows of a record batch of SCHEMA as tuples."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

Headers = tuple[tuple[str, bytes | None], ...]
Row = tuple[bytes | None, bytes | None, Headers, int]
"""(key, value, headers, timestamp in microseconds since 1970 UTC)."""


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Return every record of a batch of SCHEMA as a Row."""
    keys, values = batch.column(0).to_pylist(), batch.column(1).to_pylist()
    return list(zip(keys, values, _headers_of(batch.column(2)), _times_of(batch.column(3)), strict=True))


def _headers_of(column: pa.Array) -> Sequence[Headers]:
    if column.null_count == len(column):
        return ((),) * len(column)
    return [tuple((h["key"], h["value"]) for h in row) if row else () for row in column.to_pylist()]


def _times_of(column: pa.Array) -> list[int]:
    times: list[int] = column.view(pa.int64()).to_pylist()  # a cast would load pyarrow.compute
    return times
