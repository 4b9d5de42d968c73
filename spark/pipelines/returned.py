"""The delays that came back into a topic, read without Spark: as rows, each once. Pure.

The sink writes at least once: a batch that was done again has the same rows under the same places. As drop_repeats of
pyspark_tinymq has it, a record is a repeat if both are the same, its place and what it says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from pipelines.comparison import Row
from pyspark_tinymq.write.place import PLACE


@dataclass(frozen=True, slots=True)
class Returned:
    """What a topic holds."""

    rows: tuple[Row, ...]  # in the order of their records; the first of those with the same place
    repeats: int  # records that were left out


def returned(records: pa.Table) -> Returned:
    """`records` as Reader.to_arrow gives them. One without a place is a row of its own. Raises ValueError for a value
    that is no row of delays."""
    seen: set[tuple[object, ...]] = set()
    rows: list[Row] = []
    columns = (records[name].to_pylist() for name in ("key", "value", "headers"))
    for key, value, headers in zip(*columns, strict=True):
        place = _place(headers or [])
        if place is not None:
            if (place, key, value) in seen:
                continue
            seen.add((place, key, value))
        row = json.loads(value)
        rows.append({"worst_min": None, **row, "hour": datetime.fromisoformat(row["hour"])})
    return Returned(tuple(rows), records.num_rows - len(rows))


def _place(headers: Sequence[dict[str, object]]) -> bytes | None:
    """The last one counts: a record that was copied may still carry that of its first query."""
    places = [header["value"] for header in headers if header["key"] == PLACE]
    return places[-1] if places and isinstance(places[-1], bytes) else None
