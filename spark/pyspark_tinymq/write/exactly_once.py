"""The exactly-once sink: `exactlyOnce=true`. A write becomes visible as a whole, once, when Spark commits it.

Each attempt at a task stages a set of batches, which no reader sees, and its commit message names the set. `commit`
decides at the application's coordinator over the sets whose messages Spark passes to it. The first commit of a version
wins: attempts, drivers and restarted queries that come later change nothing, and their tasks write nothing.

The *run* is one writer object, which Spark makes in the driver and sends to all tasks: another attempt at the same
version has another one. Spark makes one more object, in another process, to commit a micro-batch, so everything that
the commit needs is in the messages.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_tinymq.session import session
from pyspark_tinymq.write.outgoing import Outgoing
from pyspark_tinymq.write.place import TaskPlace
from pyspark_tinymq.write.sink import BATCH_ID, QUERY_ID, Sink
from tinymq.base.errors import InvalidConfig, TinymqError

if TYPE_CHECKING:
    from pyspark_tinymq.write.staged_sets import StagedSetWriter
    from tinymq.client.cluster.transactional_id_calls import SinkVersion
    from tinymq.client.transaction.staged_set import StagedSet

LOG = logging.getLogger("pyspark_tinymq")


@dataclass(frozen=True, slots=True)
class Job:
    """The values that all tasks of a write share, on each executor."""

    application: str
    version: int
    query: str  # "": a batch
    temporary: bool  # the name of the application is never used again

    def of_client(self) -> SinkVersion:
        from tinymq.client.cluster.transactional_id_calls import SinkVersion

        return SinkVersion(self.application, self.version, self.query, self.temporary)


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """A task's commit message: all its rows are on a majority of disks, and invisible."""

    job: Job
    partition: int
    attempt: int
    records: int  # of the task's rows
    staged: StagedSet | None  # None: no rows, or the version is committed already


class ExactlyOnceBatchWriter(DataSourceArrowWriter):
    """Writes one `save()`. Spark sends a copy to every task, and commits with the same object."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage all rows, in a task. Raises TinymqError."""
        context = _context()
        query = context.getLocalProperty(QUERY_ID) or ""
        if query and not self.sink.application:
            raise InvalidConfig(
                "exactlyOnce within foreachBatch needs a name for each write",
                hint="give txnAppId, another one for each write of the function, and the batch's number as txnVersion",
            )
        job = Job(
            self.sink.application or f"batch-{self.run}", self.sink.version or 0, query,
            temporary=not self.sink.application,
        )  # fmt: skip
        return stage(self.sink, iterator, job, self.run, context.partitionId(), context.attemptNumber())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the rows of all tasks visible, in the driver. Raises TinymqError; after OutcomeUnknown the rows may be
        visible."""
        commit(self.sink, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop what the tasks have staged, in the driver, unless it is committed."""
        abort(self.sink, messages)


class ExactlyOnceStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches. Spark makes another object to commit one."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage all rows, in a task. Raises TinymqError."""
        context = _context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        assert query is not None, "the tasks of a stream know their query"
        assert batch is not None, "and their micro-batch"
        job = Job(self.sink.application or query, int(batch), query, temporary=False)
        return stage(self.sink, iterator, job, self.run, context.partitionId(), context.attemptNumber())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Make a micro-batch visible, in the driver. A second call changes nothing. Raises as for a batch."""
        commit(self.sink, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """As for a batch: Spark may call it for a micro-batch that is committed."""
        abort(self.sink, messages)


def stage(sink: Sink, batches: Iterator[pa.RecordBatch], job: Job, run: str, partition: int, attempt: int) -> Staged:
    """Stage all rows of a task. Raises TinymqError within `deliveryTimeoutMs`."""
    place = TaskPlace(job.application, job.version, partition)
    outgoing = Outgoing(sink.topic, place if sink.places else None)
    first, staged = next((batch for batch in batches if batch.num_rows), None), None
    if first is not None:  # a task without rows sends no request to the cluster
        with _writer(sink, job) as writer:
            try:
                if writer.begin(run, sink.sets_ms, sink.delivery_s):
                    _send(writer, outgoing, first)
                    for batch in batches:
                        _send(writer, outgoing, batch)
                    staged = writer.end()
                else:
                    LOG.info("task %s writes nothing: its version is committed", place)
                    # All rows are taken nevertheless: before this task, others may keep state for the next batches.
                    for _ in batches:
                        pass
            except TinymqError as error:
                error.add_note(f"of task {place}, attempt {attempt}, after {outgoing.rows} rows")
                raise
    return Staged(job, partition, attempt, outgoing.rows, staged)


def _send(writer: StagedSetWriter, outgoing: Outgoing, batch: pa.RecordBatch) -> None:
    for piece in outgoing.pieces(batch) if batch.num_rows else ():
        writer.send_batch(piece.topic, piece.records, piece.partition)


def commit(sink: Sink, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commit what the messages name. Raises TinymqError."""
    tasks = [message for message in messages if isinstance(message, Staged)]
    sets = [task.staged for task in tasks if task.staged is not None]
    if not tasks or (not sets and tasks[0].job.temporary):
        return
    from pyspark_tinymq.write.staged_sets import commit_version

    (job,) = {task.job for task in tasks}
    visible = commit_version(session.client(sink), job.of_client(), sets, sink.delivery_s)
    records = sum(task.records for task in tasks if task.staged is not None)
    where = "visible" if visible else "visible as soon as their partitions have leaders"
    done = f"{job.application}/{job.version} is committed"
    LOG.info("%s: %d records of %d tasks are %s", done, records, len(sets), where)


def abort(sink: Sink, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop the runs that the messages name, unless they are committed. A task that failed has sent no message: its set
    is dropped with the others of its run, or by the commit of the version, or when its time is up."""
    tasks = [message for message in messages if isinstance(message, Staged)]
    sets = [task.staged for task in tasks if task.staged is not None]
    LOG.warning("a write was aborted, and %d of its tasks have staged rows", len(sets))
    if sets:
        from pyspark_tinymq.write.staged_sets import discard_version

        discard_version(session.client(sink), tasks[0].job.application, sets)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    return context


def _writer(sink: Sink, job: Job) -> StagedSetWriter:
    from pyspark_tinymq.write.staged_sets import StagedSetWriter
    from tinymq.client.common.config import ProducerConfig

    return StagedSetWriter(session.client(sink), job.of_client(), ProducerConfig(**sink.producer))
