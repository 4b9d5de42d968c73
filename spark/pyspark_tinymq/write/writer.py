"""The sink: `df.write.format("tinymq")` and `writeStream`, at least once.

Each task is a producer of its own: it sends the batches that Spark gives it as they come, waits until all of them are
acknowledged, and only then answers with what it wrote. A task that fails is tried again by Spark and writes its rows
again, under the same places (place.py), by which drop_repeats tells them. Errors are the client's, with the rows and
the task that they are about.

What commit does today: nothing but a line in the log, for what was acknowledged is there for all readers. Each
Written names everything that a decision over all tasks would need: who wrote (application, version), under which id
of its own, and where it lies.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_tinymq.options import settings
from pyspark_tinymq.session import session
from pyspark_tinymq.write.outgoing import Outgoing, Piece, check_columns
from pyspark_tinymq.write.place import TaskPlace
from tinymq.base.errors import BatchTooLarge, InvalidConfig, TinymqError, UnknownTopic

if TYPE_CHECKING:
    from tinymq.client import BatchDelivery, Producer

LOG = logging.getLogger("pyspark_tinymq")
LOOKUP_S = 5.0
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's local properties, in tasks of a stream and of what a foreachBatch writes."""


@dataclass(frozen=True, slots=True)
class Sink:
    """Everything that the options say of a write. Picklable."""

    servers: tuple[str, ...]
    request_timeout_ms: int
    topic: str  # "": each row names its own
    places: bool
    application: str  # "": the query's id
    version: int | None  # None: the micro-batch
    producer: Mapping[str, Any] = field(default_factory=dict)  # ProducerConfig's settings
    rack: str = ""

    def task_place(self, context: TaskContext, name: str) -> TaskPlace:
        """Of the task that runs here; `name` stands for the query where neither it nor an option does."""
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        version = self.version if self.version is not None else int(batch or 0)
        return TaskPlace(self.application or query or name, version, context.partitionId())


@dataclass(frozen=True, slots=True)
class Range:
    """What a task wrote to one partition: `records` of its own, at offsets from `start` up to, and not including,
    `end`; others may lie between."""

    topic: str
    partition: int
    start: int
    end: int
    records: int


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """A task's commit message: everything that it was given is acknowledged, and where it lies."""

    write_id: str  # of this very call: another attempt of the same task has another one
    application: str
    version: int
    partition: int
    attempt: int
    records: int
    ranges: tuple[Range, ...]


