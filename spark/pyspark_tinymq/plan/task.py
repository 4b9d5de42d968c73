"""The work of a task: it reads one range from suitable replicas, as record batches for Spark.

The range carries everything that the task needs, because the task shares nothing with the driver. When a replica dies,
lags or is damaged, the task continues at the next offset with another replica. If none can serve, the task fails with a
typed error, and Spark retries it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from pyspark_tinymq.options.columns import Columns, joined
from pyspark_tinymq.options.settings import Source
from pyspark_tinymq.plan.hold_ledger import Holding, Renewal
from pyspark_tinymq.session import session
from pyspark_tinymq.session.replicas import Replica, tiers
from tinymq.base.errors import InvalidRequest, OffsetOutOfRange, UnknownPartition, UnknownTopic

if TYPE_CHECKING:
    from pyspark_tinymq.json.values import JsonValues

LOG = logging.getLogger("pyspark_tinymq")


@dataclass
class RangePartition(InputPartition):
    """One task's range: offsets from `start` up to, and not including, `end`. Spark pickles it."""

    topic: str
    topic_id: bytes  # tells the topic from a later one of the same name
    partition: int
    start: int
    end: int
    lenient: bool  # records removed from the head are no loss: the query holds nothing, and begins with what is left
    leader: int  # at the time of the plan; 0: unknown
    replicas: tuple[Replica, ...]
    scan_id: str
    holding: Holding  # the holds that the task renews, other tasks' included

    @property
    def where(self) -> str:
        return f"{self.topic}/{self.partition}"


def read(part: RangePartition, source: Source, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the range as record batches of `schema`.

    Raises, unless failOnDataLoss=false: OffsetOutOfRange for records that are gone; UnknownTopic and UnknownPartition
    for a topic that was deleted, and perhaps created again, since the plan. Raises always: BrokerUnreachable,
    OffsetNotAvailable or CorruptData, with the errors of all replicas, when none has served for unreachableMs;
    InvalidRequest for a malformed value in mode FAILFAST.
    """
    try:
        yield from _read(part, source, schema)
    except (UnknownTopic, UnknownPartition) as error:
        if source.fail_on_loss:
            raise
        LOG.warning("%s: %s (failOnDataLoss=false: going on)", part.where, error.message)


def _read(part: RangePartition, source: Source, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    client = session.client(source)
    order = tiers(
        source.replica,
        part.leader,
        part.replicas,
        hosts=session.hosts(),
        rack=session.rack(source),
        attempt=context.attemptNumber() if context is not None else 0,
    )
    skip = part.lenient or not source.fail_on_loss
    columns = Columns(part.topic, schema)
    parse = _parser(part, json_values(source, schema)) if source.values is not None else None
    scanning = client.scan(
        part.topic,
        part.partition,
        part.start,
        part.end,
        topic_id=part.topic_id,
        scan_id=part.scan_id,
        replicas=order,
        leader_last=order is not None and source.replica == "follower",  # the leader at the time of the read
        wait_ms=source.replica_wait_ms,
        fetch_bytes_max=source.fetch_bytes,
        unreachable_ms_max=source.unreachable_ms,
        on_trimmed="skip" if skip else "raise",
    )
    with Renewal(client, part.holding), scanning as scan:
        try:
            for stored in joined(scan):
                yield columns.batch(stored) if parse is None else columns.batch(*parse(stored))
        except OffsetOutOfRange as error:
            raise _overtaken(part, scan.offset, error) from None
        if scan.skipped:
            LOG.warning("%s: %d of its records were removed before they were read", part.where, scan.skipped)


def _overtaken(part: RangePartition, offset: int, error: OffsetOutOfRange) -> OffsetOutOfRange:
    """Return the same error, naming the planned offsets that are gone. `offset` is that of the next record to read."""
    log_start = error.detail.get("log_start", "")
    if "history_start" in error.detail or not log_start.isdigit() or int(log_start) <= offset:
        return error
    last = min(int(log_start), part.end) - 1
    return OffsetOutOfRange(
        f"{part.where}: offsets {offset} to {last} were planned, and were removed before they were read: "
        f"the partition now begins with {log_start}",
        hint="failOnDataLoss=false goes on with the records that remain; holdMs holds planned records, and meanwhile "
        "refuses trims and producers of a full topic",
        **error.detail,
    )


def json_values(source: Source, schema: pa.Schema) -> JsonValues:
    """Return the parser for values of `schema`, an Arrow schema. Raises InvalidConfig if it cannot be read."""
    from pyspark_tinymq.json.values import JsonValues

    values = source.values
    assert values is not None, "the options do not ask for parsed values"
    return JsonValues(schema.field("value").type, values.mode, values.corrupt, values.zone)


def _parser(part: RangePartition, reader: JsonValues) -> Callable[[pa.RecordBatch], tuple[pa.RecordBatch, pa.Array]]:
    """Return a function from stored records to (the records that remain, their parsed values)."""
    from pyspark_tinymq.json.values import MalformedValue

    def parse(stored: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array]:
        try:
            parsed = reader.parse(stored.column("value"))
        except MalformedValue as error:
            offset = stored.column("offset")[error.row].as_py()
            raise InvalidRequest(f"{part.where}, offset {offset}: {error.message}", hint=error.hint) from None
        return (stored if parsed.kept is None else stored.filter(parsed.kept)), parsed.values

    return parse
