"""Reads a batch. It is planned at its first use, and every later use of the same DataFrame reads the same offsets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_tinymq.options.offsets import EARLIEST, Partition
from pyspark_tinymq.options.settings import Source
from pyspark_tinymq.plan import task
from pyspark_tinymq.plan.hold_ledger import Ledger
from pyspark_tinymq.plan.lookup import Lookup, new_scan_id
from pyspark_tinymq.plan.plan import BATCH_HINT
from pyspark_tinymq.plan.planner import Planner, clipped, log_scan_id
from pyspark_tinymq.plan.task import RangePartition
from pyspark_tinymq.session import session
from pyspark_tinymq.session.logs import show_warnings


class BatchReader(DataSourceReader):
    """Plans in the driver, reads in tasks. Picklable."""

    def __init__(self, source: Source, schema: pa.Schema) -> None:
        """`schema` is the Arrow schema of the columns."""
        self._source = source
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each range.

        Raises UnknownTopic, UnknownPartition, InvalidRequest (no record is as late as a time), OffsetOutOfRange
        (records are gone, or do not exist yet), BrokerUnreachable and DeadlineExceeded.
        """
        show_warnings()
        source = self._source
        lookup = Lookup(session.client(source), source)
        planner = Planner(lookup, source, new_scan_id(source), os.urandom(16), Ledger(source.hold_s), BATCH_HINT)
        topics = lookup.topics()
        bounds = lookup.bounds(topics.partitions)
        lasts = {partition: bound.end for partition, bound in bounds.items()}
        first = lookup.place(source.start, bounds, "startingOffsets")
        last = lookup.place(source.end, bounds, "endingOffsets")
        starts, early = clipped(source.start, first, lasts, "startingOffsets")
        ends, late = clipped(source.end, last, lasts, "endingOffsets")
        planner.report([*early, *late])
        lenient = {partition for partition in starts if not _explicit(source, partition)}
        upto = {partition: max(ends[partition], start) for partition, start in starts.items()}
        tasks = planner.tasks(topics, starts, upto, lenient=lenient, bounds=bounds)
        log_scan_id(source, planner.scan_id, f"batch: {sum(each.end - each.start for each in tasks)} records")
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a range, in a task: see task.read."""
        if not isinstance(partition, RangePartition):  # Spark's own, for an empty plan
            return iter(())
        return task.read(partition, self._source, self._schema)


def _explicit(source: Source, partition: Partition) -> bool:
    """Tell whether the options name this very offset, rather than the first record or a time."""
    start = source.start
    return isinstance(start, dict) and start.get(partition, EARLIEST) >= 0
