"""Reads a stream. The driver plans where it begins, how far each micro-batch goes, and which ranges that one reads.

Spark stores the offsets. It passes the end of the last micro-batch to get the end of the next one, and then asks for
the ranges between them. Equal offsets are equal texts, so Spark starts no micro-batch if there is nothing new.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from time import monotonic
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pyspark_tinymq.options import offsets
from pyspark_tinymq.options.offsets import Offsets, Partition, StreamOffset
from pyspark_tinymq.options.settings import Source
from pyspark_tinymq.plan import plan, task
from pyspark_tinymq.plan.hold_ledger import Ledger
from pyspark_tinymq.plan.lookup import Lookup, Topics, new_scan_id
from pyspark_tinymq.plan.plan import AGAIN, GONE, Bounds, Loss
from pyspark_tinymq.plan.planner import Planner, clipped, log_scan_id
from pyspark_tinymq.plan.task import RangePartition
from pyspark_tinymq.read.progress import Progress
from pyspark_tinymq.session import session
from pyspark_tinymq.session.logs import show_warnings
from tinymq.base.errors import BrokerUnreachable, DeadlineExceeded

LOG = logging.getLogger("pyspark_tinymq")
ROWS_MAX = (1 << 31) - 1  # in place of a limit of rows, when only a limit of bytes or a minimum is set


@dataclass(slots=True)
class Driver:
    """The state of a running query besides its offsets, in the driver's Python worker."""

    planner: Planner
    progress: Progress | None
    planned_s: float = -math.inf  # when the last micro-batch was planned; the first one does not wait
    target: Offsets | None = None  # the end of the stream with trigger availableNow
    latest: dict[str, Any] | None = None  # the ends of the partitions at the last look
    low: Set[Partition] = frozenset()  # partitions that ended below the stream's position at the last look
    topics: Topics | None = None  # the last answer of the cluster, with replicas once a micro-batch was planned


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in the driver, reads in tasks. Picklable until it has planned."""

    def __init__(self, source: Source, schema: pa.Schema) -> None:
        """`schema` is the Arrow schema of the columns."""
        self._source = source
        self._schema = schema
        self._made: Driver | None = None

    # ---- where it begins ------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset of a query without a batch. latestOffset then finds where the query begins.

        Spark also calls this when a query restarts in its first batch. That batch's end says where the query began.
        """
        return offsets.initial({}, {}).write()

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the stream end at the current ends of the partitions."""
        driver = self._driver()
        lookup = driver.planner.lookup
        bounds = lookup.bounds(lookup.topics(missing=True, where=False).partitions)
        driver.target = {partition: bound.end for partition, bound in bounds.items()}

    # ---- how far it goes ------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a kind of limit that tells our own limits apart from Trigger.Once, which ignores them."""
        limits = self._source.limits
        return ReadMaxRows(limits.rows_max or ROWS_MAX) if limits.any else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch, or `start` itself if there is none yet.

        The first micro-batch begins at once, even if it is empty, because its end tells a restarted query where the
        query began. For that one this raises UnknownTopic, UnknownPartition, InvalidRequest (no record is as late as a
        time) and OffsetOutOfRange (an offset is beyond the end).
        """
        driver = self._driver()
        begin = offsets.read_stream(start)
        topics = self._topics(driver, begin, where=False)
        # The bounds of all partitions are needed only to find where the stream begins, or where it ends.
        partial = not begin.initial and driver.target is None
        bounds = driver.planner.lookup.bounds(topics.partitions, partial=partial)
        if begin.initial:
            begin = self._beginning(topics, bounds)
        positions = self._still_there(begin, topics)
        self._warn_of_low_ends(positions, bounds)
        starts = {partition: positions.get(partition, bound.first) for partition, bound in bounds.items()}
        available = plan.forward(starts, {partition: bound.end for partition, bound in bounds.items()})
        if driver.target is not None:
            available = {
                partition: max(starts[partition], min(end, driver.target.get(partition, 0)))
                for partition, end in available.items()
                if partition in positions or partition in driver.target
            }
        # A new partition without records does not justify a micro-batch.
        available = {
            partition: end for partition, end in available.items() if partition in positions or end > starts[partition]
        }
        driver.latest = StreamOffset(available).write()
        self._publish(begin, available)
        ends = self._admitted(driver, starts, available, limit)
        ends |= {
            partition: positions[partition] for partition in positions if partition not in ends
        }  # partitions that exist, and did not answer
        end = begin.following(
            ends, {topic: topics.ids[topic] for topic in sorted({partition.topic for partition in ends})}
        )
        if end is begin:
            if driver.target is None:
                driver.planner.keep(ends)  # moves the holds past the records that were read
            else:
                driver.planner.release()  # the stream is at its end
            return start
        driver.planned_s = monotonic()
        return end.write()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends at the last look, for the query's progress."""
        return self._made.latest if self._made is not None else None

    # ---- what it reads --------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition for each range between two offsets.

        Raises OffsetOutOfRange or UnknownPartition for lost records.
        """
        driver = self._driver()
        begin, until = offsets.read_stream(start), offsets.read_stream(end)
        starts = until.first if begin.initial and until.first is not None else begin.offsets
        topics = self._topics(driver, begin, where=True)
        if not begin.initial:
            starts = {
                partition: offset
                for partition, offset in starts.items()
                if begin.ids.get(partition.topic) == until.ids.get(partition.topic)
            }
        again = {topic for topic, topic_id in until.ids.items() if topics.ids.get(topic, topic_id) != topic_id}
        wanted = {partition: offset for partition, offset in until.offsets.items() if partition.topic not in again}
        driver.planner.report([Loss(partition, AGAIN) for partition in until.offsets if partition.topic in again])
        exact = isinstance(self._source.start, Mapping)
        lenient = () if exact or not begin.initial else tuple(starts)
        planned = driver.planner.tasks(topics, starts, wanted, lenient=lenient)
        read = {Partition(each.topic, each.partition) for each in planned}
        there = topics.partitions
        driver.planner.keep(
            {partition: last for partition, last in wanted.items() if partition in there and partition not in read}
        )
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a range, in a task: see task.read."""
        if not isinstance(partition, RangePartition):
            return iter(())
        return task.read(partition, self._source, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Publish that the records below `end` are done.

        Spark calls this for a micro-batch during the next one, and so never for the last one.
        """
        driver = self._driver()
        if driver.progress is not None:
            driver.progress.publish(offsets.read_stream(end).offsets, now=False)

    def stop(self) -> None:
        """Release all holds. If Spark does not call this when a query ends, the holds end with their leases."""
        if self._made is not None:
            self._made.planner.release()

    # ---- parts of the above ---------------------------------------------------------------------------

    def _driver(self) -> Driver:
        if self._made is None:
            show_warnings()
            source = self._source
            client = session.client(source)
            planner = Planner(
                Lookup(client, source), source, new_scan_id(source), os.urandom(16), Ledger(source.hold_s)
            )
            progress = Progress(client, source.group) if source.group else None
            self._made = Driver(planner, progress)
            if progress is not None:
                progress.check(planner.lookup.topics(missing=True, where=False).ids)
            log_scan_id(source, planner.scan_id, "stream")
        return self._made

    def _topics(self, driver: Driver, begin: StreamOffset, *, where: bool) -> Topics:
        """Return the topics, as Lookup.topics does.

        Without a majority of the metadata's voters the last answer is used again, because records can be read as long
        as one of their replicas is reachable.
        """
        missing = where or not begin.initial
        try:
            now = driver.planner.lookup.topics(missing=missing, where=where)
        except (DeadlineExceeded, BrokerUnreachable) as error:
            if driver.topics is None or driver.target is not None:
                raise
            LOG.warning("going on with the partitions that are known: %s", error.message)
            return driver.topics
        last = driver.topics
        if where or last is None or (now.ids, now.partitions.keys()) != (last.ids, last.partitions.keys()):
            driver.topics = now  # the old answer stays if nothing changed: it may have replicas, and `now` has none
        return now

    def _beginning(self, topics: Topics, bounds: Mapping[Partition, Bounds]) -> StreamOffset:
        """Return the offset at which a new query begins."""
        source, planner = self._source, self._driver().planner
        place = planner.lookup.place(source.start, bounds, "startingOffsets")
        lasts = {partition: bound.end for partition, bound in bounds.items()}
        starts, beyond = clipped(source.start, place, lasts, "startingOffsets")
        planner.report(beyond)
        return offsets.initial(starts, topics.ids)

    def _still_there(self, begin: StreamOffset, topics: Topics) -> dict[Partition, int]:
        """Return the positions in partitions that still exist. Reports partitions that are gone, and topics that were
        created again."""
        losses = []
        positions = {}
        for partition, offset in begin.offsets.items():
            if partition not in topics.partitions:
                losses.append(Loss(partition, GONE))
            elif begin.ids.get(partition.topic, topics.ids[partition.topic]) != topics.ids[partition.topic]:
                losses.append(Loss(partition, AGAIN))
            else:
                positions[partition] = offset
        self._driver().planner.report(losses)
        return positions

    def _warn_of_low_ends(self, positions: Offsets, bounds: Mapping[Partition, Bounds]) -> None:
        """Log the first partition that ends below the stream's position.

        Either the replica that answered lags, or a majority of disks was lost and an operator recovered the partition
        without its last records. The stream cannot tell these cases apart, so this is not an error.
        """
        driver = self._driver()
        low = {
            partition
            for partition, offset in positions.items()
            if partition in bounds and bounds[partition].end < offset
        }
        for partition in sorted(low - driver.low)[:1]:
            LOG.warning(
                "%s ends at %d, and %d comes next: a replica lags, or records were lost (see: tinymq cluster status)",
                partition,
                bounds[partition].end,
                positions[partition],
            )
        driver.low = low

    def _admitted(self, driver: Driver, starts: Offsets, available: Offsets, limit: ReadLimit) -> dict[Partition, int]:
        limits = self._source.limits
        if isinstance(limit, ReadAllAvailable):
            return dict(available)
        waited_s = monotonic() - driver.planned_s
        if waited_s == math.inf:
            driver.planned_s = monotonic()
        if driver.target is None and plan.must_wait(starts, available, limits, waited_s):
            return {partition: starts[partition] for partition in available}
        sizes: Mapping[Partition, float] = {}
        if limits.bytes_max is not None:
            sizes = driver.planner.lookup.record_bytes(
                partition for partition, end in available.items() if end > starts[partition]
            )
        return dict(plan.micro_batch_end(starts, available, limits, sizes))

    def _publish(self, begin: StreamOffset, available: Offsets) -> None:
        """Publish that the records before `begin` are done, which holds when Spark asks for more."""
        driver = self._driver()
        if driver.progress is not None and not begin.initial:
            ends = driver.target is not None and all(
                begin.offsets.get(partition) == end for partition, end in available.items()
            )
            driver.progress.publish(begin.offsets, now=ends)
