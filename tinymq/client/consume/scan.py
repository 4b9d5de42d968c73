"""Scans: one range of one partition as record batches, from whichever replica serves it, for engines that plan.

A range that was planned is committed: it is the same on every replica, so one that lags or dies costs time and never
rows. The loop fetches and verifies; who takes the batches, on the loop or in another thread, wakes nobody for it
unless the bound of what waits was reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

import pyarrow as pa

from tinymq.base.config import MIB
from tinymq.base.errors import (
    BrokerUnreachable,
    Closed,
    InvalidRequest,
    OffsetNotAvailable,
    OffsetOutOfRange,
    TinymqError,
    UnknownTopic,
)
from tinymq.client.cluster import routing
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.lookups import made_anew, topic_with
from tinymq.client.cluster.routing import Cost, Partition, Topic
from tinymq.client.common.argument_checks import (
    OFFSET_MAX,
    check_count,
    check_partition,
    check_scan,
    check_topic,
    check_wait,
)
from tinymq.client.common.config import ReaderConfig
from tinymq.client.consume.partition_fetcher import Cursor, PartitionFetcher
from tinymq.client.consume.records import Chunk
from tinymq.client.net.ports import Fetched
from tinymq.proto import tinymq_pb2 as pb

WAIT_MS = 2_000.0
WAIT_MS_MAX = 600_000.0
FETCH_WAIT_MS = 500.0
FETCH_BYTES_MAX = 8 * MIB  # a fetch has its own cost: with 4 MiB the processor time per byte is a fifth higher
BROKERS_MAX = (1 << 32) - 1
TOPIC_ID_BYTES = 16

Tiers = Sequence[Sequence[int]]
"""Broker ids: the first tier is asked first."""

_END = None


@dataclass(frozen=True, slots=True)
class Range:
    """What a scan is of. Offsets: from `start` up to, and not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int
    scan_id: str = ""  # brokers count what they serve under it; "": they do not
    replicas: tuple[tuple[int, ...], ...] | None = None  # in tiers; None: as ReaderConfig.replica says
    wait_ms: float = WAIT_MS  # for a replica that does not show what is wanted yet
    topic_id: bytes = b""  # of the topic that is meant; b"": whichever has the name when the scan begins
    leader_last: bool = False  # whoever leads by then, in whichever tier


def read_range(
    topic: str,
    partition: int,
    start: int,
    end: int,
    scan_id: str,
    replicas: Tiers | None,
    wait_ms: float,
    topic_id: bytes = b"",
    leader_last: bool = False,
) -> Range:
    """Raises InvalidRequest for what is none."""
    check_topic(topic)
    check_count("start", start, 0, most=OFFSET_MAX)
    check_count("end", end, 0, most=OFFSET_MAX)
    if start > end:
        raise InvalidRequest(f"start={start} lies behind end={end}", hint="end is the first offset that is not read")
    check_wait(wait_ms, name="wait_ms")
    if wait_ms is None or wait_ms > WAIT_MS_MAX:
        raise InvalidRequest(f"wait_ms={wait_ms!r}", hint=f"pass milliseconds, from 0 to {WAIT_MS_MAX:g}")
    if scan_id != "":
        check_scan(scan_id)
    if not isinstance(topic_id, bytes) or len(topic_id) not in (0, TOPIC_ID_BYTES):
        hint = "pass the 16 bytes that admin.describe_topic(...).topic_id has, or leave it out"
        raise InvalidRequest(f"topic_id={topic_id!r:.300}", hint=hint)
    tiers = None if replicas is None else _read_tiers(replicas)
    if leader_last and tiers is None:
        raise InvalidRequest("leader_last without replicas", hint="name the tiers, or set replica")
    return Range(topic, check_partition(partition), start, end, scan_id, tiers, wait_ms, topic_id, leader_last)


def _read_tiers(replicas: object) -> tuple[tuple[int, ...], ...]:
    hint = "pass tiers of broker ids, such as ((2, 3), (1,)), or None"
    if not isinstance(replicas, list | tuple) or not all(isinstance(tier, list | tuple) for tier in replicas):
        raise InvalidRequest(f"replicas={replicas!r:.300}", hint=hint)
    tiers = tuple(tuple(check_count("replicas", broker, 1, BROKERS_MAX) for broker in tier) for tier in replicas)
    named = [broker for tier in tiers for broker in tier]
    if not named or len(set(named)) != len(named):
        raise InvalidRequest(f"replicas={replicas!r:.300} names nobody, or somebody twice", hint=hint)
    return tuple(tier for tier in tiers if tier)


