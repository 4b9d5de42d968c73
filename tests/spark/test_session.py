"""The data source in a real Spark session, and the clients that its Python workers keep."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

import pyspark_tinymq
from pyspark_tinymq.options.options import BATCH
from pyspark_tinymq.options.settings import Source, read_source
from pyspark_tinymq.session import session
from pyspark_tinymq.session.replicas import LOOPBACK
from tests.spark.reading import send
from tinymq import Client
from tinymq.testing.cluster import Cluster

DEADLINE_S = 60.0
OPTIONS_PAGE = (Path(__file__).parents[2] / "docs" / "spark-options.md").read_text()
LAG = OPTIONS_PAGE.partition("## Lag")[2].partition("```python\n")[2].partition("```")[0]


@pytest.fixture(scope="module")
def mq(cluster: Cluster, spark: SparkSession) -> Iterator[Client]:
    pyspark_tinymq.register(spark)
    yield cluster.client()
    session.close_all()


def _load(spark: SparkSession, cluster: Cluster, **options: object) -> DataFrame:
    return spark.read.format("tinymq").options(servers=cluster.servers, **options).load()  # type: ignore[arg-type]


def test_a_batch_stays_what_it_was(spark: SparkSession, cluster: Cluster, mq: Client) -> None:
    """The frame is fixed from its first use on, and followers serve it."""
    mq.admin.create_topic("staying", partitions=2)
    send(cluster, "staying", 500)
    send(cluster, "staying", 100, partition=1, first=500)
    frame = _load(spark, cluster, subscribe="staying", scanId="staying", minPartitions=4)
    rows = frame.select("partition", "offset", "value").collect()
    wanted = [(0, number, b"%d" % number) for number in range(500)]
    wanted += [(1, number, b"%d" % (500 + number)) for number in range(100)]
    assert sorted((row.partition, row.offset, bytes(row.value)) for row in rows) == wanted
    send(cluster, "staying", 50, first=600)
    assert frame.count() == 600
    served = mq.admin.describe_scan("staying").served
    assert {each.role for each in served} == {"follower"}
    assert sum(each.records for each in served) >= 1200  # twice; a batch at the edge of two tasks goes to both


def test_columns_headers_and_json(spark: SparkSession, cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("documents")
    for value in (b'{"a": 1, "b": {"c": "x"}}', b"no json", None):
        mq.send("documents", value, key=b"k", headers={"h": b"1"})
    schema = "a INT NOT NULL, b STRUCT<c: STRING NOT NULL>, _corrupt_record STRING"  # nullable all the same
    options = {"subscribe": "documents", "includeHeaders": "true", "valueFormat": "json", "valueSchema": schema}
    frame = _load(spark, cluster, **options)
    found = frame.select("offset", "value.*", "headers", "topic").orderBy("offset").collect()
    assert [(row.offset, row.a, row.b and row.b.c, row._corrupt_record) for row in found] == [
        (0, 1, "x", None),
        (1, None, None, "no json"),
        (2, None, None, None),
    ]
    assert {(row.topic, row.headers[0].key, bytes(row.headers[0].value)) for row in found} == {("documents", "h", b"1")}
    with pytest.raises(PySparkException, match=r"documents/0, offset 1: malformed JSON"):
        _load(spark, cluster, **options, mode="FAILFAST").collect()


def test_a_refusal_is_shown_to_the_user(spark: SparkSession, cluster: Cluster, mq: Client) -> None:
    with pytest.raises(AnalysisException, match="did you mean 'startingOffsets'"):
        _load(spark, cluster, subscribe="x", startingOffset="earliest")
    with pytest.raises(AnalysisException, match="there is no topic 'nowhere'"):
        _load(spark, cluster, subscribe="nowhere").collect()
    with pytest.raises(AnalysisException, match=r"at character 3, 'INTT': .* did you mean INT"):
        _load(spark, cluster, subscribe="x", valueFormat="json", valueSchema="a INTT")


def test_sql_tables_are_read_and_written(spark: SparkSession, cluster: Cluster, mq: Client) -> None:
    """Tables have their own options, of which Spark passes none, whichever table the rows come from. The page, which
    long/test_page.py runs, has streams of tables.
    """
    for topic in ("left", "right"):
        mq.admin.create_topic(topic)
    send(cluster, "left", 3)
    brokers = f"servers '{cluster.servers}'"
    spark.sql(f"CREATE TABLE src USING tinymq OPTIONS ({brokers}, subscribe 'left', topic 'left')")
    spark.sql(f"CREATE TABLE dst USING tinymq COMMENT 'c' TBLPROPERTIES ({brokers}, subscribe 'right', topic 'right')")
    reads = spark.catalog.createTable("reads", source="tinymq", servers=cluster.servers, subscribe="right")
    try:
        spark.sql("INSERT INTO dst (key, value) SELECT key, concat(value, X'21') FROM src WHERE offset > 0")
        with pytest.raises(AnalysisException, match="Spark does not say which table is written to"):
            spark.sql("INSERT INTO dst SELECT * FROM src")
        for rows in ("(value) VALUES (X'37')", "(topic, value) SELECT CAST(key AS STRING), value FROM src"):
            with pytest.raises(AnalysisException, match="the table names no topic to write to"):  # by no task
                spark.sql(f"INSERT INTO reads {rows}")
        spark.sql("INSERT INTO reads (topic, value) SELECT 'right', X'3721'")
        assert sorted(bytes(row.value) for row in reads.collect()) == [b"1!", b"2!", b"7!"]
        assert mq.admin.offsets("left")[0].high_watermark == 3
        (shown,) = (row.comment for row in spark.sql("DESCRIBE reads").collect() if row.col_name == "topic")
        assert shown == f"servers={cluster.servers}, subscribe=right"
    finally:
        for name in ("src", "dst", "reads"):
            spark.sql(f"DROP TABLE {name}")


def test_a_stream_restarted_from_its_checkpoint(
    spark: SparkSession, cluster: Cluster, mq: Client, tmp_path: Path
) -> None:
    """Bounded micro-batches until the topic is read; after a restart the records since then; no gap, no repeat."""
    mq.admin.create_topic("flowing", partitions=2)
    wanted: list[tuple[int, int]] = []
    found: list[tuple[int, int]] = []  # of all micro-batches: this sink does not drop a repeated one

    def each(rows: DataFrame, batch: int) -> None:
        found.extend((row.partition, row.offset) for row in rows.collect())

    for run in range(2):
        for partition in range(2):
            send(cluster, "flowing", 30, partition=partition, first=30 * run)
        wanted += [(partition, 30 * run + number) for partition in range(2) for number in range(30)]
        options = {"servers": cluster.servers, "subscribe": "flowing", "startingOffsets": "earliest"}
        limits = {"maxOffsetsPerTrigger": "40", "groupId": "flowing-spark"}
        frame = spark.readStream.format("tinymq").options(**options, **limits).load()
        query = (
            frame.select("partition", "offset")
            .writeStream.foreachBatch(each)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(DEADLINE_S)
        assert query.exception() is None
        assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [40, 20]
        assert sorted(found) == sorted(wanted)
    known: dict[str, Any] = {}
    exec(LAG, known)
    assert known["lag"](query.lastProgress) == {("flowing", "0"): 0, ("flowing", "1"): 0}
    ends = json.loads((tmp_path / "offsets" / "3").read_text().splitlines()[-1])
    assert ends["flowing"] == {"0": 60, "1": 60}
    assert {channel.lag for channel in mq.admin.list_channels("flowing")} == {0}


def test_a_task_without_a_replica_fails_and_spark_tries_it_again(
    spark: SparkSession, cluster: Cluster, mq: Client
) -> None:
    """The two brokers with the partition are dead, and are back when the task runs for the second time."""
    mq.admin.create_topic("twofold", replication_factor=2)
    send(cluster, "twofold", 50)
    frame = _load(spark, cluster, subscribe="twofold", unreachableMs=3000)
    assert frame.count() == 50
    dead = mq.admin.describe_topic("twofold").partitions[0].replicas
    for broker in dead:
        cluster.kill(broker)
    counted: list[int] = []
    spark.sparkContext.setJobGroup("dying", "reads what nobody serves")
    counting = threading.Thread(target=lambda: counted.append(_counted(spark, frame)))
    counting.start()
    _wait_for_a_failure(spark, "dying")
    for broker in dead:
        cluster.start(broker)
    counting.join(DEADLINE_S)
    assert counted == [50]


def _counted(spark: SparkSession, frame: DataFrame) -> int:
    spark.sparkContext.setJobGroup("dying", "reads what nobody serves")
    return frame.count()


def _wait_for_a_failure(spark: SparkSession, group: str) -> None:
    """Return once a task of the group has failed."""
    tracker: Any = spark.sparkContext.statusTracker()
    deadline_s = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while time.monotonic() < deadline_s:
        for job in tracker.getJobIdsForGroup(group):
            for stage in getattr(tracker.getJobInfo(job), "stageIds", ()):
                info = tracker.getStageInfo(stage)
                if info is not None and info.numFailedTasks > 0:
                    return
        pause.wait(0.05)
    raise AssertionError("no task failed")


# ---- the clients of a process ------------------------------------------------------------------------------


def _source(servers: str, **options: str) -> Source:
    return read_source({"servers": servers, "subscribe": "x"} | options, BATCH)


def test_a_process_keeps_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    session.close_all()
    one = session.client(_source("a:1"))
    assert session.client(_source("a:1", replica="any")) is one
    assert session.client(_source("b:1")) is not one
    assert session.client(_source("a:1", rack="r1")) is not one
    monkeypatch.setattr("pyspark_tinymq.session.session.getpid", lambda: -7)
    assert session.client(_source("a:1")) is not one  # of a child
    monkeypatch.undo()
    assert session.client(_source("a:1")) is one
    for number in range(session.CLIENTS_MAX):
        session.client(_source(f"c:{number + 1}"))
    assert session.client(_source("a:1")) is not one
    session.close_all()


def test_where_a_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert session.hosts() > LOOPBACK
    assert "" not in session.hosts()
    monkeypatch.setenv(session.RACK, "r7")
    assert session.rack(_source("a:1")) == "r7"
    assert session.rack(_source("a:1", rack="r1")) == "r1"
