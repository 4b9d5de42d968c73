"""A query's rows as records, and their places. No cluster, no JVM."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_tinymq.source import DefaultSource
from pyspark_tinymq.write.outgoing import Outgoing, Piece, check_columns
from pyspark_tinymq.write.place import HEADERS, PLACE, TaskPlace, with_places
from pyspark_tinymq.write.writer import batch_writer, stream_writer
from tinymq.base.errors import InvalidBatch, InvalidConfig
from tinymq.format.batch import conform

PAIRS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
TASK = TaskPlace("app", 3, 1)
GIVEN = {"servers": "localhost:7070", "topic": "t"}


def columns(**kinds: DataType) -> StructType:
    schema = StructType()
    for name, kind in kinds.items():
        schema.add(name, kind)
    return schema


VALUE = columns(value=BinaryType())


@pytest.mark.parametrize(
    "schema",
    [
        columns(value=StringType()),
        columns(value=BinaryType(), key=StringType(), headers=PAIRS, partition=IntegerType()),
        columns(value=BinaryType(), key=BinaryType(), topic=StringType(), timestamp=DoubleType()),
        columns(key=BinaryType(), value=BinaryType(), topic=StringType(), partition=IntegerType(), offset=LongType(),
                timestamp=TimestampType(), timestampType=IntegerType(), headers=PAIRS),
    ],
    ids=["value", "headers", "text and seconds", "as it was read"],
)  # fmt: skip
def test_columns_that_are_taken(schema: StructType) -> None:
    check_columns(schema, "t")


@pytest.mark.parametrize(
    ("schema", "topic", "says"),
    [
        (columns(key=BinaryType()), "t", "the column 'value' is missing"),
        (VALUE, "", "no topic is named"),
        (columns(value=LongType()), "t", "column 'value' is bigint (make it STRING or BINARY)"),
        (columns(value=BinaryType(), key=IntegerType()), "t", "column 'key' is int"),
        (columns(value=BinaryType(), partition=LongType()), "t", "make it INT"),
        (columns(value=BinaryType(), timestamp=LongType()), "t", "make it TIMESTAMP or DOUBLE"),
        (columns(value=BinaryType(), topic=BinaryType()), "t", "column 'topic' is binary"),
        (columns(value=BinaryType(), headers=MapType(StringType(), BinaryType())), "t", "ARRAY<STRUCT<key: STRING"),
        (columns(value=BinaryType(), vlaue=StringType()), "t", "did you mean 'value'?"),
        (columns(value=BinaryType(), Key=StringType()), "t", "did you mean 'key'?"),
        (columns(value=BinaryType(), zzzzzz=StringType()), "t", "to_json"),
    ],
)
def test_columns_that_are_refused(schema: StructType, topic: str, says: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        check_columns(schema, topic)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("options", "overwrite", "says"),
    [
        ({}, True, 'mode("append")'),
        ({"path": "flights"}, False, ".option('topic', ...)"),
        ({"topic": "a b"}, False, "topic"),
        ({"servers": None}, False, "'servers' is missing"),
        ({"topics": "t"}, False, "did you mean 'topic'?"),
        ({"kafka.acks": "all"}, False, "did you mean 'acks'?"),
        ({"acks": "none"}, False, "one of quorum, leader"),
        ({"subscribe": "t"}, False, "no meaning in a sink"),
        ({"txnAppId": "nightly"}, False, "txnAppId and txnVersion go together"),
        ({"txnVersion": "1"}, False, "txnAppId and txnVersion go together"),
        ({"txnAppId": "a/b", "txnVersion": "1"}, False, "without '/'"),
    ],
)
def test_batch_writes_that_are_refused(options: dict[str, str | None], overwrite: bool, says: str) -> None:
    given = {name: text for name, text in (GIVEN | options).items() if text is not None}
    with pytest.raises(InvalidConfig) as caught:
        DefaultSource(given).writer(VALUE, overwrite)
    assert says in str(caught.value)


def test_streams_that_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="complete"):
        DefaultSource(dict(GIVEN)).streamWriter(VALUE, True)
    with pytest.raises(InvalidConfig, match="txnVersion has no meaning in a stream"):
        DefaultSource(GIVEN | {"txnAppId": "a", "txnVersion": "1"}).streamWriter(VALUE, False)


def test_the_options_are_the_producers() -> None:
    """Beside Spark's own options, which are ignored; each save() has its own name."""
    given = GIVEN | {"ACKS": "leader", "batchBytes": "64k", "deliveryTimeoutMs": "500", "checkpointLocation": "x"}
    stream = stream_writer(given, VALUE, overwrite=False)
    producer = stream.sink.producer
    assert (producer["acks"], producer["batch_bytes_max"], producer["block_ms_max"]) == ("leader", 65536, 500)
    first, second = (batch_writer(GIVEN, VALUE, overwrite=False) for _ in range(2))
    assert first.name != second.name


