"""One Spark session, and its timed operations. Scans end in Spark's `noop` sink, which needs all columns of
all rows.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from benchmarks.measure import MIB
from benchmarks.spark.ready import Ready
from pyspark_tinymq import register
from pyspark_tinymq.source import DefaultSource

ROOT = Path(__file__).resolve().parents[2]
DRIVER_MEMORY = "2g"
KAFKA_FETCH_BYTES = 8 * MIB
KAFKA_POLL_RECORDS = 10_000
MICRO_BATCHES = 20
STREAM_S_MAX = 60.0
FLIGHT = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, "
    "distance INT, hour INT, minute INT, time_hour STRING"
)


def session(folder: Path, java_home: Path, jars: str) -> SparkSession:
    """local[2], like a user's session: a JVM with its usual compiler and little memory."""
    os.environ |= {
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "spark"), str(ROOT)]),
    }
    builder = SparkSession.builder.master("local[2]").appName("bench-spark").config("spark.ui.enabled", "false")
    settings = {
        "spark.jars": jars,
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    spark.dataSource.register(Ready)
    return spark


def timed(rows: DataFrame) -> float:
    """Seconds of a whole scan."""
    started = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class Sources:
    """The same rows, three times."""

    spark: SparkSession
    parquet: str
    tinymq: str
    kafka: str
    topic: str
    sending: int  # the port of the process that sends bytes unchanged

    def read_parquet(self) -> DataFrame:
        return self.spark.read.parquet(self.parquet)

    def read_tinymq(self, replica: str = "follower") -> DataFrame:
        return tinymq(self.spark, self.tinymq, self.topic, replica=replica)

    def read_ready(self, records: int, port: int = 0) -> DataFrame:
        return self.spark.read.format("ready").options(records=records, port=port).load()

    def read_kafka(self) -> DataFrame:
        """With the largest fetches that its consumers accept."""
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.kafka)
        reader = reader.option("subscribe", self.topic).option("kafka.max.poll.records", KAFKA_POLL_RECORDS)
        reader = reader.option("kafka.max.partition.fetch.bytes", KAFKA_FETCH_BYTES)
        return reader.option("kafka.fetch.max.bytes", 2 * KAFKA_FETCH_BYTES).load()


def tinymq(spark: SparkSession, servers: str, topic: str, **options: str) -> DataFrame:
    return spark.read.format("tinymq").options(servers=servers, subscribe=topic, **options).load()


def planning_s(servers: str, topic: str) -> float:
    """From options to planned ranges, including holds: the driver's work before the first task."""
    source = DefaultSource({"servers": servers, "subscribe": topic})
    schema = source.schema()
    assert isinstance(schema, StructType)
    started = time.perf_counter()
    source.reader(schema).partitions()
    return time.perf_counter() - started


def json_s(spark: SparkSession, servers: str, topic: str) -> tuple[float, float]:
    """Seconds of a scan with the values parsed: by us in the task, and by Spark's from_json."""
    ours = tinymq(spark, servers, topic, valueFormat="json", valueSchema=FLIGHT)
    text = F.col("value").cast("string")
    theirs = tinymq(spark, servers, topic).withColumn("value", F.from_json(text, FLIGHT))
    return timed(ours), timed(theirs)


def empty_batch_s(spark: SparkSession, servers: str, topic: str, folder: Path) -> float:
    """Median seconds of a trigger without new records, of a stream that has read everything."""
    stream = (
        spark.readStream.format("tinymq").options(servers=servers, subscribe=topic, startingOffsets="latest").load()
    )
    sink = stream.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    query = sink.trigger(processingTime="50 milliseconds").start()
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")
    took: dict[str, float] = {}
    try:
        deadline = time.monotonic() + STREAM_S_MAX
        while len(took) < MICRO_BATCHES and time.monotonic() < deadline:
            for progress in query.recentProgress:
                if progress.numInputRows == 0:
                    took[progress.timestamp] = progress.durationMs["triggerExecution"] / 1000
            query.awaitTermination(1)
    finally:
        query.stop()
    assert took, "the stream made no progress"
    return statistics.median(took.values())


def driver_growth_bytes(spark: SparkSession, small: Callable[[], DataFrame], large: Callable[[], DataFrame]) -> int:
    """The extra memory of the driver's heap and its Python after the large scan, compared with the small one."""
    held = []
    for rows in (small, large):
        timed(rows())
        held.append(_heap_bytes(spark) + _own_bytes())
    return held[1] - held[0]


def _heap_bytes(spark: SparkSession) -> int:
    """The live heap after a garbage collection."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return int(runtime.totalMemory() - runtime.freeMemory())


def _own_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
