"""What a task is told, and what it does: it reads a range from the replicas that suit it, as Spark's record batches.

A task gets all it needs to know with its range: it shares nothing with the driver. It goes on from another replica by
itself when one dies, lags or is damaged, at the next offset; what it cannot do ends it with a typed error, and Spark
tries it again.
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
    topic_id: bytes  # another one that has its name by now has other records
    partition: int
    start: int
    end: int
    lenient: bool  # records removed from the head are no loss: the query holds nothing, and begins with what is left
    leader: int  # when it was planned; 0: nobody was known to lead
    replicas: tuple[Replica, ...]
    scan_id: str
    holding: Holding  # the whole plan's

    @property
    def where(self) -> str:
        return f"{self.topic}/{self.partition}"


def read(part: RangePartition, source: Source, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The range as record batches of `schema`. Raises OffsetOutOfRange for records that are gone, UnknownTopic and
    UnknownPartition for what was deleted (and perhaps made anew) since it was planned, unless
    failOnDataLoss=false; BrokerUnreachable, OffsetNotAvailable or CorruptData once no replica has served for
    unreachableMs, with what each of them said; InvalidRequest for a value that is malformed, in mode FAILFAST."""
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
        leader_last=order is not None and source.replica == "follower",  # whoever leads by now
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
    """What parses values of `schema`, Spark's for Arrow. Raises InvalidConfig for what cannot be read."""
    from pyspark_tinymq.json.values import JsonValues

    values = source.values
    assert values is not None, "they are not to be parsed"
    return JsonValues(schema.field("value").type, values.mode, values.corrupt, values.zone)


def _parser(part: RangePartition, reader: JsonValues) -> Callable[[pa.RecordBatch], tuple[pa.RecordBatch, pa.Array]]:
    """Stored records to (those of them that are kept, their parsed values)."""
    from pyspark_tinymq.json.values import MalformedValue

    def parse(stored: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array]:
        try:
            parsed = reader.parse(stored.column("value"))
        except MalformedValue as error:
            offset = stored.column("offset")[error.row].as_py()
            raise InvalidRequest(f"{part.where}, offset {offset}: {error.message}", hint=error.hint) from None
        return (stored if parsed.kept is None else stored.filter(parsed.kept)), parsed.values

    return parse
