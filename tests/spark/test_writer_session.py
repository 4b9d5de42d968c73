"""The sink in a real Spark session, and drop_repeats on what it wrote: tasks killed, batches replayed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pyspark_tinymq
from pyspark_tinymq import drop_repeats, session
from pyspark_tinymq.place import PLACE
from tinymq import Client
from tinymq.errors import InvalidConfig
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


def numbers(df: DataFrame) -> list[int]:
    return sorted(int(row.value.decode().rstrip(".")) for row in df.select("value").collect())


def killed_once(servers: str, topic: str) -> Function:
    """Of task 1's first attempt: when the sink has written some of what passes here, this process is killed."""

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
            found += sum(_task_of(message.headers) == 1 for message in reader.poll(1.0))
            if found:
                return
    raise AssertionError("nothing of task 1 was written")


def _task_of(headers: object) -> int:
    place = dict(headers)[PLACE]  # type: ignore[call-overload]
    return int(place.split(b"/")[2])


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
    """Equal rows at places of their own, records without a place, and one place with two contents all stay."""
    mq.admin.create_topic("kept")
    save(spark.sql("SELECT 'equal' AS value FROM range(4)"), cluster, topic="kept")
    for _ in range(2):
        save(spark.sql("SELECT 'without' AS value FROM range(2)"), cluster, topic="kept", includePlace="false")
    for text in ("one", "other", "other"):
        df = spark.sql(f"SELECT '{text}' AS value, CAST(NULL AS STRING) AS key")
        save(df, cluster, topic="kept", txnAppId="nightly", txnVersion="7")
    save(spark.sql("SELECT CAST(NULL AS STRING) AS value, 'one' AS key"), cluster, topic="kept", txnAppId="nightly",
         txnVersion="7")  # fmt: skip
    counts = drop_repeats(load(spark, cluster, "kept")).groupBy("value").count().collect()
    assert {row["value"] and bytes(row["value"]): row["count"] for row in counts} == {
        b"equal": 4, b"without": 4, b"one": 1, b"other": 1, None: 1,
    }  # fmt: skip


def test_a_batch_that_is_run_again_after_a_restart_is_repeated_under_its_places(
    spark: SparkSession, cluster: Cluster, mq: Client, tmp_path: Path
) -> None:
    """A query dies after its sink has committed, before Spark has noted it: the same batch comes again. What
    foreachBatch writes carries the same query and batch, too. A stream drops the repeats of both."""
    for topic in ("input", "streamed", "each"):
        mq.admin.create_topic(topic)
    save(rows(spark, 30), cluster, topic="input", includePlace="false")

    def each(df: DataFrame, batch: int) -> None:
        save(df.select("value"), cluster, topic="each")

    for again in (False, True):
        for topic in ("streamed", "each"):
            reading = spark.readStream.format("tinymq").option("servers", cluster.servers).option("subscribe", "input")
            values = reading.option("startingOffsets", "earliest").load().select("value")
            checkpoint = tmp_path / topic
            if again:
                for note in (checkpoint / "commits").glob("*0*"):
                    note.unlink()
            if topic == "each":
                query = values.writeStream.foreachBatch(each)
            else:
                query = values.writeStream.format("tinymq").options(servers=cluster.servers, topic=topic)
            running = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
            assert running.awaitTermination(DEADLINE_S)  # type: ignore[arg-type]
    for topic in ("streamed", "each"):
        written = load(spark, cluster, topic)
        assert written.count() == 60
        assert numbers(drop_repeats(written)) == list(range(30))
    both = spark.readStream.format("tinymq").options(servers=cluster.servers, subscribe="streamed")
    stream = drop_repeats(both.options(includeHeaders="true", startingOffsets="earliest").load(), within="1 hour")
    sunk = stream.select("value").writeStream.format("memory").queryName("kept").trigger(availableNow=True).start()
    assert sunk.awaitTermination(DEADLINE_S)  # type: ignore[arg-type]
    assert numbers(spark.table("kept")) == list(range(30))


def test_writes_that_are_refused_say_what_to_write(
    spark: SparkSession, cluster: Cluster, mq: Client, tmp_path: Path
) -> None:
    """Spark itself refuses a batch without a mode, and names the one that is right."""
    df = rows(spark, 2)
    writing = df.write.format("tinymq").options(servers=cluster.servers, topic="nowhere")
    with pytest.raises(PySparkException, match="Append"):
        writing.save()
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writing.mode("overwrite").save()
    with pytest.raises(PySparkException, match=r"UnknownTopic: .*nowhere"):
        save(df.coalesce(1), cluster, topic="nowhere")
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
