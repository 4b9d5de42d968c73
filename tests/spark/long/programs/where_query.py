"""SERVERS TOPIC RESULT [register], for spark-submit: counts a topic's records, and names the Python of the executor.
Without `register` the data source is not registered: Spark finds it in the environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import Row, SparkSession


def where(rows: Iterator[Row]) -> Iterator[tuple[int, str, str]]:
    """(records, path of Python, path of grpc) of a task."""
    import grpc

    yield sum(1 for _ in rows), sys.executable, grpc.__file__


def main(servers: str, topic: str, result: str, register: str = "") -> None:
    spark = SparkSession.builder.getOrCreate()
    if register:
        import pyspark_tinymq

        pyspark_tinymq.register(spark)
    records = spark.read.format("tinymq").option("servers", servers).option("subscribe", topic).load()
    counts, pythons, grpcs = zip(*records.select("offset").rdd.mapPartitions(where).collect(), strict=True)
    found = {"records": sum(counts), "pythons": sorted(set(pythons)), "grpc": sorted(set(grpcs))}
    Path(result).write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
