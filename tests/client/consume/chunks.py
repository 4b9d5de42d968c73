"""Chunks of records, without a broker."""

from __future__ import annotations

import pyarrow as pa

from tinymq.client.consume.records import Chunk
from tinymq.format.batch import SCHEMA


def chunk(partition: int, offset: int, count: int) -> Chunk:
    """Make `count` records from `offset` on, whose values are their offsets. It counts as 100 bytes."""
    rows = [{"key": None, "value": b"%d" % n, "headers": [], "timestamp": 0} for n in range(offset, offset + count)]
    return Chunk(partition, offset, 1, pa.RecordBatch.from_pylist(rows, schema=SCHEMA), 100)