def batch_writer(texts: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Of `df.write`. Raises InvalidConfig."""
    if overwrite:
        raise InvalidConfig(
            'a topic cannot be overwritten by mode("overwrite") or INSERT OVERWRITE',
            hint='use .mode("append") or INSERT INTO; to begin again, delete the topic',
        )
    sink = read_sink(texts)
    if (sink.application == "") != (sink.version is None):
        raise InvalidConfig("txnAppId and txnVersion go together", hint="give both, or neither")
    check_columns(schema, sink.topic)
    return BatchWriter(sink, f"batch-{uuid.uuid4().hex}")


def stream_writer(texts: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Of `df.writeStream`. Raises InvalidConfig."""
    if overwrite:
        raise InvalidConfig(
            'outputMode("complete") writes all results anew with each micro-batch, and a topic only grows',
            hint='use outputMode("append")',
        )
    sink = read_sink(texts)
    if sink.version is not None:
        raise InvalidConfig("txnVersion has no meaning in a stream: its batches have numbers", hint="leave it out")
    check_columns(schema, sink.topic)
    return StreamWriter(sink)


def read_sink(texts: Mapping[str, str]) -> Sink:
    """Raises InvalidConfig."""
    values = settings.read_sink(texts)
    producer = {
        "acks": values.get("acks", "quorum"),
        "compression": values.get("compression", "none"),
        "batch_bytes_max": values.get("batchBytes", 1 << 20),
        "buffer_bytes_max": values.get("bufferBytes", 64 << 20),
        "delivery_timeout_ms": values.get("deliveryTimeoutMs", 60_000),
        "block_ms_max": values.get("deliveryTimeoutMs", 60_000),
        "partitioner": values.get("partitioner", "keyed"),
    }
    for name in ("txnAppId", "txnVersion"):
        if name in values and not values.get("includePlace", True):
            raise InvalidConfig(f"{name} has no meaning with includePlace=false", hint="leave one of them out")
    application = values.get("txnAppId", "")
    if "/" in application:
        raise InvalidConfig(f"txnAppId={application!r} has a '/'", hint="a name without '/', such as nightly-delays")
    return Sink(
        servers=values["servers"],
        request_timeout_ms=values.get("requestTimeoutMs", 30_000),
        topic=values.get("topic", ""),
        places=values.get("includePlace", True),
        application=application,
        version=values.get("txnVersion"),
        producer=producer,
    )


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
    """One `save()`. Spark sends a copy to every task."""

    def __init__(self, sink: Sink, name: str) -> None:
        """`name` stands for the query where neither it nor the option txnAppId does."""
        self.sink = sink
        self.name = name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """In a task: send all rows; return when all are acknowledged. Raises TinymqError."""
        return write(self.sink, iterator, self.name)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver, when all tasks are done."""
        LOG.info("%s", told(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver, when the job has failed: what was acknowledged stays, and is written again if `save()` is."""
        LOG.warning("the write failed; readers see what was acknowledged before: %s", told(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch. Spark makes another one to commit it."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """As BatchWriter.write."""
        return write(self.sink, iterator, "")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver, when all tasks of a micro-batch are done. Again for the same batch: nothing changes."""
        LOG.info("batch %d: %s", batchId, told(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver, when a micro-batch has failed; after a restart Spark runs it again under the same number."""
        LOG.warning("batch %d failed; readers see what was acknowledged before: %s", batchId, told(messages))


def told(messages: Iterable[WriterCommitMessage | None]) -> str:
    """In words, for the log."""
    written = [message for message in messages if isinstance(message, Written)]
    topics = sorted({part.topic for message in written for part in message.ranges})
    records = sum(message.records for message in written)
    return f"{records} records of {len(written)} tasks" + (f" are in {', '.join(topics)}" if topics else "")


def write(sink: Sink, batches: Iterator[pa.RecordBatch], name: str) -> Written:
    """What the task that runs here is given, sent: the same for a batch and for a stream."""
    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    return send(sink, batches, sink.task_place(context, name), context.attemptNumber())


def send(sink: Sink, batches: Iterator[pa.RecordBatch], place: TaskPlace, attempt: int) -> Written:
    """Send all rows; return when all are acknowledged. Raises TinymqError, after `deliveryTimeoutMs` at the latest."""
    outgoing = Outgoing(sink.topic, place if sink.places else None)
    sent = _Sent()
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is not None:  # without rows nothing is asked of the cluster
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
    """What is on its way, oldest first, and where the rest lies. A delivery that failed is told at the next look."""

    def __init__(self) -> None:
        self._under_way: deque[BatchDelivery] = deque()
        self._ranges: dict[tuple[str, int], Range] = {}

    def take(self, delivery: BatchDelivery) -> None:
        self._under_way.append(delivery)
        while self._under_way and self._under_way[0].done():
            self._keep(self._under_way.popleft())

    def settle(self) -> None:
        """Wait for all of it, for as long as the producer tries. Raises what ended a delivery."""
        while self._under_way:
            self._keep(self._under_way.popleft())

    def ranges(self) -> tuple[Range, ...]:
        return tuple(self._ranges[at] for at in sorted(self._ranges))

    def _keep(self, delivery: BatchDelivery) -> None:
        for part in delivery.result():
            at, end = (part.topic, part.partition), part.base_offset + part.record_count
            known = self._ranges.get(at)
            if known is None:
                self._ranges[at] = Range(*at, part.base_offset, end, part.record_count)
            else:
                start, end = min(known.start, part.base_offset), max(known.end, end)
                self._ranges[at] = Range(*at, start, end, known.records + part.record_count)
