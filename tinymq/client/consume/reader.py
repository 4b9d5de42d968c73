"""Readers, asynchronous: every partition is followed by a task of its own; what they fetch waits in one FetchBuffer.

What a reader promises: records of a partition come in order, each offset once; it never hangs silently, it goes
on from another replica at the next offset or raises. How much waits untaken is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import pyarrow as pa

from tinymq.base.errors import Closed, OffsetOutOfRange
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.lookups import topic_with
from tinymq.client.cluster.offsets import list_offsets
from tinymq.client.cluster.routing import Topic
from tinymq.client.common.argument_checks import OFFSET_MAX, check_count, check_partitions, check_topic, check_wait
from tinymq.client.common.config import ReaderConfig
from tinymq.client.common.start_positions import END, KnownOffset, OffsetQuestion, Places, by_partition, check_range
from tinymq.client.consume.fetch_buffer import FetchBuffer
from tinymq.client.consume.partition_fetcher import Cursor, PartitionFetcher
from tinymq.client.consume.records import Chunk, Message, to_table
from tinymq.proto import tinymq_pb2 as pb


class AsyncReader:
    """Reads some or all partitions of a topic. Made by AsyncClient.reader(); opened by the first use."""

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
        self._wanted = check_partitions(partitions)
        self._start, self._end = start, end
        check_range(start, end)  # refused here, not at the first read
        self._tasks: list[asyncio.Task[None]] = []
        self._opening: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()  # something is at hand, or ended, or failed
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._buffered_bytes = 0
        self._failure: Exception | None = None
        self._closed = False

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """The next message. Waits for it; ends at `end`. Raises when a partition is served by no replica any more."""
        message = self.buffer.next_message()
        while message is None:
            if not await self.arrival(None):
                raise StopAsyncIteration
            message = self.buffer.next_message()
        return message

    async def poll(self, timeout: float | None = None, max_records: int = 500) -> list[Message]:
        """Up to `max_records` messages: at once if there are any, else after up to `timeout` seconds ([] then).

        Without a timeout it waits for one message at least; [] at once when the end is reached (`at_end`).
        """
        check_wait(timeout)
        check_count("max_records", max_records, 1)
        found = self.buffer.next_messages(max_records)
        while not found and await self.arrival(timeout):
            found = self.buffer.next_messages(max_records)
        return found

    async def to_arrow(self, limit: int | None = None) -> pa.Table:
        """Everything up to the end seen at opening (or `end`) as one table, by partition, then offset.

        Columns: partition, offset, key, value, headers, timestamp. At most `limit` rows: calling again goes on
        from there. A reader that was asked for a table does not tail: it ends where the table ends.
        """
        if limit is not None:
            check_count("limit", limit, 0, most=OFFSET_MAX)
        await self.open()
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

    @property
    def closed(self) -> bool:
        return self._closed

    def position(self) -> dict[int, int]:
        """The offset that comes next, for every partition that is read; empty before the first use."""
        return self.buffer.position()

    @property
    def skipped(self) -> int:
        """Offsets that were gone before they could be read; counted with on_trimmed="skip" alone."""
        return sum(cursor.skipped for cursor in self.buffer.cursors.values())

    @property
    def at_end(self) -> bool:
        """Everything up to every end was taken. Never true of a reader without `end`, unless it gave a table."""
        return self.buffer.complete

    async def open(self) -> None:
        """Look the topic up and find where to start. Done by the first use, or by `async with`."""
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
        """Stop reading. What was fetched and not taken is dropped. Closing twice is nothing."""
        self._cluster.check_loop()
        self._closed = True
        tasks = [*self._tasks, *([self._opening] if self._opening is not None else [])]
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

    async def arrival(self, timeout_s: float | None) -> bool:
        """Wait until something is at hand. False: time is up, or the end is reached. Raises what stopped reading."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.open()
                while self.buffer.empty:
                    if self._closed:
                        raise Closed("the reader is closed")
                    if self._failure is not None:
                        raise self._failure
                    if self.buffer.complete:
                        return False
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            return False
        return True

    def fail(self, error: Exception) -> None:
        """Whoever asks for more than what is at hand hears this from now on."""
        self._failure = self._failure or error
        self._arrived.set()

    async def _open(self) -> None:
        left = self._cluster.countdown(self._cluster.config.request_timeout_ms / 1000)
        topic = await topic_with(self._cluster, self.topic, self._wanted or (), left())
        partitions = self._wanted if self._wanted is not None else topic.numbers
        starts = by_partition(self._start, partitions)
        asked = await self._ask(topic, starts, left())
        asked = await self._confirmed(topic, starts, asked, left())
        seen = {p: answer.high_watermark for p, answer in asked.items()}
        offsets = {p: s.offset if isinstance(s, KnownOffset) else asked[p].offset for p, s in starts.items()}
        ends: dict[int, int | None] = dict.fromkeys(partitions)
        if self._end is not None:
            places = by_partition(self._end, partitions)
            times = {p: e for p, e in places.items() if isinstance(e, OffsetQuestion) and e.timestamp_us != END}
            answers = await self._ask(topic, times, left()) if times else {}
            for p, place in places.items():
                ends[p] = (
                    place.offset if isinstance(place, KnownOffset) else answers[p].offset if p in times else seen[p]
                )
        cursors = {
            p: Cursor(p, offsets[p], ends[p], seen[p], asked[p].leader_epoch, history=asked[p].history)
            for p in partitions
        }
        self.buffer.begin(cursors)
        for cursor in cursors.values():
            fetcher = PartitionFetcher(
                self._cluster,
                self.config,
                topic,
                cursor,
                self._deliver,
                self._has_room,
                turn=self._cluster.rng.randrange(1 << 16),
            )
            self._tasks.append(asyncio.create_task(self._fetch_partition(fetcher)))

    async def _ask(
        self, topic: Topic, places: Mapping[int, OffsetQuestion | KnownOffset], timeout_s: float
    ) -> dict[int, pb.OffsetAnswer]:
        asks = {p: place.timestamp_us if isinstance(place, OffsetQuestion) else END for p, place in places.items()}
        strict = self.config.replica == "leader"
        return await list_offsets(self._cluster, topic, asks, timeout_s=timeout_s, leader_only=strict)

    async def _confirmed(
        self,
        topic: Topic,
        starts: Mapping[int, OffsetQuestion | KnownOffset],
        asked: dict[int, pb.OffsetAnswer],
        timeout_s: float,
    ) -> dict[int, pb.OffsetAnswer]:
        """`asked`, with no start beyond its end: that is asked of the leader again, for other replicas may lag."""

        def beyond(answers: Mapping[int, pb.OffsetAnswer]) -> dict[int, int]:
            known = {p: s.offset for p, s in starts.items() if isinstance(s, KnownOffset)}
            return {p: offset for p, offset in known.items() if offset > answers[p].high_watermark}

        doubtful = dict.fromkeys(beyond(asked), END)
        if doubtful:
            asked |= await list_offsets(self._cluster, topic, doubtful, timeout_s=timeout_s, leader_only=True)
        for p, offset in beyond(asked).items():
            end = asked[p].high_watermark
            raise OffsetOutOfRange(
                f"{topic.name}/{p}: start={offset} lies beyond the end, {end}",
                hint=f"start at {end} or below, or from 'latest'",
                high_watermark=end,
                log_start=asked[p].log_start,
            )
        return asked

    async def _fetch_partition(self, fetcher: PartitionFetcher) -> None:
        try:
            await fetcher.run()
        except Exception as error:  # whatever it was, the application hears of it: a reader never stops silently
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
