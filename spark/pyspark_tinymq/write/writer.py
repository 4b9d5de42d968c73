"""The sink: `df.write.format("tinymq")` and `writeStream`, at least once. exactly_once.py has the other one.

Each task has a producer of its own. It sends the batches from Spark as they arrive, waits until all are acknowledged,
and then returns a commit message. Spark retries a task that fails. The retry writes its rows again, under the same
places (place.py), by which drop_repeats recognizes them. Errors are the client's, with a note of the task and the rows.

commit only logs a line, because acknowledged records are visible to all readers.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_tinymq.session import session
from pyspark_tinymq.write.exactly_once import ExactlyOnceBatchWriter, ExactlyOnceStreamWriter
from pyspark_tinymq.write.outgoing import Outgoing, Piece, check_columns
from pyspark_tinymq.write.place import TaskPlace
from pyspark_tinymq.write.sink import Sink, read_sink
from tinymq.base.errors import BatchTooLarge, InvalidConfig, TinymqError, UnknownTopic

if TYPE_CHECKING:
    from tinymq.client import BatchDelivery, Producer

LOG = logging.getLogger("pyspark_tinymq")
LOOKUP_S = 5.0


@dataclass(frozen=True, slots=True)
class Range:
    """The records of a task in one partition: `records` of its own, from `start` up to, and not including, `end`.

    Other writers' records may be between them.
    """

    topic: str
    partition: int
    start: int
    end: int
    records: int


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """A task's commit message: all its rows are acknowledged, at the offsets in `ranges`."""

    write_id: str  # unique to this call: another attempt of the same task has another id
    application: str
    version: int
    partition: int
    attempt: int
    records: int
    ranges: tuple[Range, ...]


