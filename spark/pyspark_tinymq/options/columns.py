"""The columns that Spark sees, and record batches with exactly these columns: Spark accepts no other Arrow types.

The columns are those of the Kafka connector: key, value, topic, partition, offset, timestamp, timestampType, and
headers if the option includeHeaders is set. All are nullable. Times are in microseconds, UTC. With JSON values the
column `value` is a struct.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

CREATE_TIME = 0
"""The value of timestampType in every row: the time is the sender's."""

BATCH_BYTES = 1 << 20
"""Small batches are joined to about this size for Spark, because many small ones cost more than the copy."""

ROWS_MAX = 1 << 16


def spark_schema(headers: bool, value: DataType | None = None) -> StructType:
    """Return the schema of a DataFrame. `value` is the type of parsed values; None: values are binary."""
    fields = [
        ("key", BinaryType()),
        ("value", value or BinaryType()),
        ("topic", StringType()),
        ("partition", IntegerType()),
        ("offset", LongType()),
        ("timestamp", TimestampType()),
        ("timestampType", IntegerType()),
    ]
    if headers:
        pair = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        fields.append(("headers", ArrayType(pair)))
    return StructType([StructField(name, kind) for name, kind in fields])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return `schema` as the Arrow schema that Spark reads."""
    return to_arrow_schema(schema, timezone="UTC")


@dataclass(frozen=True, slots=True)
class Columns:
    """Makes record batches for Spark from those of a topic. `schema` is the result of arrow_schema."""

    topic: str
    schema: pa.Schema

    def batch(self, stored: pa.RecordBatch, value: pa.Array | None = None) -> pa.RecordBatch:
        """Return the rows of `stored`, which has the client's TABLE_SCHEMA, without a copy.

        `value` replaces the column of values. It has as many rows.
        """
        count = stored.num_rows
        arrays = [
            stored.column("key"),
            stored.column("value") if value is None else value,
            _repeated(self.topic, pa.string(), count),
            stored.column("partition"),
            stored.column("offset"),
            stored.column("timestamp"),
            _repeated(CREATE_TIME, pa.int32(), count),
        ]
        if len(self.schema) > len(arrays):
            arrays.append(stored.column("headers").cast(self.schema.field("headers").type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@lru_cache(maxsize=64)
def _one(value: object, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _repeated(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """Return an array of `count` equal values: a slice of a longer, cached array."""
    longer = max(1 << 12, 1 << (count - 1).bit_length()) if count else 1
    return _one(value, kind, longer).slice(0, count)


def joined(
    batches: Iterable[pa.RecordBatch], sizes: int = BATCH_BYTES, rows: int = ROWS_MAX
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows, with small batches joined to about `sizes` bytes or `rows` rows. Large ones stay whole."""
    waiting: list[pa.RecordBatch] = []
    size = count = 0
    for batch in batches:
        bytes_here = batch.nbytes
        if waiting and (size + bytes_here > sizes or count + batch.num_rows > rows):
            yield _join(waiting)
            waiting, size, count = [], 0, 0
        waiting.append(batch)
        size, count = size + bytes_here, count + batch.num_rows
        if size >= sizes // 2 or count >= rows:
            yield _join(waiting)
            waiting, size, count = [], 0, 0
    if waiting:
        yield _join(waiting)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
