"""The sink in a real Spark session, and drop_repeats on its records: killed tasks, replayed batches."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter

import pyspark_tinymq
from pyspark_tinymq import drop_repeats
from pyspark_tinymq.session import session
from pyspark_tinymq.write.place import PLACE, TaskPlace
from pyspark_tinymq.write.sink import read_sink
from pyspark_tinymq.write.writer import send
from tinymq import Client
from tinymq.base.errors import InvalidConfig
from tinymq.testing.cluster import Cluster

DEADLINE_S = 60.0
Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@pytest.fixture(scope="module")
def mq(cluster: Cluster, spark: SparkSession) -> Iterator[Client]:
    pyspark_tinymq.register(spark)
    yield cluster.client()
    session.close_all()


def rows(spark: SparkSession, count: int, size: int = 0) -> DataFrame:
    """Numbers as text, in two tasks."""
    number = F.col("id").cast("string")
    return spark.range(0, count, 1, 2).select(F.concat(number, F.repeat(F.lit("."), size)).alias("value"))


def save(df: DataFrame, cluster: Cluster, **options: str) -> None:
    df.write.format("tinymq").options(servers=cluster.servers, **options).mode("append").save()


def load(spark: SparkSession, cluster: Cluster, topic: str) -> DataFrame:
    reading = spark.read.format("tinymq").option("servers", cluster.servers).option("subscribe", topic)
    return reading.option("includeHeaders", "true").load()


def stream(spark: SparkSession, cluster: Cluster, topic: str, **options: str) -> DataFrame:
    reading = spark.readStream.format("tinymq").options(servers=cluster.servers, subscribe=topic, **options)
    return reading.option("startingOffsets", "earliest").load()


def finish(query: DataStreamWriter) -> None:
    """Run drop_repeats over the topic."""
    running = query.trigger(availableNow=True).start()
    assert running.awaitTermination(DEADLINE_S)  # type: ignore[arg-type]


def write(cluster: Cluster, topic: str, batch: pa.RecordBatch, place: TaskPlace, attempt: int = 0) -> None:
    """Write like a task of the sink, without Spark."""
    send(read_sink({"servers": cluster.servers, "topic": topic}), iter([batch]), place, attempt)


def place_of(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """The places in the headers that have one."""
    return (dict(headers)[PLACE] or b"").decode()


def numbers(df: DataFrame) -> list[int]:
    return sorted(int(row.value.decode().rstrip(".")) for row in df.select("value").collect())


def killed_once(servers: str, topic: str) -> Function:
    """Kill this process in task 1's first attempt, when the sink has written some of the rows."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        dies = context is not None and context.partitionId() == 1 and context.attemptNumber() == 0
        for number, batch in enumerate(batches):
            yield batch
            if dies and number == 8:
                _wait_for_records(servers, topic)
                os.kill(os.getpid(), signal.SIGKILL)

    return pass_on


def _wait_for_records(servers: str, topic: str) -> None:
    from tinymq import Client

    with Client(servers) as mq, mq.reader(topic) as reader:
        found = 0
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            found += sum(place_of(message.headers).split("/")[2] == "1" for message in reader.poll(1.0))
            if found:
                return
    raise AssertionError("task 1 has written nothing")


def test_all_columns_arrive(spark: SparkSession, cluster: Cluster, mq: Client) -> None:
    """Rows of Spark's own types; rows that were read can be written unchanged."""
    for topic in ("columns", "copy"):
        mq.admin.create_topic(topic, partitions=2)
    df = spark.sql(
        "SELECT 'k' AS key, to_json(struct(1 AS a)) AS value, 'columns' AS topic, 1 AS partition,"
        " array(struct('h' AS key, X'01' AS value), struct('h' AS key, CAST(NULL AS BINARY) AS value)) AS headers,"
        " timestamp_micros(1357041600123456) AS timestamp"
    )
    save(df, cluster)
    save(load(spark, cluster, "columns"), cluster, topic="copy", includePlace="false")
    for topic in ("columns", "copy"):
        with mq.reader(topic, end="latest") as reader:
            (message,) = reader
        assert (message.key, message.value, message.partition) == (b"k", b'{"a":1}', 1)
        assert message.headers[:2] == (("h", b"\x01"), ("h", None))
        assert place_of(message.headers).endswith("/0/0/0")
        assert message.timestamp == datetime(2013, 1, 1, 12, microsecond=123456, tzinfo=UTC)


def test_a_task_that_is_killed_writes_again_and_repeats_are_dropped(
    spark: SparkSession, cluster: Cluster, mq: Client
) -> None:
    mq.admin.create_topic("killed", partitions=2)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        df = rows(spark, 1_200, 4_000)
        save(df.mapInArrow(killed_once(cluster.servers, "killed"), df.schema), cluster, topic="killed")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    written = load(spark, cluster, "killed").cache()
    assert written.count() > 1_200
    kept = drop_repeats(written)
    assert kept.columns == written.columns
    assert numbers(kept) == list(range(1_200))
    assert numbers(drop_repeats(written, by="place")) == list(range(1_200))
    written.unpersist()


