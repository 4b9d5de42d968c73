"""Readers like Spark's, in this process: planned and read without a JVM, against real brokers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_tinymq.options.columns import spark_schema
from pyspark_tinymq.plan.task import RangePartition
from pyspark_tinymq.read.batch import BatchReader
from pyspark_tinymq.read.stream import StreamReader
from pyspark_tinymq.source import DefaultSource
from tinymq.testing.cluster import Cluster

Row = tuple[str, int, int, bytes]
"""topic, partition, offset, value"""


def batch(cluster: Cluster, **options: object) -> BatchReader:
    made = _source(cluster, options).reader(spark_schema(options.get("includeHeaders") == "true"))
    assert isinstance(made, BatchReader)
    return made


def stream(cluster: Cluster, **options: object) -> StreamReader:
    made = _source(cluster, options).streamReader(spark_schema(options.get("includeHeaders") == "true"))
    assert isinstance(made, StreamReader)
    return made


def _source(cluster: Cluster, options: dict[str, object]) -> DefaultSource:
    return DefaultSource({"servers": cluster.servers} | {name: str(value) for name, value in options.items()})


def planned(reader: BatchReader) -> list[RangePartition]:
    return ranges(reader.partitions())


def ranges(partitions: Sequence[InputPartition]) -> list[RangePartition]:
    assert all(isinstance(each, RangePartition) for each in partitions)
    return [each for each in partitions if isinstance(each, RangePartition)]


def spans(partitions: Iterable[InputPartition]) -> list[tuple[str, int, int]]:
    """(topic/partition, start, end) of each range."""
    return [(each.where, each.start, each.end) for each in partitions if isinstance(each, RangePartition)]


def rows(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    names = ("topic", "partition", "offset", "value")
    return [row for each in batches for row in zip(*(each.column(n).to_pylist() for n in names), strict=True)]


def read(reader: BatchReader | StreamReader, partitions: Sequence[InputPartition]) -> list[Row]:
    """The rows that the tasks of a plan read, in order."""
    return [row for part in partitions for row in rows(reader.read(part))]


def send(cluster: Cluster, topic: str, count: int, *, partition: int = 0, first: int = 0, **settings: Any) -> None:
    """Send records whose values are their numbers. Returns when all are acknowledged."""
    with cluster.client() as mq, mq.producer(**settings) as producer:
        for number in range(first, first + count):
            producer.send(topic, b"%d" % number, partition=partition)


def numbers(found: Iterable[Row]) -> list[int]:
    """The values of the records of `send`."""
    return [int(value) for _, _, _, value in found]
