"""A stream: where it begins, how far each micro-batch goes, and what it reads, planned in the driver.

Spark keeps the offsets: it asks for the latest one with the last one's end, and plans what lies between. Equal offsets
are equal texts, so that nothing new is no micro-batch.
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
from pyspark_tinymq.plan.planner import Planner, clipped, told
from pyspark_tinymq.plan.task import RangePartition
from pyspark_tinymq.read.progress import Progress
from pyspark_tinymq.session import session
from pyspark_tinymq.session.logs import show
from tinymq.base.errors import BrokerUnreachable, DeadlineExceeded

LOG = logging.getLogger("pyspark_tinymq")
ROWS_MAX = (1 << 31) - 1  # a limit that limits nothing: there is one for bytes, or a minimum


@dataclass(slots=True)
class Driver:
    """What a running query knows besides its offsets, in the driver's Python worker."""

    planner: Planner
    progress: Progress | None
    planned_s: float = -math.inf  # when a micro-batch was last planned, or first looked for: that one does not wait
    target: Offsets | None = None  # where a stream that ends ends
    latest: dict[str, Any] | None = None
    low: Set[Partition] = frozenset()  # their ends were below what was read, the last time
    topics: Topics | None = None  # as they were last told, with replicas once a micro-batch was planned


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in the driver, reads in tasks. Picklable until it has planned."""

    def __init__(self, source: Source, schema: pa.Schema) -> None:
        """`schema` is Spark's, for Arrow."""
        self._source = source
        self._schema = schema
        self._made: Driver | None = None

    # ---- where it begins ------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """That of a query without a batch: latestOffset looks where it begins. Spark also asks a query for it that was
        started again in its first batch; that one's end says where it began, whatever is there by now."""
        return offsets.initial({}, {}).write()

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on the stream ends where the partitions end now."""
        driver = self._driver()
        lookup = driver.planner.lookup
        bounds = lookup.bounds(lookup.topics(missing=True, where=False).partitions)
        driver.target = {at: bound.end for at, bound in bounds.items()}

    # ---- how far it goes ------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        """Of a kind that tells our own limits apart from Trigger.Once, which ignores them."""
        limits = self._source.limits
        return ReadMaxRows(limits.rows_max or ROWS_MAX) if limits.any else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next micro-batch goes; `start`, to the letter, if there is none yet.

        The first one begins at once, empty or not: its end tells a restart where the query began. For that one it
        raises UnknownTopic, UnknownPartition, InvalidRequest (no record as late as a time), OffsetOutOfRange (an offset
        beyond the end)."""
        driver = self._driver()
        begin = offsets.read_stream(start)
        topics = self._topics(driver, begin, where=False)
        # Only who is to come to an end, or to begin at one, has to know all of them.
        partial = not begin.initial and driver.target is None
        bounds = driver.planner.lookup.bounds(topics.partitions, partial=partial)
        if begin.initial:
            begin = self._beginning(topics, bounds)
        known = self._still_there(begin, topics)
        self._tell_of_low_ends(known, bounds)
        starts = {at: known.get(at, bound.first) for at, bound in bounds.items()}
        available = plan.forward(starts, {at: bound.end for at, bound in bounds.items()})
        if driver.target is not None:
            available = {
                at: max(starts[at], min(end, driver.target.get(at, 0)))
                for at, end in available.items()
                if at in known or at in driver.target
            }
        # A partition that is new and empty is no news.
        available = {at: end for at, end in available.items() if at in known or end > starts[at]}
        driver.latest = StreamOffset(available).write()
        self._publish(begin, available)
        ends = self._admitted(driver, starts, available, limit)
        ends |= {at: known[at] for at in known if at not in ends}  # it did not answer, and is there
        end = begin.following(ends, {topic: topics.ids[topic] for topic in sorted({at.topic for at in ends})})
        if end is begin:
            if driver.target is None:
                driver.planner.keep(ends)  # what was read since is let go of, and what comes next is held
            else:
                driver.planner.release()  # it has come to its end
            return start
        driver.planned_s = monotonic()
        return end.write()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends that were last seen, for the query's progress."""
        return self._made.latest if self._made is not None else None

    # ---- what it reads --------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One for each range between two offsets. Raises OffsetOutOfRange, UnknownPartition for what is lost."""
        driver = self._driver()
        begin, until = offsets.read_stream(start), offsets.read_stream(end)
        starts = until.first if begin.initial and until.first is not None else begin.offsets
        topics = self._topics(driver, begin, where=True)
        if not begin.initial:
            starts = {at: offset for at, offset in starts.items() if begin.ids.get(at.topic) == until.ids.get(at.topic)}
        again = {topic for topic, topic_id in until.ids.items() if topics.ids.get(topic, topic_id) != topic_id}
        wanted = {at: offset for at, offset in until.offsets.items() if at.topic not in again}
        driver.planner.report([Loss(at, AGAIN) for at in until.offsets if at.topic in again])
        exact = isinstance(self._source.start, Mapping)
        lenient = () if exact or not begin.initial else tuple(starts)
        planned = driver.planner.tasks(topics, starts, wanted, lenient=lenient)
        read = {Partition(each.topic, each.partition) for each in planned}
        there = topics.partitions
        driver.planner.keep({at: last for at, last in wanted.items() if at in there and at not in read})
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: see task.read."""
        if not isinstance(partition, RangePartition):
            return iter(())
        return task.read(partition, self._source, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """What lies below is done with. Spark says so during the next micro-batch, and of the last one never."""
        driver = self._driver()
        if driver.progress is not None:
            driver.progress.publish(offsets.read_stream(end).offsets, now=False)

    def stop(self) -> None:
        """Nothing is held any more. (Spark does not say when a query ends: what was held ends with its lease then.)"""
        if self._made is not None:
            self._made.planner.release()

    # ---- of its parts ---------------------------------------------------------------------------------

    def _driver(self) -> Driver:
        if self._made is None:
            show()
            source = self._source
            client = session.client(source)
            planner = Planner(
                Lookup(client, source), source, new_scan_id(source), os.urandom(16), Ledger(source.hold_s)
            )
            progress = Progress(client, source.group) if source.group else None
            self._made = Driver(planner, progress)
            if progress is not None:
                progress.check(planner.lookup.topics(missing=True, where=False).ids)
            told(source, planner.scan_id, "stream")
        return self._made

    def _topics(self, driver: Driver, begin: StreamOffset, *, where: bool) -> Topics:
        """As Lookup.topics. Without a majority of the brokers that keep the metadata, what was last told is gone on
        with: records are read as long as a replica of them is there."""
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
            driver.topics = now  # else the last one is kept: it may have replicas, and this one has none
        return now

    def _beginning(self, topics: Topics, bounds: Mapping[Partition, Bounds]) -> StreamOffset:
        """Where a new query begins."""
        source, planner = self._source, self._driver().planner
        place = planner.lookup.place(source.start, bounds, "startingOffsets")
        lasts = {at: bound.end for at, bound in bounds.items()}
        starts, beyond = clipped(source.start, place, lasts, "startingOffsets")
        planner.report(beyond)
        return offsets.initial(starts, topics.ids)

    def _still_there(self, begin: StreamOffset, topics: Topics) -> dict[Partition, int]:
        """How far what is still there was read. Reports what is gone, and topics that were made again."""
        losses = []
        known = {}
        for at, offset in begin.offsets.items():
            if at not in topics.partitions:
                losses.append(Loss(at, GONE))
            elif begin.ids.get(at.topic, topics.ids[at.topic]) != topics.ids[at.topic]:
                losses.append(Loss(at, AGAIN))
            else:
                known[at] = offset
        self._driver().planner.report(losses)
        return known

    def _tell_of_low_ends(self, known: Offsets, bounds: Mapping[Partition, Bounds]) -> None:
        """Ends below what was read: who answered lags, or records were lost with a majority of their disks and an
        operator went on without them. The two look alike from here, so that it is told and no error."""
        driver = self._driver()
        low = {at for at, offset in known.items() if at in bounds and bounds[at].end < offset}
        for at in sorted(low - driver.low)[:1]:
            LOG.warning(
                "%s ends at %d, and %d comes next: who answers lags, or records were lost (see: tinymq cluster status)",
                at,
                bounds[at].end,
                known[at],
            )
        driver.low = low

    def _admitted(self, driver: Driver, starts: Offsets, available: Offsets, limit: ReadLimit) -> dict[Partition, int]:
        limits = self._source.limits
        if isinstance(limit, ReadAllAvailable):
            return dict(available)
        waited_s = monotonic() - driver.planned_s
        if waited_s == math.inf:
            driver.planned_s = monotonic()
        if driver.target is None and plan.waits(starts, available, limits, waited_s):
            return {at: starts[at] for at in available}
        sizes: Mapping[Partition, float] = {}
        if limits.bytes_max is not None:
            sizes = driver.planner.lookup.record_bytes(at for at, end in available.items() if end > starts[at])
        return dict(plan.admit(starts, available, limits, sizes))

    def _publish(self, begin: StreamOffset, available: Offsets) -> None:
        """All before `begin` is done with: Spark asks for more."""
        driver = self._driver()
        if driver.progress is not None and not begin.initial:
            ends = driver.target is not None and all(begin.offsets.get(at) == end for at, end in available.items())
            driver.progress.publish(begin.offsets, now=ends)
