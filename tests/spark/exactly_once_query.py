"""A query from topic to topic with the sink that is killed: SERVERS, CHECKPOINT. Reads what is there, and ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import pyspark_tinymq
from tests.spark.killed_sink import FOLDER, PIDS, KilledSource

RECORDS_MAX = "40"  # of a micro-batch


def main(servers: str, checkpoint: str) -> None:
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
    spark.dataSource.register(KilledSource)
    reading = spark.readStream.format("tinymq").options(servers=servers, subscribe="input")
    rows = reading.options(startingOffsets="earliest", maxOffsetsPerTrigger=RECORDS_MAX).load().select("key", "value")
    writing = rows.writeStream.format("killed").options(servers=servers, topic="output", exactlyOnce="true")
    query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
