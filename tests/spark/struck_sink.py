"""The exactly-once sink, whose processes kill brokers between the steps of a micro-batch (strikes.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_tinymq.session import session
from pyspark_tinymq.source import DefaultSource
from pyspark_tinymq.write import exactly_once
from pyspark_tinymq.write.exactly_once import ExactlyOnceStreamWriter, Job, Staged
from pyspark_tinymq.write.sink import BATCH_ID, QUERY_ID, Sink, read_sink
from pyspark_tinymq.write.staged_sets import StagedSetWriter
from tests.spark.killed_sink import FOLDER
from tests.spark.strikes import COMMITTED, HALF, IN_BROKERS, LEADER, OPENED, STAGED, StrikeFolder, strike_of
from tinymq import Client
from tinymq.client.common.config import ProducerConfig

LEADER_S = 60.0  # until a partition has a leader again, after the strike before


def reach(step: str, sink: Sink, application: str, batch: int) -> None:
    """Kill the broker of the micro-batch's strike, if this is its step, and the first time."""
    strike = strike_of(batch)
    if strike is None or strike.step != step:
        return
    mq = session.client(sink)
    if strike.victim == LEADER:
        broker = _leader(mq, sink.topic, 0)
    else:
        partitions = len(mq.admin.describe_topic("__coordinator").partitions)
        broker = _leader(mq, "__coordinator", crc32(application.encode()) % partitions)
    _folder().kill(batch, broker)


def _leader(mq: Client, topic: str, partition: int) -> int:
    until_s = time.monotonic() + LEADER_S
    while time.monotonic() < until_s:
        for each in mq.admin.describe_topic(topic).partitions:
            if each.partition == partition and each.leader and _folder().runs(each.leader):  # 0: nobody leads
                return each.leader
    raise TimeoutError(f"{topic}/{partition} has no leader that runs")


def _folder() -> StrikeFolder:
    return StrikeFolder(Path(os.environ[FOLDER]))


class StruckSetWriter(StagedSetWriter):
    """It reaches the step behind `begin`."""

    def __init__(self, sink: Sink, job: Job) -> None:
        super().__init__(session.client(sink), job.of_client(), ProducerConfig(**sink.producer))
        self._sink = sink
        self._job = job

    def begin(self, run: str, lasts_ms: int, timeout_s: float) -> bool:
        begun = super().begin(run, lasts_ms, timeout_s)
        if begun:
            reach(OPENED, self._sink, self._job.application, self._job.version)
        return begun


class StruckStreamWriter(ExactlyOnceStreamWriter):
    """It reaches the steps in tasks and in the driver, and lets brokers take the others."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        exactly_once._writer = StruckSetWriter  # type: ignore[assignment]
        return super().write(self._watched(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        (application,) = {each.job.application for each in messages if isinstance(each, Staged)}
        reach(STAGED, self.sink, application, batchId)
        strike = strike_of(batchId)
        if strike is not None and strike.step in IN_BROKERS:
            _folder().arm(batchId)
        super().commit(messages, batchId)
        reach(COMMITTED, self.sink, application, batchId)

    def _watched(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        query, number = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        assert query is not None
        assert number is not None
        for at, batch in enumerate(batches):
            if at == 1:  # the first one is with the sink
                reach(HALF, self.sink, query, int(number))
            yield batch


class StruckSource(DefaultSource):
    """`tinymq`, with that sink for streams."""

    @classmethod
    def name(cls) -> str:
        return "struck"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StruckStreamWriter(read_sink(self.options))
