"""Frames against a real broker: Arrow, Polars and DuckDB read what was sent, and fetch what they need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from tinymq import AsyncClient, Client, Offset
from tinymq.base.errors import InvalidRequest, OffsetOutOfRange, TinymqError, UnknownPartition, UnknownTopic
from tinymq.client.consume.reader import ReaderCore
from tinymq.client.consume.records import TABLE_SCHEMA
from tinymq.client.facade.client import loop_thread_of
from tinymq.client.frame.duckdb_relation import aligned
from tinymq.client.frame.frame import FrameCore
from tinymq.testing import Cluster

ROWS = 1_000  # in each of two partitions
T0 = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def mq() -> Iterator[Client]:
    with Cluster(nodes=1) as cluster, Client(cluster.servers) as client:
        client.admin.create_topic("orders", partitions=3, replication_factor=1)
        start_us = int(T0.timestamp()) * 1_000_000
        with client.producer(batch_bytes_max=4_000) as producer:
            for partition in (0, 1):
                for number in range(ROWS):
                    value, time_us = b"%d" % number, start_us + number * 1_000_000
                    producer.send("orders", value, key=b"k", partition=partition, timestamp=time_us)
        yield client


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, tuple[int, int]]]:
    """The ranges that were read, one item per reader."""
    seen: list[dict[int, tuple[int, int]]] = []
    original = FrameCore.reading

    def reading(self: FrameCore, ranges: dict[int, tuple[int, int]]) -> ReaderCore | None:
        seen.append(dict(ranges))
        return original(self, ranges)

    monkeypatch.setattr(FrameCore, "reading", reading)
    return seen


def noted(make: Callable[..., ReaderCore], into: list[ReaderCore]) -> Callable[..., ReaderCore]:
    """`make`, whose readers are kept."""

    def made(*args: Any) -> ReaderCore:
        into.append(make(*args))
        return into[-1]

    return made


def test_a_frame_is_the_topic_as_a_table(mq: Client) -> None:
    frame = mq.frame("orders")
    table = frame.to_arrow()
    assert table.schema == frame.schema == TABLE_SCHEMA
    assert table.equals(mq.reader("orders", end="latest").to_arrow())
    assert frame.count() == table.num_rows == 2 * ROWS
    assert frame.ranges() == {0: (0, ROWS), 1: (0, ROWS), 2: (0, 0)}
    assert repr(frame) == "<Frame of 'orders': partition, offset, key, value, headers, timestamp>"


def test_columns_offsets_times_and_partitions_choose(mq: Client) -> None:
    some = mq.frame("orders", ["value", "offset"], [1], offsets=(990, Offset(993))).to_arrow()
    assert some.to_pydict() == {"value": [b"990", b"991", b"992"], "offset": [990, 991, 992]}
    times = (T0.replace(minute=1), T0.replace(minute=2))
    assert mq.frame("orders", times=times).ranges() == {0: (60, 120), 1: (60, 120), 2: (0, 0)}
    assert mq.frame("orders", offsets=(5_000, None)).to_arrow().num_rows == 0
    assert mq.frame("orders", ["key"], [2]).to_arrow().equals(pa.table({"key": pa.array([], pa.binary())}))


def test_a_frame_keeps_its_range_and_the_next_frame_has_more(mq: Client) -> None:
    mq.admin.create_topic("growing", partitions=1, replication_factor=1)
    mq.send("growing", b"1")
    frame = mq.frame("growing", ["value"])
    assert frame.count() == 1
    mq.send("growing", b"2")
    assert frame.to_arrow().num_rows == 1
    assert frame.lazy().collect().height == 1
    assert mq.frame("growing").to_arrow().num_rows == 2


def test_records_that_were_removed_since_are_an_error(mq: Client) -> None:
    mq.admin.create_topic("trimmed", partitions=1, replication_factor=1)
    for number in range(3):
        mq.send("trimmed", b"%d" % number)
    frame = mq.frame("trimmed")
    assert frame.count() == 3
    mq.admin.trim("trimmed", 0, Offset(2))
    with pytest.raises(OffsetOutOfRange):
        frame.to_arrow()
    assert mq.frame("trimmed", ["value"]).to_arrow().column(0).to_pylist() == [b"2"]


def test_polars_fetches_the_ranges_that_a_query_needs(mq: Client, fetched: list[object]) -> None:
    lazy = mq.frame("orders").lazy()
    found = lazy.filter((pl.col("offset") >= 10) & (pl.col("offset") < 20), pl.col("partition") == 1).select("value")
    assert found.collect().get_column("value").to_list() == [b"%d" % number for number in range(10, 20)]
    assert fetched == [{1: (10, 20)}]
    assert lazy.filter(pl.col("value") == b"7").select(pl.len()).collect().item() == 2
    assert lazy.select("offset", "partition").head(5).collect().shape == (5, 2)
    assert lazy.collect_schema().names() == TABLE_SCHEMA.names
    assert lazy.group_by("partition").len().sort("partition").collect().rows() == [(0, ROWS), (1, ROWS)]


def test_duckdb_fetches_the_ranges_that_a_query_needs(mq: Client, fetched: list[object]) -> None:
    with duckdb.connect() as connection:
        mq.frame("orders").relation(connection).create_view("orders")
        query = 'select value from orders where "offset" between 10 and 19 and partition = 1 order by "offset"'
        assert connection.sql(query).fetchall() == [(b"%d" % number,) for number in range(10, 20)]
        assert fetched == [{1: (10, 20)}]
        assert connection.sql("select count(*) from orders").fetchall() == [(2 * ROWS,)]
        assert connection.sql("select count(*) from orders where value = '7'::blob").fetchall() == [(2,)]
        twice = 'select count(*) from orders a join orders b using (partition, "offset")'
        assert connection.sql(twice).fetchall() == [(2 * ROWS,)]
        assert len(connection.sql("select * from orders limit 3").fetchall()) == 3


@pytest.mark.parametrize("shift", range(1, 8))
def test_arrows_engine_gets_aligned_buffers(shift: int) -> None:
    """It warns on stderr of every other buffer. A batch lies where it was received, which may be anywhere."""
    batch = pa.record_batch({"offset": pa.array([1, 2, 3]), "value": pa.array([b"a", None, b"c"])})
    received = pa.py_buffer(bytes(shift) + batch.serialize().to_pybytes()).slice(shift)
    moved = pa.ipc.read_record_batch(received, batch.schema)
    assert aligned(moved).equals(batch)
    buffers = [buffer for column in aligned(moved).columns for buffer in column.buffers() if buffer is not None]
    assert [buffer.address % 8 for buffer in buffers] == [0] * len(buffers)
    assert aligned(batch) is batch


def test_whatever_takes_a_stream_of_arrow_takes_a_frame(mq: Client) -> None:
    frame = mq.frame("orders", ["offset"], [0])
    assert pa.table(frame).num_rows == ROWS
    assert pl.DataFrame(frame).height == ROWS


def test_a_query_that_is_dropped_ends_its_reader(mq: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[ReaderCore] = []

    def all_closed() -> bool:
        return loop_thread_of(mq).do(lambda: all(reader.closed for reader in readers))

    frame = mq.frame("orders")
    asynchronous = frame._async
    monkeypatch.setattr(asynchronous, "_read", noted(asynchronous._read, readers))
    batches = frame.batches()
    assert next(batches).num_rows > 0
    assert not all_closed()
    batches.close()  # type: ignore[attr-defined]
    assert all_closed()
    assert len(readers) == 1


def test_the_asynchronous_frame_has_the_same_records(mq: Client) -> None:
    async def read() -> tuple[int, int, int]:
        async with AsyncClient(mq.servers) as client:
            frame = client.frame("orders", ["value"])
            rows = [batch.num_rows async for batch in frame.batches()]
            return sum(rows), (await frame.to_arrow()).num_rows, await frame.count()

    assert asyncio.run(read()) == (2 * ROWS,) * 3


WRONG: dict[str, tuple[dict[str, Any], type[TinymqError], str]] = {
    "a column": ({"columns": ["ofset"]}, InvalidRequest, "'ofset'.*offset"),
    "no column": ({"columns": []}, InvalidRequest, "columns"),
    "a column as text": ({"columns": "value"}, InvalidRequest, "columns"),
    "a column twice": ({"columns": ["value", "value"]}, InvalidRequest, "columns"),
    "both bounds": ({"offsets": (1, 2), "times": (T0, None)}, InvalidRequest, "both"),
    "bounds that are no pair": ({"offsets": 5}, InvalidRequest, "not a pair"),
    "a negative offset": ({"offsets": (-1, None)}, OffsetOutOfRange, "negative"),
    "the end first": ({"offsets": (9, 5)}, InvalidRequest, "behind"),
    "the later time first": ({"times": (T0.replace(hour=5), T0)}, InvalidRequest, "behind"),
    "a time without a zone": ({"times": (datetime(2026, 1, 1), None)}, InvalidRequest, "zone"),
    "a time as a number": ({"times": (5, None)}, InvalidRequest, "times"),
    "a partition that is not there": ({"partitions": [7]}, UnknownPartition, "7"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_a_typed_error(mq: Client, case: str) -> None:
    arguments, error, text = WRONG[case]
    with pytest.raises(error, match=text):
        mq.frame("orders", **arguments).ranges()


def test_a_wrong_topic_and_a_wrong_connection_are_typed_errors(mq: Client) -> None:
    with pytest.raises(UnknownTopic):
        mq.frame("odrers").to_arrow()
    with pytest.raises(InvalidRequest, match="connection"):
        mq.frame("orders").relation("duckdb")  # type: ignore[arg-type]
