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
"""They print Java's stack, as JSON, of what Spark refuses; the error that is raised says why."""

SHUFFLE_PARTITIONS = 4  # Spark's 200 are for other amounts: here they would be 200 files for each batch


def session(name: str) -> SparkSession:
    """The session that spark-submit's options ask for, in UTC, with the data source `tinymq`.

    Times of records are UTC; in another zone hours would be cut elsewhere.
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
    """The exit code of `work`: 0 if all is well, 1 if it found something amiss, 2 if it was refused, and so on.

    What a user or a broker can cause is said in one or two lines on stderr; a bug keeps its traceback.
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
    """A line of progress on stdout, at once: whoever started the program may be reading along."""
    print(text, flush=True)
