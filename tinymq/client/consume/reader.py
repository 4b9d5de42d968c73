"""Read a topic asynchronously: a task per partition fetches, and the records wait in one FetchBuffer.

The records of a partition come in order, each offset once. When a replica fails, reading continues from another one at
the next offset, or raises: it never hangs silently. The bytes that wait are bounded (buffer_bytes_max).

A reader that was given neither partitions nor an end follows the topic: it reads partitions that are added, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

import pyarrow as pa

from tinymq.base.errors import Closed, OffsetOutOfRange, TinymqError
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.lookups import topic_with
from tinymq.client.cluster.offsets import list_offsets
from tinymq.client.cluster.routing import Topic
from tinymq.client.common import forks
from tinymq.client.common.argument_checks import OFFSET_MAX, check_count, check_partitions, check_topic, check_wait
from tinymq.client.common.config import ReaderConfig
from tinymq.client.common.start_positions import (
    EARLIEST,
    END,
    KnownOffset,
    OffsetQuestion,
    Places,
    by_partition,
    check_range,
)
from tinymq.client.common.traces import trimming, untraced
from tinymq.client.consume.fetch_buffer import FetchBuffer
from tinymq.client.consume.fetch_policy import FollowPolicy
from tinymq.client.consume.partition_fetcher import FetchPosition, PartitionFetcher
from tinymq.client.consume.records import Chunk, Message, to_table
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

ADD_RETRY_S = 1.0  # between two attempts to begin with an added partition, which may have no leader yet


class ReaderCore:
    """Reads some or all partitions of a topic. Made by AsyncClient.reader(); opened by the first use.

    async with mq.reader("orders", start="earliest", end="latest") as reader:
        async for message in reader:
            handle(message)
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        config: ReaderConfig,
        wake: Callable[[Callable[[], None]], None],
        *,
        partitions: Sequence[int] | None,
        start: Places,
        end: Places | None,
    ) -> None:
        """`wake` makes a call on the loop, soon, from any thread."""
        self.topic = check_topic(topic)
        self.config = config
        self.buffer = FetchBuffer(self.topic, lambda size: wake(lambda: self._freed(size)))
        self._cluster = cluster
        self._partitions = check_partitions(partitions)
        self._start, self._end = start, end
        self._topic_id = b""  # known when it is open
        check_range(start, end)  # here, so that not only the first read refuses it
        # `partitions`, `end` or a place for each fix the partitions. Otherwise the reader reads all, added ones, too.
        self._follows = partitions is None and end is None and not isinstance(start, Mapping)
        self._tasks: list[asyncio.Task[None]] = []
        self._adding: asyncio.Task[None] | None = None  # begins with added partitions
        self._opening: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()  # set when records wait, and when a fetcher ended or failed
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._buffered_bytes = 0  # written on the loop alone
        self._failure: Exception | None = None
        self._closed = False
        forks.in_child(self, ReaderCore._forked)

    def _forked(self) -> None:
        self.buffer.clear()

    def __repr__(self) -> str:
        return f"<AsyncReader of {self.topic!r}{' (closed)' if self.closed else ''}>"

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """Wait for the next message. Ends at `end`. Raises when no replica serves a partition any more."""
        while True:
            for message in self.buffer.at_hand:
                return message
            if not self.buffer.more() and not await self.arrival(None):
                raise StopAsyncIteration

    async def poll(self, timeout: float | None = None, max_records: int = 500) -> list[Message]:
        """Take up to `max_records` messages: at once if some wait, else as soon as one arrives.

        Returns [] after `timeout` seconds, and at once when the end is reached (`at_end`). Without a timeout it waits
        until one message arrives.
        """
        check_wait(timeout)
        check_count("max_records", max_records, 1)
        messages = self.buffer.next_messages(max_records)
        while not messages and await self.arrival(timeout):
            messages = self.buffer.next_messages(max_records)
        return messages

    async def to_arrow(self, limit: int | None = None) -> pa.Table:
        """Read everything up to the end (`end`, or the end when the reader was opened) as one table.

        Rows are ordered by partition, then offset. Columns: partition, offset, key, value, headers, timestamp. With
        `limit`, the table has at most that many rows, and the next call continues behind them. After this call the
        reader does not follow new records: it ends where the table ends.
        """
        if limit is not None:
            check_count("limit", limit, 0, most=OFFSET_MAX)
        await self.open()
        self._follows = False
        for cursor in self.buffer.cursors.values():
            cursor.end = cursor.end_seen if cursor.end is None else min(cursor.end, cursor.end_seen)
        chunks: list[Chunk] = []
        left = limit
        while left is None or left > 0:
            chunk = self.buffer.take_chunk()
            if chunk is None:
                if not await self.arrival(None):
                    break
                continue
            if left is not None and chunk.batch.num_rows > left:
                upto = chunk.base_offset + left
                self.buffer.give_back(chunk, upto)
                chunk = chunk.cut(0, upto) or chunk
            chunks.append(chunk)
            left = left - chunk.batch.num_rows if left is not None else None
        return to_table(chunks)

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Read on as record batches with the columns of `to_arrow`, as they are stored, up to `end`.

        Those of a partition come in order; partitions are interleaved. Without `end` it waits for new records.
        """
        while True:
            chunk = self.buffer.take_chunk()
            if chunk is not None:
                yield chunk.table()
            elif not await self.arrival(None):
                return

    @property
    def closed(self) -> bool:
        """Was it closed?"""
        return self._closed

    def position(self) -> dict[int, int]:
        """Return the next offset of every partition that is read; empty before the first use."""
        return self.buffer.position()

    @property
    def skipped(self) -> int:
        """The number of offsets that were removed before they could be read; only counted with on_trimmed="skip"."""
        return sum(cursor.skipped for cursor in self.buffer.cursors.values())

    @property
    def at_end(self) -> bool:
        """Was everything up to every end taken? Never true without `end`, unless `to_arrow` was called."""
        return self.buffer.complete

    async def open(self) -> None:
        """Look up the topic and the offsets to start at. The first use and `async with` do this."""
        self._cluster.check_loop()
        if self._closed:
            raise Closed("the reader is closed")
        if self.buffer.cursors:
            return
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        opening = self._opening
        try:
            await asyncio.shield(opening)
        finally:
            if opening.done():
                self._opening = None

    async def close(self) -> None:
        """Stop reading, and drop the records that wait. A second call does nothing."""
        self._cluster.check_loop()
        self._closed = True
        self._cluster.changed.pop(self._look, None)
        tasks = [*self._tasks, *(task for task in (self._opening, self._adding) if task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.buffer.clear()
        self._arrived.set()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @trimming
    async def arrival(self, timeout_s: float | None) -> bool:
        """Wait until records wait in `buffer`. False: the time is up, or the end is reached. Raises what stopped it."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.open()
                while self.buffer.empty:
                    if self._closed:
                        raise Closed("the reader is closed")
                    if self._failure is not None:
                        raise untraced(self._failure)
                    if self.buffer.complete:
                        return False
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            return False
        return True

    def fail(self, error: Exception) -> None:
        """Raise `error` from now on in calls that need more records than those that wait."""
        self._failure = self._failure or error
        self._arrived.set()

    async def _open(self) -> None:
        left = self._cluster.countdown(self._cluster.config.request_timeout_ms / 1000)
        topic = await topic_with(self._cluster, self.topic, self._partitions or (), left(), create=True)
        self._topic_id = topic.topic_id
        partitions = self._partitions if self._partitions is not None else topic.numbers
        starts = by_partition(self._start, partitions)
        # Every partition is asked, even if its start is a known offset: the answers also have the ends, the leader
        # epochs and the histories that the fetches begin with.
        answers = await self._ask(topic, starts, left())
        answers = await self._confirm(topic, starts, answers, left())
        seen = {p: answer.high_watermark for p, answer in answers.items()}
        offsets = {p: s.offset if isinstance(s, KnownOffset) else answers[p].offset for p, s in starts.items()}
        ends: dict[int, int | None] = dict.fromkeys(partitions)
        if self._end is not None:
            places = by_partition(self._end, partitions)
            times = {p: e for p, e in places.items() if isinstance(e, OffsetQuestion) and e.timestamp_us != END}
            last = await self._ask(topic, times, left()) if times else {}
            for p, place in places.items():
                ends[p] = place.offset if isinstance(place, KnownOffset) else last[p].offset if p in times else seen[p]
        cursors = {
            p: FetchPosition(p, offsets[p], ends[p], seen[p], answers[p].leader_epoch, history=answers[p].history)
            for p in partitions
        }
        self.buffer.begin(cursors)
        self._fetch(topic, cursors.values())
        if self._follows:
            self._cluster.changed[self._look] = None
            self._look()  # the client may have learned of another partition since

    def _look(self) -> None:
        """Begin with the partitions that were added, as soon as the client knows of them."""
        if self._adding is None and self._added():
            self._adding = asyncio.create_task(self._add())

    def _added(self) -> list[int]:
        """The partitions of the topic, as the client knows it, that are not read."""
        topic = self._cluster.view.topics.get(self.topic)
        if topic is None or topic.topic_id != self._topic_id or not self._follows:
            return []
        return [number for number in topic.numbers if number not in self.buffer.cursors]

    async def _add(self) -> None:
        """Read added partitions from their beginning: they have no record from before they were added."""
        try:
            while numbers := self._added():
                topic = self._cluster.view.topics[self.topic]
                try:
                    beginnings = dict.fromkeys(numbers, OffsetQuestion(EARLIEST))
                    answers = await self._ask(topic, beginnings, self._cluster.config.request_timeout_ms / 1000)
                except TinymqError as error:
                    LOG.debug("reader of %s: partitions %s are not read yet: %s", self.topic, numbers, error)
                    await self._cluster.clock.sleep(ADD_RETRY_S)
                    continue
                if not self._follows:  # meanwhile, `to_arrow` has fixed what is read
                    return
                cursors = [
                    FetchPosition(p, int(a.offset), None, a.high_watermark, a.leader_epoch, history=a.history)
                    for p, a in answers.items()
                ]
                for cursor in cursors:
                    self.buffer.add(cursor)
                self._fetch(topic, cursors)
        except Exception as error:  # a reader never stops silently
            self.fail(error)
        finally:
            self._adding = None

    def _fetch(self, topic: Topic, cursors: Iterable[FetchPosition]) -> None:
        """Fetch from the cursors on, each in a task of its own."""
        for cursor in cursors:
            fetcher = PartitionFetcher(
                cluster=self._cluster,
                config=self.config,
                policy=FollowPolicy(self._cluster, self.config),
                topic=topic,
                cursor=cursor,
                deliver=self._deliver,
                has_room=self._has_room,
                turn=self._cluster.rng.randrange(1 << 16),
            )
            self._tasks.append(asyncio.create_task(self._fetch_partition(fetcher)))

    async def _ask(
        self, topic: Topic, places: Mapping[int, OffsetQuestion | KnownOffset], timeout_s: float
    ) -> dict[int, pb.OffsetAnswer]:
        asks = {p: place.timestamp_us if isinstance(place, OffsetQuestion) else END for p, place in places.items()}
        strict = self.config.replica == "leader"
        return await list_offsets(self._cluster, topic, asks, timeout_s=timeout_s, leader_only=strict)

    async def _confirm(
        self,
        topic: Topic,
        starts: Mapping[int, OffsetQuestion | KnownOffset],
        answers: dict[int, pb.OffsetAnswer],
        timeout_s: float,
    ) -> dict[int, pb.OffsetAnswer]:
        """Check that no start lies beyond its partition's end, and return the answers.

        Where one does, the leader is asked again, because another replica that answered may lag. Raises
        OffsetOutOfRange.
        """

        def beyond(replies: Mapping[int, pb.OffsetAnswer]) -> dict[int, int]:
            known = {p: s.offset for p, s in starts.items() if isinstance(s, KnownOffset)}
            return {p: offset for p, offset in known.items() if offset > replies[p].high_watermark}

        doubtful = dict.fromkeys(beyond(answers), END)
        if doubtful:
            answers |= await list_offsets(self._cluster, topic, doubtful, timeout_s=timeout_s, leader_only=True)
        for p, offset in beyond(answers).items():
            end = answers[p].high_watermark
            raise OffsetOutOfRange(
                f"{topic.name}/{p}: start={offset} lies beyond the end, {end}",
                hint=f"start at {end} or below, or from 'latest'",
                high_watermark=end,
                log_start=answers[p].log_start,
            )
        return answers

    async def _fetch_partition(self, fetcher: PartitionFetcher) -> None:
        try:
            await fetcher.run()
        except Exception as error:  # the application's next call raises it: a reader never stops silently
            self.fail(error)
        finally:
            self._arrived.set()

    def _deliver(self, chunk: Chunk) -> None:
        self._buffered_bytes += chunk.bytes
        if self._buffered_bytes >= self.config.buffer_bytes_max:
            self._has_room.clear()
        self.buffer.ready.append(chunk)
        self._arrived.set()

    def _freed(self, size: int) -> None:
        self._buffered_bytes -= size
        if self._buffered_bytes < self.config.buffer_bytes_max:
            self._has_room.set()