def test_nothing_is_dropped_that_is_not_there_another_time(spark: SparkSession, cluster: Cluster, mq: Client) -> None:
    """Equal rows at different places, records without a place, and one place with two contents all stay."""
    mq.admin.create_topic("kept")
    written: list[tuple[bytes | None, bytes | None, int]] = []  # value, key, attempt: all at the same place
    written += [(b"one", None, 0), (b"other", None, 1), (b"other", None, 2), (None, b"one", 3), (b"one", b"", 4)]
    for value, key, attempt in written:
        one = pa.RecordBatch.from_pydict({"value": pa.array([value], pa.binary()), "key": pa.array([key], pa.binary())})
        write(cluster, "kept", one, TaskPlace("nightly", 7, 0), attempt)
    write(cluster, "kept", pa.RecordBatch.from_pydict({"value": [b"equal"] * 4}), TaskPlace("other", 0, 0))
    for _ in range(4):
        mq.send("kept", b"without")
    counts = drop_repeats(load(spark, cluster, "kept")).groupBy("key", "value").count().collect()
    assert {(row["key"], row["value"]): row["count"] for row in counts} == {
        (None, b"one"): 1, (None, b"other"): 1, (b"one", None): 1, (b"", b"one"): 1, (None, b"equal"): 4,
        (None, b"without"): 4,
    }  # fmt: skip


@pytest.mark.long
def test_a_batch_that_is_run_again_after_a_restart_is_repeated_under_its_places(
    spark: SparkSession, cluster: Cluster, mq: Client, tmp_path: Path
) -> None:
    """A query dies after its sink has committed but before Spark has noted it. The same batch comes again with the same
    id, and a stream drops its repeats.
    """
    for topic in ("input", "streamed"):
        mq.admin.create_topic(topic)
    write(
        cluster, "input", pa.RecordBatch.from_pydict({"value": [b"%d" % n for n in range(30)]}), TaskPlace("in", 0, 0)
    )
    for again in (False, True):
        if again:
            for note in (tmp_path / "commits").glob("*0*"):
                note.unlink()
        values = stream(spark, cluster, "input").select("value")
        query = values.writeStream.format("tinymq").options(servers=cluster.servers, topic="streamed")
        finish(query.option("checkpointLocation", str(tmp_path)))
    places = [place_of(row.headers) for row in load(spark, cluster, "streamed").collect()]
    query_id = json.loads((tmp_path / "metadata").read_text())["id"]
    assert sorted(places) == sorted([f"{query_id}/0/0/{n}" for n in range(30)] * 2)
    kept = drop_repeats(stream(spark, cluster, "streamed", includeHeaders="true"), within="1 hour")
    finish(kept.select("value").writeStream.format("memory").queryName("kept"))
    assert numbers(spark.table("kept")) == list(range(30))


@pytest.mark.long
def test_rows_written_in_foreach_batch_have_the_streams_places(
    spark: SparkSession, cluster: Cluster, mq: Client, tmp_path: Path
) -> None:
    """Deterministic rows, so that a repeated batch repeats them."""
    for topic in ("source", "each"):
        mq.admin.create_topic(topic)
    mq.send("source", b"7")

    def each(df: DataFrame, batch: int) -> None:
        save(df.select("value"), cluster, topic="each")

    values = stream(spark, cluster, "source")
    finish(values.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path)))
    query_id = json.loads((tmp_path / "metadata").read_text())["id"]
    with mq.reader("each", end="latest") as reader:
        assert [place_of(message.headers) for message in reader] == [f"{query_id}/0/0/0"]


def test_writes_that_are_refused_say_what_to_write(
    spark: SparkSession, cluster: Cluster, mq: Client, tmp_path: Path
) -> None:
    """Spark refuses a batch without a mode; for other modes our error names the right one."""
    df = rows(spark, 2)
    writing = df.write.format("tinymq").options(servers=cluster.servers, topic="nowhere")
    with pytest.raises(PySparkException, match="Append"):
        writing.save()
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writing.mode("overwrite").save()
    with pytest.raises(AnalysisException, match=r"UnknownTopic: .*nowhere"):  # before a task is started
        save(df, cluster, topic="nowhere")
    counts = spark.readStream.format("rate").load().groupBy("value").count().selectExpr("string(count) AS value")
    query = counts.writeStream.format("tinymq").options(servers=cluster.servers, topic="nowhere")
    running = query.option("checkpointLocation", str(tmp_path)).outputMode("complete").start()
    with pytest.raises(PySparkException, match="a topic only grows"):
        running.awaitTermination(int(DEADLINE_S))


def test_drop_repeats_says_what_it_needs(spark: SparkSession, cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("needs")
    df = load(spark, cluster, "needs")
    with pytest.raises(InvalidConfig, match="needs the columns headers, offset"):
        drop_repeats(df.drop("headers", "offset"))
    with pytest.raises(InvalidConfig, match="by='row'"):
        drop_repeats(df, by="row")
    with pytest.raises(InvalidConfig, match="no meaning in a batch"):
        drop_repeats(df, within="1 hour")