def batch_writer(texts: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter | ExactlyOnceBatchWriter:
    """Return the writer for `df.write`. Raises InvalidConfig."""
    if overwrite:
        raise InvalidConfig(
            'a topic cannot be overwritten by mode("overwrite") or INSERT OVERWRITE',
            hint='use .mode("append") or INSERT INTO; to begin again, delete the topic',
        )
    sink = read_sink(texts)
    if (sink.application == "") != (sink.version is None):
        raise InvalidConfig("txnAppId and txnVersion go together", hint="give both, or neither")
    check_columns(schema, sink.topic)
    return ExactlyOnceBatchWriter(sink) if sink.exactly_once else BatchWriter(sink, f"batch-{uuid.uuid4().hex}")


def stream_writer(
    texts: Mapping[str, str], schema: StructType, overwrite: bool
) -> StreamWriter | ExactlyOnceStreamWriter:
    """Return the writer for `df.writeStream`. Raises InvalidConfig."""
    if overwrite:
        raise InvalidConfig(
            'outputMode("complete") writes all results again with each micro-batch, and a topic only grows',
            hint='use outputMode("append")',
        )
    sink = read_sink(texts)
    if sink.version is not None:
        raise InvalidConfig("txnVersion has no meaning in a stream: its batches have numbers", hint="leave it out")
    check_columns(schema, sink.topic)
    return ExactlyOnceStreamWriter(sink) if sink.exactly_once else StreamWriter(sink)


def check_topic(sink: Sink) -> None:
    """Raise UnknownTopic in the driver, before any task is started.

    The tasks handle any other error, because they may reach brokers that the driver cannot reach.
    """
    if not sink.topic:
        return
    try:
        session.client(sink).admin.describe_topic(sink.topic, timeout=min(LOOKUP_S, sink.request_timeout_ms / 1000))
    except UnknownTopic:
        raise
    except TinymqError as error:
        LOG.warning("could not check whether topic %r exists: %s", sink.topic, error)


class BatchWriter(DataSourceArrowWriter):
    """Writes one `save()`. Spark sends a copy to every task."""

    def __init__(self, sink: Sink, name: str) -> None:
        """`name` identifies a query that has no id and no txnAppId."""
        self.sink = sink
        self.name = name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send all rows, in a task, and return when all are acknowledged. Raises TinymqError."""
        return write(self.sink, iterator, self.name)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the write, in the driver, when all tasks are done."""
        LOG.info("%s", summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the failure of the job, in the driver. Acknowledged records stay. Another `save()` writes them again."""
        LOG.warning("the write failed; readers see what was acknowledged before: %s", summary(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch. Spark makes another object to commit it."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send all rows, as BatchWriter.write does."""
        return write(self.sink, iterator, "")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log a micro-batch, in the driver, when all its tasks are done. A second call changes nothing."""
        LOG.info("batch %d: %s", batchId, summary(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log a failed micro-batch, in the driver. After a restart Spark runs it again under the same number."""
        LOG.warning("batch %d failed; readers see what was acknowledged before: %s", batchId, summary(messages))


def summary(messages: Iterable[WriterCommitMessage | None]) -> str:
    """Return a line about the tasks' records, for the log."""
    written = [message for message in messages if isinstance(message, Written)]
    topics = sorted({part.topic for message in written for part in message.ranges})
    records = sum(message.records for message in written)
    return f"{records} records of {len(written)} tasks" + (f" are in {', '.join(topics)}" if topics else "")


def write(sink: Sink, batches: Iterator[pa.RecordBatch], name: str) -> Written:
    """Send the rows of the task that runs here, of a batch or of a stream."""
    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    return send(sink, batches, sink.task_place(context, name), context.attemptNumber())


def send(sink: Sink, batches: Iterator[pa.RecordBatch], place: TaskPlace, attempt: int) -> Written:
    """Send all rows, and return when all are acknowledged. Raises TinymqError within `deliveryTimeoutMs`."""
    outgoing = Outgoing(sink.topic, place if sink.places else None)
    sent = _Sent()
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is not None:  # a task without rows sends no request to the cluster
        with session.client(sink).producer(**sink.producer) as producer:
            for batch in _chained(first, batches):
                row = outgoing.rows
                try:
                    for piece in outgoing.pieces(batch):
                        sent.take(_send(producer, piece))
                except TinymqError as error:
                    error.add_note(f"at rows {row} to {outgoing.rows - 1} of task {place}, attempt {attempt}")
                    raise
            sent.settle()
    return Written(
        write_id=uuid.uuid4().hex,
        application=place.application,
        version=place.version,
        partition=place.partition,
        attempt=attempt,
        records=outgoing.rows,
        ranges=sent.ranges(),
    )


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    for batch in rest:
        if batch.num_rows:
            yield batch


def _send(producer: Producer, piece: Piece) -> BatchDelivery:
    try:
        return producer.send_batch(piece.topic, piece.records, partition=piece.partition)
    except BatchTooLarge as error:
        sizes = pc.binary_length(piece.records.column("value"))
        error.add_note(f"the largest value among these rows has {pc.max(sizes).as_py()} bytes")
        raise


class _Sent:
    """The deliveries in flight, oldest first, and the ranges of the others. The next call raises a failed delivery."""

    def __init__(self) -> None:
        self._under_way: deque[BatchDelivery] = deque()
        self._ranges: dict[tuple[str, int], Range] = {}

    def take(self, delivery: BatchDelivery) -> None:
        self._under_way.append(delivery)
        while self._under_way and self._under_way[0].done():
            self._keep(self._under_way.popleft())

    def settle(self) -> None:
        """Wait for all deliveries, as long as the producer retries. Raises the error that ended a delivery."""
        while self._under_way:
            self._keep(self._under_way.popleft())

    def ranges(self) -> tuple[Range, ...]:
        return tuple(self._ranges[partition] for partition in sorted(self._ranges))

    def _keep(self, delivery: BatchDelivery) -> None:
        for part in delivery.result():
            partition, end = (part.topic, part.partition), part.base_offset + part.record_count
            earlier = self._ranges.get(partition)
            if earlier is None:
                self._ranges[partition] = Range(*partition, part.base_offset, end, part.record_count)
            else:
                start, end = min(earlier.start, part.base_offset), max(earlier.end, end)
                self._ranges[partition] = Range(*partition, start, end, earlier.records + part.record_count)