class ChunkQueue:
    """Chunks on their way from the loop to who takes them, in any one thread; bounded in bytes. Ends once."""

    def __init__(self, bytes_max: int, wake: Callable[[Callable[[], None]], None]) -> None:
        """`wake` makes a call on the loop, soon, from any thread."""
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.arrived = asyncio.Event()  # for a taker on the loop
        self._chunks: SimpleQueue[Chunk | None] = SimpleQueue()
        self._bytes_max = bytes_max
        self._wake = wake
        self._put_bytes = 0  # by the loop alone
        self._taken_bytes = 0  # by the taker alone
        self._drained = False  # the taker has seen the end

    def put(self, chunk: Chunk) -> None:
        self._put_bytes += chunk.bytes
        if self._put_bytes - self._taken_bytes >= self._bytes_max:
            self.has_room.clear()
            if self._put_bytes - self._taken_bytes < self._bytes_max:  # taken in between: that taker saw room
                self.has_room.set()
        self._chunks.put(chunk)
        self.arrived.set()

    def end(self) -> None:
        """No more comes."""
        self._chunks.put(_END)
        self.arrived.set()

    def take(self, block: bool) -> Chunk | None:
        """The next one; None: the end. Raises queue.Empty when there is none yet and it may not wait for it."""
        chunk = None if self._drained else self._chunks.get(block)
        if chunk is None:
            self._drained = True
            return None
        self._taken_bytes += chunk.bytes
        if not self.has_room.is_set() and self._put_bytes - self._taken_bytes < self._bytes_max:
            self._wake(self.has_room.set)
        return chunk


class RangeFetcher(PartitionFetcher):
    """A Follower of a range that is known to be there: a replica that does not show all of it is behind."""

    def __init__(
        self, cluster: Cluster, config: ReaderConfig, topic: Topic, cursor: Cursor, wanted: Range, chunks: ChunkQueue
    ) -> None:
        turn = cluster.rng.randrange(1 << 16)
        super().__init__(cluster, config, topic, cursor, chunks.put, chunks.has_room, turn)
        self._range = wanted
        self._behind = (0, 0, 0.0)  # (who was, at which offset, since when)

    def _order(self, at: Partition, cost: Cost) -> list[int]:
        tiers = self._range.replicas
        if tiers is None:
            return super()._order(at, cost)
        last = self._range.leader_last
        return routing.tier_order(self.cluster.view, at, tiers, cost=cost, turn=self.turn, leader_last=last)

    def _stays(self, broker: int) -> bool:
        """Whoever turns out to lead is left as soon as it has said so."""
        leads = self._range.leader_last and self._at().leader == broker
        return self._choose() == broker if leads else super()._stays(broker)

    def _wait_ms(self) -> float:
        """Of one fetch: whoever is silent for long, and not behind, is found out."""
        return min(self._range.wait_ms, FETCH_WAIT_MS)

    def _request(self, offset: int, wait_ms: int) -> pb.FetchRequest:
        request = super()._request(offset, wait_ms)
        request.scan_id, request.end = self._range.scan_id, self._range.end
        return request

    async def _fetch(self, broker: int, offset: int) -> Fetched:
        asked_s = self.cluster.clock.monotonic()
        fetched = await super()._fetch(broker, offset)
        address = self.cluster.view.address(broker)
        if fetched.frames and address is not None:
            self.cluster.health.served(address, self.cluster.clock.monotonic() - asked_s)
        return fetched

    async def _nothing_came(self, broker: int, fetched: Fetched) -> None:
        if self._waits_for(broker):
            return
        shown, wanted = fetched.high_watermark, self._range.end
        raise OffsetNotAvailable(f"it is behind: it shows what lies below {shown}, and {wanted} is the end of the scan")

    async def _failed(self, broker: int, error: TinymqError) -> None:
        if isinstance(error, OffsetNotAvailable) and self._waits_for(broker):
            self._avoided.doubted = None
        else:
            await super()._failed(broker, error)

    def _waits_for(self, broker: int) -> bool:
        """Is a replica that is behind given more time?"""
        now_s, offset = self.cluster.clock.monotonic(), self.cursor.offset
        if self._behind[:2] != (broker, offset):
            self._behind = (broker, offset, now_s)
        return now_s - self._behind[2] < self._range.wait_ms / 1000

    def _is_for_good(self, error: TinymqError) -> bool:
        if isinstance(error, OffsetOutOfRange) and not _is_gone(error, self.cursor.offset):
            return False  # beyond the end, of one that leads no more and does not know it
        return super()._is_for_good(error)

    def _failure(self, text: str) -> TinymqError:
        failure = super()._failure(text)
        behind = any(isinstance(error, OffsetNotAvailable | OffsetOutOfRange) for error in self._refusals.values())
        return OffsetNotAvailable(text) if behind and isinstance(failure, BrokerUnreachable) else failure


