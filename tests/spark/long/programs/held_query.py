"""SERVERS TOPIC FOLDER, for spark-submit: reads a topic in tasks that wait after their first rows. Each waiting task
puts a file into FOLDER/waiting; FOLDER/go releases all of them. FOLDER/result.json has the rows.
"""

from __future__ import annotations

import json
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

LOOK_S = 0.05
Batches = Iterator[pa.RecordBatch]


def held(folder: str) -> Callable[[Batches], Batches]:
    """Yield the rows, with the number of the task's attempt."""

    def wait(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        for number, batch in enumerate(batches):
            if number == 0:
                (Path(folder) / "waiting" / uuid.uuid4().hex).touch()
                while not (Path(folder) / "go").exists():
                    threading.Event().wait(LOOK_S)
            attempts = pa.array([attempt] * batch.num_rows, pa.int32())
            yield pa.RecordBatch.from_arrays([*batch.columns, attempts], ["partition", "offset", "attempt"])

    return wait


def main(servers: str, topic: str, folder: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    records = spark.read.format("tinymq").option("servers", servers).option("subscribe", topic).load()
    rows = records.select("partition", "offset").mapInArrow(held(folder), "partition int, offset long, attempt int")
    found = [[row.partition, row.offset, row.attempt] for row in rows.collect()]
    (Path(folder) / "result.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
