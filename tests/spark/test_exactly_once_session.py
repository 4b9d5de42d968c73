"""The exactly-once sink in real Spark: killed tasks, failed jobs, batches again, and a driver killed at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pyspark_tinymq
from pyspark_tinymq.session import session
from tests.spark.killed_sink import MARK, STEP, STEPS
from tests.spark.query_process import query_process
from tinymq import Client
from tinymq.testing.cluster import Cluster

pytestmark = pytest.mark.long
END_S = 280.0
Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@pytest.fixture(scope="module")
def mq(cluster: Cluster, spark: SparkSession) -> Iterator[Client]:
    pyspark_tinymq.register(spark)
    yield cluster.client()
    session.close_all()


def numbers(spark: SparkSession, count: int) -> DataFrame:
    """Numbers as text, in two tasks."""
    return spark.range(0, count, 1, 2).select(F.col("id").cast("string").alias("value"))


def save(df: DataFrame, cluster: Cluster, **options: str) -> None:
    writing = df.write.format("tinymq").options(servers=cluster.servers, exactlyOnce="true", **options)
    writing.mode("append").save()


def values(mq: Client, topic: str) -> list[int]:
    with mq.reader(topic, end="latest") as reader:
        return sorted(int(message.value or b"-1") for message in reader)


def failing(attempts: int) -> Function:
    """Fail the first attempts of task 1 behind its rows."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        if context is not None and context.partitionId() == 1 and context.attemptNumber() < attempts:
            raise RuntimeError("this attempt fails")

    return pass_on


def test_a_batch_is_written_once_although_a_task_is_tried_again(
    spark: SparkSession, cluster: Cluster, mq: Client
) -> None:
    mq.admin.create_topic("again", partitions=2)
    df = numbers(spark, 100)
    for _ in range(2):  # the second one is a scheduler's
        save(df.mapInArrow(failing(1), df.schema), cluster, topic="again", txnAppId="nightly", txnVersion="20130101")
        assert values(mq, "again") == list(range(100))
    save(df, cluster, topic="again", txnAppId="nightly", txnVersion="20130102")
    assert values(mq, "again") == sorted([*range(100)] * 2)


def test_a_job_that_fails_shows_nothing(spark: SparkSession, cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("failed", partitions=2)
    df = numbers(spark, 100)
    with pytest.raises(PySparkException):
        save(df.mapInArrow(failing(9), df.schema), cluster, topic="failed")
    assert values(mq, "failed") == []
    save(df, cluster, topic="failed")
    assert values(mq, "failed") == list(range(100))


def test_a_write_in_foreach_batch_needs_a_name(
    spark: SparkSession, cluster: Cluster, mq: Client, tmp_path: Path
) -> None:
    for topic in ("source", "each"):
        mq.admin.create_topic(topic)
    mq.send("source", b"7")

    def run(**names: str) -> None:
        def each(df: DataFrame, batch: int) -> None:
            given = {name: str(batch) if name == "txnVersion" else text for name, text in names.items()}
            save(df.select("value"), cluster, topic="each", **given)

        reading = spark.readStream.format("tinymq").options(servers=cluster.servers, subscribe="source")
        rows = reading.option("startingOffsets", "earliest").load()
        query = rows.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path))
        query.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(PySparkException, match="needs a name"):
        run()
    run(txnAppId="each", txnVersion="batch")
    for note in (tmp_path / "commits").glob("*0*"):
        note.unlink()
    run(txnAppId="each", txnVersion="batch")
    assert values(mq, "each") == [7]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", STEPS)
def test_a_stream_whose_driver_is_killed_at_a_step_writes_each_row_once(step: str, tmp_path: Path) -> None:
    """Several tasks, and several micro-batches. The query that is started again finds zombies, staged rows, and
    micro-batches that are committed, which Spark does not know of."""
    with Cluster(nodes=3) as brokers:
        mq = brokers.client()
        for topic in ("input", "output"):
            mq.admin.create_topic(topic, partitions=2)
        with mq.producer() as producer:
            for number in range(100):
                producer.send("input", b"%d" % number, partition=number % 2)
        outcomes = []
        for run in range(2):
            log = tmp_path / f"log-{run}"
            with query_process(brokers.servers, tmp_path, "killed", log, **{STEP: step}) as query:
                outcomes.append(query.wait(END_S))
        assert (tmp_path / MARK).exists(), (tmp_path / "log-0").read_text()[-5000:]
        assert outcomes == [-9, 0], (tmp_path / "log-1").read_text()[-5000:]
        assert values(mq, "output") == list(range(100))