def _is_gone(error: OffsetOutOfRange, offset: int) -> bool:
    """Were the records there removed, or lost?"""
    log_start = error.detail.get("log_start", "")
    return "history_start" in error.detail or (log_start.isdigit() and int(log_start) > offset)


class AsyncScan:
    """Made by AsyncClient.scan(). Iterate over it, in `async with`: record batches of TABLE_SCHEMA, as they are stored,
    uncopied, in the order of their offsets.

    What it raises, besides: UnknownTopic (gone, or made anew since it began; with `topic_id`, since that was taken),
    UnknownPartition; OffsetOutOfRange when records of the range are gone
    (detail: log_start), or were lost. When no replica has served for unreachable_ms_max, an error whose text has what
    each of them said: BrokerUnreachable, OffsetNotAvailable (those that answer are behind), CorruptData.
    """

    def __init__(
        self, cluster: Cluster, wanted: Range, config: ReaderConfig, wake: Callable[[Callable[[], None]], None]
    ) -> None:
        """`wake` makes a call on the loop, soon, from any thread."""
        self._range = wanted
        self._cluster = cluster
        self._config = config if wanted.replicas is None else replace(config, replica="any")
        self._chunks = ChunkQueue(config.buffer_bytes_max, wake)
        # Another history than any that is known: what lies there when the first answer comes.
        self._cursor = Cursor(wanted.partition, wanted.start, wanted.end, wanted.end, history=None)
        self._offset = wanted.start
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._ended = False

    @property
    def offset(self) -> int:
        """That of the next record to be taken; `end` once all were."""
        return self._offset

    @property
    def served(self) -> Mapping[int, int]:
        """Bytes of what was fetched, as stored, by the id of the broker that served them. May be ahead of what was
        taken."""
        return dict(self._cursor.served)

    @property
    def skipped(self) -> int:
        """Offsets of the range that were gone before they could be read; counted with on_trimmed="skip" alone."""
        return self._cursor.skipped

    @property
    def closed(self) -> bool:
        """Closed, or at its end: nothing of it runs any more."""
        return self._ended

    async def open(self) -> None:
        """Start to fetch, and wait for nothing. Done by the first use, or by `async with`. Again: nothing."""
        self._cluster.check_loop()
        if self._task is None and not self._ended:
            self._task = asyncio.create_task(self._run())

    def take(self, block: bool) -> pa.RecordBatch | None:
        """The next batch, in any one thread; None: the end. Raises what stopped it; queue.Empty if it may not wait."""
        chunk = self._chunks.take(block)
        if chunk is not None:
            self._offset = chunk.next_offset
            return chunk.table()
        if self._failure is not None:
            raise self._failure
        self._offset = self._range.end
        return None

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """The next batch, of one row or more. Waits for it; ends at `end`."""
        await self.open()
        while True:
            self._chunks.arrived.clear()
            try:
                batch = self.take(block=False)
            except Empty:
                await self._chunks.arrived.wait()
                continue
            if batch is None:
                raise StopAsyncIteration
            return batch

    async def close(self) -> None:
        """Stop. What was fetched and not taken may still be taken. Closing twice is nothing."""
        self._cluster.check_loop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._end(Closed("the scan is closed"))

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self) -> None:
        wanted, cluster = self._range, self._cluster
        try:
            if wanted.start < wanted.end:
                patience_s = cluster.config.request_timeout_ms / 1000
                numbers = (wanted.partition,)
                topic = await topic_with(cluster, wanted.topic, numbers, patience_s, wanted.topic_id)
                await self._follow(topic)
        except Exception as error:  # whatever it was, who takes hears of it: a scan never stops silently
            self._end(error)
        else:
            self._end(None)

    async def _follow(self, topic: Topic) -> None:
        wanted, cluster = self._range, self._cluster
        try:
            await RangeFetcher(cluster, self._config, topic, self._cursor, wanted, self._chunks).run()
        except UnknownTopic:
            now = cluster.view.topics.get(wanted.topic)
            if now is None or now.topic_id == topic.topic_id:
                raise
            raise made_anew(wanted.topic) from None

    def _end(self, failure: Exception | None) -> None:
        if not self._ended:
            self._ended, self._failure = True, failure
            self._chunks.end()
