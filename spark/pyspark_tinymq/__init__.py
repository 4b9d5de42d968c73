"""Spark's data source `tinymq`: topics as DataFrames, batch and streaming, read from follower replicas.

    import pyspark_tinymq
    pyspark_tinymq.register(spark)
    spark.read.format("tinymq").option("servers", "localhost:7070").option("subscribe", "flights").load()

Import-light: Spark imports this module to find the name, in every session. Neither grpc nor tinymq's client is loaded.
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
    """Make `format("tinymq")` known to a session. Spark finds it by itself only where this package lies on the path of
    its Python workers as a folder: not with `--py-files`. Again: nothing changes."""
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
