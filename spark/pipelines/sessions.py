"""The Spark session of a program, and how a program ends. Nothing about records."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from py4j.protocol import Py4JError
from pyspark import SparkConf
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import pyspark_tinymq
from pipelines.refused import Refused
from tinymq.base.errors import TinymqError
from tinymq.cli.common.exits import Exit, explain

STACKS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""These loggers print a Java stack as JSON for each query that Spark refuses. The raised error has the reason."""

SHUFFLE_PARTITIONS = 4  # Spark's default of 200 is for larger data: here it would be 200 files for each batch


def session(name: str) -> SparkSession:
    """Return the session for spark-submit's options, in UTC, with the data source `tinymq`. Times of records are UTC;
    in another zone, windows would start at other moments.
    """
    conf = SparkConf()
    conf.setIfMissing("spark.sql.shuffle.partitions", str(SHUFFLE_PARTITIONS))
    conf.setIfMissing("spark.master", "local[*]")
    conf.set("spark.sql.session.timeZone", "UTC")
    spark = SparkSession.builder.config(conf=conf).appName(name).getOrCreate()
    pyspark_tinymq.register(spark)
    for name in STACKS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return spark


def ended(work: Callable[[], bool]) -> int:
    """Run `work` and return its exit code: 0 for success, 1 for a failure, 2 for a refused request, 130 after Ctrl-C.

    Errors that a user or a broker can cause are printed on stderr in one or two lines. A bug keeps its traceback.
    """
    try:
        return Exit.OK if work() else Exit.FAILED
    except Refused as refused:
        print(f"error: {refused}", file=sys.stderr)
        return Exit.USAGE
    except TinymqError as error:
        explain(error)
        return Exit.FAILED
    except KeyboardInterrupt:
        print("stopped; what is done is kept", file=sys.stderr)
        return Exit.INTERRUPTED
    except (PySparkException, Py4JError) as error:
        print(f"error: Spark gave up: {error}", file=sys.stderr)
        return Exit.FAILED


def say(text: str) -> None:
    """Print a line of progress on stdout, without buffering, so that a user sees it at once."""
    print(text, flush=True)
