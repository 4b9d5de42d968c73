"""A query from topic to topic with a sink that fails: SERVERS, CHECKPOINT, SINK. Reads what is there, and ends.

SINK: `killed`, which kills the driver (killed_sink.py), or `struck`, which kills brokers (struck_sink.py). Rows keep
the numbers of their partitions.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import pyspark_tinymq
from tests.spark.killed_sink import FOLDER, PIDS, KilledSource
from tests.spark.struck_sink import StruckSource

RECORDS_MAX = 40  # of a micro-batch


def main(servers: str, checkpoint: str, sink: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "5")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "this process has started Java"
    (Path(os.environ[FOLDER]) / PIDS).write_text(f"{gateway.proc.pid} {os.getpid()}")
    pyspark_tinymq.register(spark)
    spark.dataSource.register({"killed": KilledSource, "struck": StruckSource}[sink])
    reading = spark.readStream.format("tinymq").options(servers=servers, subscribe="input")
    reading = reading.options(startingOffsets="earliest", maxOffsetsPerTrigger=str(RECORDS_MAX))
    rows = reading.load().select("value", "partition")
    writing = rows.writeStream.format(sink).options(servers=servers, topic="output", exactlyOnce="true")
    writing = writing.option("deliveryTimeoutMs", "120000")  # on a busy machine, brokers that died are back late
    query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
