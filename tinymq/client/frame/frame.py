"""AsyncFrame: the records of a topic up to the end of a moment, as a table that is read in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime

import pyarrow as pa

from tinymq.base.errors import InvalidRequest
from tinymq.base.types import Offset
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.lookups import topic_with
from tinymq.client.cluster.offsets import list_offsets
from tinymq.client.common.argument_checks import check_partitions, check_topic
from tinymq.client.common.start_positions import END, OffsetQuestion, Places, check_range, read_offset, read_place
from tinymq.client.consume.reader import ReaderCore
from tinymq.client.consume.records import TABLE_SCHEMA
from tinymq.client.frame.ranges import Ranges, clip, rows_of_ranges

OffsetRange = tuple[Offset | int | None, Offset | int | None]
"""The first offset that is read, and the first one that is not; None: from the start, up to the end."""

TimeRange = tuple[datetime | None, datetime | None]
"""As OffsetRange: the offsets of the first records at or after these times."""

Bounds = tuple[int | None, int | None]


class FrameCore:
    """A topic as a table. Made by AsyncClient.frame(). It reads nothing before it is used, and holds no connection.

        frame = mq.frame("orders", columns=["offset", "value"])
        table = await frame.to_arrow()
        async for batch in frame.batches():
            ...

    The first use fixes the range of every partition. So each use gives the same records, and a query that uses a frame
    twice is consistent. Records that arrive later are in the next frame. A use raises OffsetOutOfRange if retention has
    removed records of the frame since then, unless on_trimmed="skip".
    """

    schema: pa.Schema
    """The columns of the table: partition, offset, key, value, headers, timestamp, or those that were chosen."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        read: Callable[[Sequence[int], Places, Places], ReaderCore],
        *,
        leader_only: bool,
        columns: Sequence[str] | None,
        partitions: Sequence[int] | None,
        offsets: OffsetRange | None,
        times: TimeRange | None,
    ) -> None:
        """`read` makes a reader of the topic, of these partitions, starts and ends."""
        self.topic = check_topic(topic)
        self.schema = _schema_of(columns)
        self._cluster = cluster
        self._read = read
        self._leader_only = leader_only
        self._partitions = check_partitions(partitions)
        self._offsets, self._times = _check_bounds(offsets, times)
        self._opening = asyncio.Lock()
        self._ranges: Ranges | None = None

    def __repr__(self) -> str:
        return f"<AsyncFrame of {self.topic!r}: {', '.join(self.schema.names)}>"

    async def ranges(self) -> dict[int, tuple[int, int]]:
        """Return the range of each partition: its first offset, and the first offset behind it. Fixed by the first use.

        Raises UnknownTopic, UnknownPartition, DeadlineExceeded.
        """
        self._cluster.check_loop()
        async with self._opening:
            if self._ranges is None:
                self._ranges = await self._plan()
        return dict(self._ranges)

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Read the records, in batches of `schema`. Those of a partition come in order; partitions are interleaved.

        At most buffer_bytes_max bytes wait. Raises as a reader does when no replica serves a partition.
        """
        reader = self.reading(await self.ranges())
        if reader is None:
            return
        async with reader:
            async for batch in reader.batches():
                yield batch.select(self.schema.names)

    async def to_arrow(self) -> pa.Table:
        """Read everything into one table, ordered by partition, then offset. Raises as `batches`."""
        reader = self.reading(await self.ranges())
        if reader is None:
            return self.schema.empty_table()
        async with reader:
            return (await reader.to_arrow()).select(self.schema.names)

    async def count(self) -> int:
        """Return the number of records, without reading them. Raises as `ranges`."""
        return rows_of_ranges(await self.ranges())

    def reading(self, ranges: Mapping[int, tuple[int, int]]) -> ReaderCore | None:
        """Return a reader of these ranges of the frame; None if they have no records. Called on the loop."""
        wanted = {p: bounds for p, bounds in ranges.items() if bounds[0] < bounds[1]}
        if not wanted:
            return None
        starts = {p: Offset(first) for p, (first, _) in wanted.items()}
        return self._read(sorted(wanted), starts, {p: Offset(end) for p, (_, end) in wanted.items()})

    async def _plan(self) -> Ranges:
        left = self._cluster.countdown(self._cluster.config.request_timeout_ms / 1000)
        topic = await topic_with(self._cluster, self.topic, self._partitions or (), left())
        partitions = self._partitions if self._partitions is not None else topic.numbers

        async def ask(timestamp_us: int) -> dict[int, tuple[int, int, int]]:
            asks = dict.fromkeys(partitions, timestamp_us)
            answers = await list_offsets(self._cluster, topic, asks, timeout_s=left(), leader_only=self._leader_only)
            return {p: (answer.log_start, answer.offset, answer.high_watermark) for p, answer in answers.items()}

        # The end is asked first: records that arrive between the questions are behind it, and in no range.
        stored = {p: (start, end) for p, (start, _, end) in (await ask(END)).items()}
        first, last = self._offsets
        wanted = dict.fromkeys(partitions, (first, last))
        since, until = self._times
        if since is not None:
            wanted = {p: (offset, wanted[p][1]) for p, (_, offset, _) in (await ask(since)).items()}
        if until is not None:
            wanted = {p: (wanted[p][0], offset) for p, (_, offset, _) in (await ask(until)).items()}
        return {p: clip(wanted[p], stored[p]) for p in partitions}


def _schema_of(columns: object) -> pa.Schema:
    if columns is None:
        return TABLE_SCHEMA
    names = TABLE_SCHEMA.names
    if not isinstance(columns, list | tuple) or not columns or len(set(columns)) != len(columns):
        raise InvalidRequest(f"columns={columns!r}", hint=f"pass a list of some of {', '.join(names)}")
    for name in columns:
        if name not in names:
            raise InvalidRequest(f"a topic has no column {name!r}", hint=f"its columns are {', '.join(names)}")
    return pa.schema([TABLE_SCHEMA.field(name) for name in columns])


def _check_bounds(
    offsets: object, times: object
) -> tuple[tuple[int | None, int | None], tuple[int | None, int | None]]:
    """Return the bounds as numbers: of offsets, and of microseconds. Raises InvalidRequest, OffsetOutOfRange."""
    if offsets is not None and times is not None:
        raise InvalidRequest("both offsets and times are given", hint="choose one of them")
    first, last = (
        None if each is None else read_offset(each, "offsets") for each in _pair("offsets", offsets, "(5, None)")
    )
    check_range("earliest" if first is None else Offset(first), None if last is None else Offset(last))
    since, until = _pair("times", times, "(datetime(2026, 1, 1, tzinfo=UTC), None)")
    for time in (since, until):
        if time is not None and not isinstance(time, datetime):
            raise InvalidRequest(f"times: {time!r} is {type(time).__name__}", hint="pass datetimes with a zone")
    check_range("earliest" if since is None else since, until)
    return (first, last), (_microseconds(since), _microseconds(until))


def _pair(name: str, bounds: object, example: str) -> tuple[object, object]:
    if bounds is None:
        return None, None
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise InvalidRequest(f"{name}={bounds!r} is not a pair", hint=f"pass (from, up to), such as {example}")
    return bounds[0], bounds[1]


def _microseconds(time: object) -> int | None:
    place = None if time is None else read_place(time)
    return place.timestamp_us if isinstance(place, OffsetQuestion) else None
