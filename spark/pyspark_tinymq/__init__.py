"""Spark's data source `tinymq`: topics as DataFrames, batch and streaming, read from follower replicas.

    import pyspark_tinymq
    pyspark_tinymq.register(spark)
    spark.read.format("tinymq").option("servers", "localhost:7070").option("subscribe", "flights").load()

Spark imports this module in every session to find the name of the data source. The module therefore loads neither grpc
nor tinymq's client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinymq.base import extras

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_tinymq.source import DefaultSource
    from pyspark_tinymq.write.repeats import drop_repeats

__all__ = ["DefaultSource", "drop_repeats", "register"]


def register(spark: SparkSession) -> None:
    """Register `format("tinymq")` with a session. A second call changes nothing.

    Spark finds the data source without this call only if this package is a directory on the path of its Python workers,
    which it is not with `--py-files`.
    """
    from pyspark_tinymq.source import DefaultSource

    spark.dataSource.register(DefaultSource)


def __getattr__(name: str) -> object:
    if name == "DefaultSource":
        with extras.required("the Spark data source"):
            from pyspark_tinymq.source import DefaultSource

        return DefaultSource
    if name == "drop_repeats":
        with extras.required("the Spark data source"):
            from pyspark_tinymq.write.repeats import drop_repeats

        return drop_repeats
    raise AttributeError(f"module 'pyspark_tinymq' has no attribute {name!r}")