def records(piece: Piece) -> list[dict[str, object]]:
    """The types into which the client converts."""
    return [row for batch in conform(piece.records, 7) for row in batch.to_pylist()]


def test_a_place_is_a_records_last_header() -> None:
    pairs = [[("a", b"1"), ("b", None)], None, [], [("a", b"2")]]
    headers = pa.array(
        [[{"key": k, "value": v} for k, v in row] if row is not None else None for row in pairs], HEADERS
    )
    marked = with_places(headers, TASK.of_rows(8, 4)).to_pylist()
    assert [row[-1] for row in marked] == [{"key": PLACE, "value": b"app/3/1/%d" % row} for row in range(8, 12)]
    assert [row[:-1] for row in marked] == [row or [] for row in headers.to_pylist()]
    sliced = with_places(headers.slice(2), TASK.of_rows(0, 2)).to_pylist()
    assert [len(row) for row in sliced] == [1, 2]
    assert with_places(None, TASK.of_rows(0, 2)).to_pylist() == [
        [{"key": PLACE, "value": b"app/3/1/0"}],
        [{"key": PLACE, "value": b"app/3/1/1"}],
    ]


def test_rows_are_counted_over_batches_and_go_together_where_nothing_parts_them() -> None:
    out = Outgoing("t", TASK)
    batches = [pa.RecordBatch.from_pydict({"value": ["x", None]}), pa.RecordBatch.from_pydict({"value": [b"y"]})]
    pieces = [piece for batch in batches for piece in out.pieces(batch)]
    assert [(piece.topic, piece.partition, piece.records.num_rows) for piece in pieces] == [
        ("t", None, 2),
        ("t", None, 1),
    ]
    assert [row["value"] for piece in pieces for row in records(piece)] == [b"x", None, b"y"]
    assert [row["headers"][0]["value"] for piece in pieces for row in records(piece)] == [  # type: ignore[index]
        b"app/3/1/0",
        b"app/3/1/1",
        b"app/3/1/2",
    ]
    assert out.rows == 3


def test_rows_go_to_their_topics_and_partitions_in_order() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "value": [b"0", b"1", b"2", b"3", b"4", b"5"],
            "topic": ["a", "b", "a", "a", "b", "a"],
            "partition": pa.array([0, None, None, 1, 2, 0], pa.int32()),
        }
    )
    by_column = {
        (p.topic, p.partition): p.records.column("value").to_pylist() for p in Outgoing("", None).pieces(batch)
    }
    assert by_column == {
        ("a", 0): [b"0", b"5"],
        ("a", None): [b"2"],
        ("a", 1): [b"3"],
        ("b", None): [b"1"],
        ("b", 2): [b"4"],
    }
    by_option = {(p.topic, p.partition): p.records.num_rows for p in Outgoing("t", None).pieces(batch)}
    assert by_option == {("t", 0): 2, ("t", None): 2, ("t", 1): 1, ("t", 2): 1}
    assert "headers" not in next(Outgoing("t", None).pieces(batch)).records.schema.names


def test_a_row_without_a_topic_is_named() -> None:
    out = Outgoing("", TASK)
    out.rows = 40
    with pytest.raises(InvalidBatch, match="column 'topic': row 41 of app/3/1 has no topic"):
        list(out.pieces(pa.RecordBatch.from_pydict({"value": [b"0", b"1"], "topic": ["a", None]})))


@pytest.mark.parametrize("pair", [{"key": None, "value": b"v"}, None])
def test_a_header_without_a_key_is_named(pair: dict[str, object] | None) -> None:
    """The error names column and row. A header's value may be null, and a row may have no headers."""
    whole = {"key": "k", "value": None}
    headers = pa.array([[whole], None, [], [whole, pair]], HEADERS)
    out = Outgoing("t", TASK)
    out.rows = 40
    batch = pa.RecordBatch.from_pydict({"value": [b"x"] * 4, "headers": headers})
    with pytest.raises(InvalidBatch, match="column 'headers': row 43 of app/3/1 has a header without a key"):
        list(out.pieces(batch))
    assert len(list(Outgoing("t", TASK).pieces(batch.slice(0, 3)))) == 1


def test_times_are_microseconds() -> None:
    noon = datetime(2013, 1, 1, 12, tzinfo=UTC)
    paris = pa.array([noon, None], pa.timestamp("us", "Europe/Paris"))
    seconds = pa.array([noon.timestamp() + 0.25, float("nan")])
    for column, expected in ((paris, noon), (seconds, noon.replace(microsecond=250_000))):
        batch = pa.RecordBatch.from_pydict({"value": [b"x", b"y"], "timestamp": column})
        rows = [row for piece in Outgoing("t", None).pieces(batch) for row in records(piece)]
        assert [row["timestamp"] for row in rows] == [expected, datetime(1970, 1, 1, microsecond=7, tzinfo=UTC)]
