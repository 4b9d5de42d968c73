"""What a task is told, and what it does: it reads a range from the replicas that suit it, as Spark's record batches.

A task gets all it needs to know with its range: it shares nothing with the driver. It goes on from another replica by
itself when one dies, lags or is damaged, at the next offset; what it cannot do ends it with a typed error, and Spark
tries it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from pyspark_tinymq import session
from pyspark_tinymq.columns import Columns, joined
from pyspark_tinymq.lookup import HOLD_TIMEOUT_S
from pyspark_tinymq.replicas import Replica, tiers
from pyspark_tinymq.settings import Source, Values
from tinymq.errors import InvalidRequest, TinymqError

if TYPE_CHECKING:
    from tinymq.client import Client

LOG = logging.getLogger("pyspark_tinymq")
RENEWALS_PER_LEASE = 3


@dataclass
class RangePartition(InputPartition):
    """One task's range: offsets from `start` up to, and not including, `end`. Spark pickles it."""

    topic: str
    partition: int
    start: int
    end: int
    lenient: bool  # what was removed from the head is no loss
    leader: int  # when it was planned; 0: nobody was known to lead
    epoch: int
    replicas: tuple[Replica, ...]
    scan_id: str
    hold_id: bytes
    held_from: int  # of the whole partition's range, of which this may be a piece

    @property
    def where(self) -> str:
        return f"{self.topic}/{self.partition}"


def read(part: RangePartition, source: Source, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The range as record batches of `schema`. Raises OffsetOutOfRange for records that are gone, unless
    failOnDataLoss=false; BrokerUnreachable, OffsetNotAvailable or CorruptData once no replica has served for
    unreachableMs, with what each of them said; MalformedValue in mode FAILFAST."""
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
    parse = _parser(part, source.values, schema) if source.values is not None else None
    hold = Renewal(client, part, source.hold_s)
    with client.scan(
        part.topic,
        part.partition,
        part.start,
        part.end,
        scan_id=part.scan_id,
        replicas=order,
        wait_ms=source.replica_wait_ms,
        fetch_bytes_max=source.fetch_bytes,
        unreachable_ms_max=source.unreachable_ms,
        on_trimmed="skip" if skip else "raise",
    ) as scan:
        for stored in joined(scan):
            yield columns.batch(stored) if parse is None else columns.batch(*parse(stored))
            hold.renew()
        if scan.skipped:
            LOG.warning("%s: %d of its records were removed before they were read", part.where, scan.skipped)


def _parser(
    part: RangePartition, values: Values, schema: pa.Schema
) -> Callable[[pa.RecordBatch], tuple[pa.RecordBatch, pa.Array]]:
    """Stored records to (those of them that are kept, their parsed values)."""
    from pyspark_tinymq.values import JsonValues, MalformedValue

    reader = JsonValues(schema.field("value").type, values.mode, values.corrupt, values.zone)

    def parse(stored: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array]:
        try:
            parsed = reader.parse(stored.column("value"))
        except MalformedValue as error:
            offset = stored.column("offset")[error.row].as_py()
            raise InvalidRequest(f"{part.where}, offset {offset}: {error.message}", hint=error.hint) from None
        return (stored if parsed.kept is None else stored.filter(parsed.kept)), parsed.values

    return parse


@dataclass(slots=True)
class Renewal:
    """Renews the hold on what is read, now and then, for as long as it is read."""

    client: Client
    part: RangePartition
    lease_s: float
    _renewed_s: float = field(default_factory=time.monotonic)

    def renew(self) -> None:
        """If it is time for it. A hold that cannot be renewed is no reason to stop: what is read may well be there."""
        now_s = time.monotonic()
        if not self.lease_s or now_s - self._renewed_s < self.lease_s / RENEWALS_PER_LEASE:
            return
        self._renewed_s = now_s
        part = self.part
        try:
            self.client.admin.hold_many(
                part.topic,
                {part.partition: part.held_from},
                hold_id=part.hold_id,
                lease=self.lease_s,
                timeout=HOLD_TIMEOUT_S,
            )
        except TinymqError as error:
            LOG.warning("%s: the hold on it was not renewed: %s", part.where, error)
