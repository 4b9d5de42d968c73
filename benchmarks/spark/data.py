"""The rows of all three systems: created once, and loaded through each system's own interface, so that every scan reads
the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from rich.progress import track

from benchmarks.measure import BATCH_RECORDS, MIB, RECORD_BYTES
from examples.flights import source
from tinymq import Client

KEY_BYTES = 8
PARTITIONS = 4
REPLICAS = 3
BUFFER_BATCHES = 32
CREATE_S_MAX = 300.0  # a topic of a thousand partitions: three thousand replicas
COLUMNS = "key", "value", "topic", "partition", "offset", "timestamp", "timestampType"
"""The columns of all three: common to Spark's Kafka source and ours."""


def batches(records: int) -> Iterator[pa.RecordBatch]:
    """Records of 1 KiB that do not compress, each different: a Parquet dictionary would shrink repeats to nothing."""
    for start in range(0, records, BATCH_RECORDS):
        count = min(BATCH_RECORDS, records - start)
        keys = _binary(count, KEY_BYTES)
        yield pa.RecordBatch.from_arrays([keys, _binary(count, RECORD_BYTES)], ["key", "value"])


def _binary(count: int, size: int) -> pa.Array:
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), count, [None, pa.py_buffer(os.urandom(count * size))])
    return fixed.cast(pa.binary())


def load_tinymq(servers: str, topic: str, records: int) -> None:
    """Send the rows evenly over the partitions, acknowledged by a majority."""
    with Client(servers) as client:
        client.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=REPLICAS)
        with client.producer(buffer_bytes_max=BUFFER_BATCHES * MIB) as producer:
            made = batches(records)
            for i, batch in enumerate(track(made, f"{topic} to tinymq", -(-records // BATCH_RECORDS))):
                producer.send_batch(topic, batch, partition=i % PARTITIONS)


def load_flights(servers: str, topic: str) -> int:
    """Send 336,776 flights as JSON values. Returns their number."""
    rows = source.load(source.find_data())
    with Client(servers) as client:
        client.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=REPLICAS)
        with client.producer() as producer:
            for flight in track(rows, f"{topic} to tinymq"):
                producer.send(topic, flight.value, key=flight.key)
    return len(rows)


def load_wide(servers: str, topic: str, partitions: int) -> None:
    """Send a record to each of many partitions: a planned range gets a hold, an empty one does not."""
    with Client(servers) as client:
        client.admin.create_topic(topic, partitions=partitions, replication_factor=REPLICAS, timeout=CREATE_S_MAX)
        with client.producer() as producer:
            for partition in range(partitions):
                producer.send(topic, b"one", partition=partition)


def load_parquet(rows: DataFrame, folder: Path) -> str:
    """Write the rows that Spark reads from tinymq to Parquet."""
    path = str(folder / "parquet")
    rows.select(*COLUMNS).write.parquet(path)
    return path


def load_kafka(spark: SparkSession, parquet: str, servers: str, topic: str) -> None:
    """Load Kafka from the Parquet files: each record gets the partition that it has in tinymq."""
    rows = spark.read.parquet(parquet).selectExpr("key", "value", f"'{topic}' AS topic", "partition")
    sink = rows.write.format("kafka").option("kafka.bootstrap.servers", servers).option("kafka.acks", "all")
    sink.option("kafka.batch.size", MIB).option("kafka.linger.ms", 5).option("kafka.max.request.size", 8 * MIB).save()
