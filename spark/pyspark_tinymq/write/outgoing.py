"""Turns the rows of a query into records, and sorts them by topic and partition. Pure.

The columns are those of the Kafka connector:

    value      STRING or BINARY; required; null makes a record without a value
    key        STRING or BINARY
    headers    ARRAY<STRUCT<key: STRING, value: BINARY>>
    topic      STRING; required, without nulls, unless the option `topic` is given, which has precedence
    partition  INT; null: chosen by the key, or any
    timestamp  TIMESTAMP, or DOUBLE in seconds since 1970; null: the time of sending

The columns `offset` and `timestampType` are accepted and ignored, so that rows can be written as they were read.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_tinymq.write.place import HEADERS, TaskPlace, with_places
from tinymq.base.errors import InvalidBatch, InvalidConfig

_PAIRS = "array<struct<key:string,value:binary>>"
TAKEN: dict[str, tuple[str, ...]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": (_PAIRS,),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp", "double"),
}
LEFT = ("offset", "timestampType")
_KINDS: dict[str, type[DataType]] = {"string": StringType, "binary": BinaryType, "int": IntegerType,
                                     "timestamp": TimestampType, "double": DoubleType}  # fmt: skip
_TIME = pa.timestamp("us", "UTC")
_NO_TOPIC = "add .option('topic', 'NAME'), or topic to the OPTIONS of the SQL table"


def check_columns(schema: StructType, topic: str) -> None:
    """Raise InvalidConfig for columns that the sink does not accept. `topic` is the value of the option, or ""."""
    for field in schema.fields:
        if field.name in LEFT:
            continue
        if field.name not in TAKEN:
            near = difflib.get_close_matches(field.name.lower(), TAKEN, 1)
            hint = f"did you mean {near[0]!r}?" if near else "drop it, or put it into the value: to_json(struct(...))"
            raise InvalidConfig(f"column {field.name!r} is not one of the sink's: {', '.join(TAKEN)}", hint=hint)
        if not any(_is(field.dataType, kind) for kind in TAKEN[field.name]):
            raise InvalidConfig(
                f"column {field.name!r} is {field.dataType.simpleString()}", hint=f"make it {_or(TAKEN[field.name])}"
            )
    if "value" not in schema.names:
        raise InvalidConfig(
            "the column 'value' is missing", hint='such as df.selectExpr("to_json(struct(*)) AS value")'
        )
    if not topic and "topic" not in schema.names:
        raise InvalidConfig("no topic is named", hint=f"{_NO_TOPIC}; or a column 'topic' STRING")
    if len(set(schema.names)) != len(schema.names):
        raise InvalidConfig(f"a column occurs twice: {', '.join(schema.names)}", hint="drop one, or rename it")


def _is(kind: DataType, name: str) -> bool:
    if name != _PAIRS:
        return isinstance(kind, _KINDS[name])
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    names = [field.name for field in fields] == ["key", "value"]
    return names and _is(fields[0].dataType, "string") and _is(fields[1].dataType, "binary")


def _or(kinds: tuple[str, ...]) -> str:
    return " or ".join(
        kind.upper() if "<" not in kind else "ARRAY<STRUCT<key: STRING, value: BINARY>>" for kind in kinds
    )


class Piece(NamedTuple):
    """Rows for one topic, and for one partition of it (None: any), with the columns that the client accepts."""

    topic: str
    partition: int | None
    records: pa.RecordBatch


class Outgoing:
    """Splits the batches of a query into pieces.

    `topic` is the value of the option, or "". With `place` None the records carry no place.
    """

    def __init__(self, topic: str, place: TaskPlace | None) -> None:
        self._topic = topic
        self._place = place
        self.rows = 0  # the rows taken so far

    def pieces(self, batch: pa.RecordBatch) -> Iterator[Piece]:
        """Split `batch`, whose columns were checked. Rows keep their order within each partition.

        Raises InvalidBatch for a row without a topic, and for a header without a key.
        """
        first = self.rows
        self.rows += batch.num_rows
        records = self._records(batch, first)
        topics = None if self._topic else batch.column("topic").cast(pa.string())
        if topics is not None and topics.null_count:
            row = first + pc.index(topics.is_null(), True).as_py()
            raise InvalidBatch(f"column 'topic': row {row} of {self._place or 'the task'} has no topic", hint=_NO_TOPIC)
        partitions = batch.column("partition") if "partition" in batch.schema.names else None
        if topics is None and (partitions is None or partitions.null_count == len(partitions)):
            yield Piece(self._topic, None, records)
            return
        yield from self._parted(records, topics, partitions)

    def _records(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        there = set(batch.schema.names)
        columns = {"value": batch.column("value").cast(pa.binary())}
        if "key" in there:
            columns["key"] = batch.column("key").cast(pa.binary())
        if "timestamp" in there:
            columns["timestamp"] = _times(batch.column("timestamp"))
        headers = batch.column("headers").cast(HEADERS) if "headers" in there else None
        if headers is not None:
            self._check_headers(headers, first)
        if self._place is not None:
            headers = with_places(headers, self._place.of_rows(first, batch.num_rows))
        if headers is not None:
            columns["headers"] = headers
        return pa.RecordBatch.from_pydict(columns)

    def _check_headers(self, headers: pa.ListArray, first: int) -> None:
        pairs = headers.flatten()
        if not pairs.null_count and not pairs.field("key").null_count:
            return
        bad = pc.or_(pairs.is_null(), pairs.field("key").is_null())
        row = first + pc.list_parent_indices(headers)[pc.index(bad, True).as_py()].as_py()
        raise InvalidBatch(
            f"column 'headers': row {row} of {self._place or 'the task'} has a header without a key",
            hint="filter such headers out: filter(headers, h -> h.key IS NOT NULL); a header's value may be null",
        )

    def _parted(self, records: pa.RecordBatch, topics: pa.Array | None, partitions: pa.Array | None) -> Iterator[Piece]:
        for topic in [self._topic] if topics is None else topics.unique().to_pylist():
            mine = None if topics is None else pc.equal(topics, topic)
            if partitions is None:
                yield Piece(topic, None, records.filter(mine))
                continue
            for partition in (partitions if mine is None else partitions.filter(mine)).unique().to_pylist():
                here = (
                    partitions.is_null() if partition is None else pc.fill_null(pc.equal(partitions, partition), False)
                )
                rows = here if mine is None else pc.and_(here, mine)
                yield Piece(topic, partition, records.filter(rows))


def _times(column: pa.Array) -> pa.Array:
    if not pa.types.is_floating(column.type):
        return column.cast(_TIME)
    known = pc.if_else(pc.is_finite(column), column, pa.scalar(None, pa.float64()))
    micros = pc.multiply(known, 1e6).cast(pa.int64(), safe=False)
    return micros.cast(_TIME)
