"""The exactly-once sink in a driver that is killed, once, at a step that the environment names.

The steps are in the middle of a task, at its end, before the driver commits, and after it. A worker that kills its
driver goes on with its task: it is a zombie, until it notices.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_tinymq.source import DefaultSource
from pyspark_tinymq.write.exactly_once import ExactlyOnceStreamWriter, Staged
from pyspark_tinymq.write.sink import read_sink

STEPS = ("half", "written", "asked", "committed")
STEP, FOLDER = "TINYMQ_KILLED_STEP", "TINYMQ_KILLED_FOLDER"
PIDS, MARK = "pids", "mark"


def reach(step: str) -> None:
    """Kill the driver and its Java process, if this is the step, and the first time."""
    folder = Path(os.environ[FOLDER])
    if os.environ[STEP] != step:
        return
    try:
        os.close(os.open(folder / MARK, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    for pid in (folder / PIDS).read_text().split():
        os.kill(int(pid), signal.SIGKILL)


class KilledStreamWriter(ExactlyOnceStreamWriter):
    """It reaches the steps."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        staged = super().write(_watched(iterator))
        if staged.staged is not None:
            reach("written")
        return staged

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        reach("asked")
        super().commit(messages, batchId)
        reach("committed")


def _watched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for number, batch in enumerate(batches):
        if number == 1:  # the first one is with the sink
            reach("half")
        yield batch


class KilledSource(DefaultSource):
    """`tinymq`, with that sink for streams."""

    @classmethod
    def name(cls) -> str:
        return "killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return KilledStreamWriter(read_sink(self.options))
