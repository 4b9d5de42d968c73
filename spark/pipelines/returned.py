"""Reads the delays that the program wrote to a topic, without Spark: as rows, each once. Pure. The sink writes at least
once: a repeated batch has the same rows with the same places. Like drop_repeats of pyspark_tinymq, a record is a repeat
if its place and its content are the same.
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
    """The rows of a topic."""

    rows: tuple[Row, ...]  # in the order of their records; the first of those with the same place
    repeats: int  # records that were left out


def returned(records: pa.Table) -> Returned:
    """Read `records`, as Reader.to_arrow returns them. A record without a place is a row of its own. Raises ValueError
    for a value that is not a row of delays.
    """
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
    """The last place counts: a copied record may still have the place of its first query."""
    places = [header["value"] for header in headers if header["key"] == PLACE]
    return places[-1] if places and isinstance(places[-1], bytes) else None
