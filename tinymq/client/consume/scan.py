"""Scan one range of one partition as record batches, from any replica that serves it, for engines that plan reads.

A planned range is committed, so it is the same on every replica: a replica that lags or dies costs time, and never
rows. The loop fetches and verifies. A task or a thread takes the batches, and wakes the loop only when the bound of
waiting bytes was reached.
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
from tinymq.client.cluster.lookups import recreated, topic_with
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
from tinymq.client.common.traces import untraced
from tinymq.client.consume.fetch_policy import FollowPolicy
from tinymq.client.consume.partition_fetcher import FetchPosition, PartitionFetcher
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
    """The records that a scan reads, and how. Offsets go from `start` up to, and not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int
    scan_id: str = ""  # brokers count the bytes that they serve under it; "": they do not count
    replicas: tuple[tuple[int, ...], ...] | None = None  # in tiers; None: as ReaderConfig.replica says
    wait_ms: float = WAIT_MS  # how long a replica that is behind is given to catch up
    topic_id: bytes = b""  # of the topic to scan; b"": the topic that has the name when the scan begins
    leader_last: bool = False  # ask the current leader last, in whichever tier it is


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
    """Check the arguments of a scan. Raises InvalidRequest."""
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
    return Range(
        topic=topic,
        partition=check_partition(partition),
        start=start,
        end=end,
        scan_id=scan_id,
        replicas=tiers,
        wait_ms=wait_ms,
        topic_id=topic_id,
        leader_last=leader_last,
    )


def _read_tiers(replicas: object) -> tuple[tuple[int, ...], ...]:
    hint = "pass tiers of broker ids, such as ((2, 3), (1,)), or None"
    if not isinstance(replicas, list | tuple) or not all(isinstance(tier, list | tuple) for tier in replicas):
        raise InvalidRequest(f"replicas={replicas!r:.300}", hint=hint)
    tiers = tuple(tuple(check_count("replicas", broker, 1, BROKERS_MAX) for broker in tier) for tier in replicas)
    named = [broker for tier in tiers for broker in tier]
    if not named or len(set(named)) != len(named):
        raise InvalidRequest(f"replicas={replicas!r:.300} names no broker, or one twice", hint=hint)
    return tuple(tier for tier in tiers if tier)


class ChunkQueue:
    """Chunks on their way from the loop to the one thread, or task, that takes them. Bounded in bytes; ends once."""

    def __init__(self, bytes_max: int, wake: Callable[[Callable[[], None]], None]) -> None:
        """`wake` makes a call on the loop, soon, from any thread."""
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.arrived = asyncio.Event()  # for a taker on the loop
        self._chunks: SimpleQueue[Chunk | None] = SimpleQueue()
        self._bytes_max = bytes_max
        self._wake = wake
        # Two counters instead of one with a lock. Their difference is the bytes that wait.
        self._put_bytes = 0  # written by the loop
        self._taken_bytes = 0  # written by the taker
        self._drained = False  # the taker has seen the end

    def put(self, chunk: Chunk) -> None:
        """Append a chunk, on the loop."""
        self._put_bytes += chunk.bytes
        if self._put_bytes - self._taken_bytes >= self._bytes_max:
            self.has_room.clear()
            # The taker may have taken chunks just before `clear`. Then it saw room, and did not wake the loop.
            if self._put_bytes - self._taken_bytes < self._bytes_max:
                self.has_room.set()
        self._chunks.put(chunk)
        self.arrived.set()

    def end(self) -> None:
        """Mark the end, on the loop: no chunk follows."""
        self._chunks.put(_END)
        self.arrived.set()

    def take(self, block: bool) -> Chunk | None:
        """Take the next chunk; None at the end. Raises queue.Empty if no chunk is there yet and `block` is False."""
        chunk = None if self._drained else self._chunks.get(block)
        if chunk is None:
            self._drained = True
            return None
        self._taken_bytes += chunk.bytes
        if not self.has_room.is_set() and self._put_bytes - self._taken_bytes < self._bytes_max:
            self._wake(self.has_room.set)
        return chunk


class RangePolicy:
    """The policy of a scan. Its range is known to be committed, so that a replica that does not show it is behind."""

    def __init__(self, cluster: Cluster, config: ReaderConfig, scanned: Range) -> None:
        self._cluster = cluster
        self._range = scanned
        self._follow = FollowPolicy(cluster, config)
        self._behind = (0, 0, 0.0)  # (the broker that is behind, the offset that it lacks, since when)

    def order(self, partition: Partition, cost: Cost, turn: int) -> list[int]:
        tiers, last = self._range.replicas, self._range.leader_last
        if tiers is None:
            return self._follow.order(partition, cost, turn)
        return routing.tier_order(self._cluster.view, partition, tiers, cost=cost, turn=turn, leader_last=last)

    def reconsiders(self, partition: Partition, broker: int) -> bool:
        # A replica that becomes the leader is left as soon as its answer says so.
        return (self._range.leader_last and partition.leader == broker) or self._follow.reconsiders(partition, broker)

    def wait_ms(self, empty: int) -> float:
        # A short wait tells a broker that is silent from one that is only behind.
        return min(self._range.wait_ms, FETCH_WAIT_MS)

    def complete(self, request: pb.FetchRequest) -> None:
        request.scan_id, request.end = self._range.scan_id, self._range.end

    def answered(self, address: str, fetched: Fetched, took_s: float) -> None:
        if fetched.frames:
            self._cluster.health.served(address, took_s)

    def counts_as_served(self, broker: int, offset: int, fetched: Fetched) -> bool:
        if not self._gives_time(broker, offset):
            shown, end = fetched.high_watermark, self._range.end
            raise OffsetNotAvailable(f"it is behind: its records end at {shown}, and the scan ends at {end}")
        return False

    def asks_again(self, broker: int, offset: int, error: TinymqError) -> bool:
        return isinstance(error, OffsetNotAvailable) and self._gives_time(broker, offset)

    def is_final(self, error: TinymqError, offset: int) -> bool:
        if isinstance(error, OffsetOutOfRange) and not _is_gone(error, offset):
            return False  # beyond the end of a deposed leader that does not know it yet
        return self._follow.is_final(error, offset)

    def failure(self, text: str, refusals: list[TinymqError]) -> TinymqError:
        failure = self._follow.failure(text, refusals)
        behind = any(isinstance(error, OffsetNotAvailable | OffsetOutOfRange) for error in refusals)
        return OffsetNotAvailable(text) if behind and isinstance(failure, BrokerUnreachable) else failure

    def _gives_time(self, broker: int, offset: int) -> bool:
        """Is a replica that is behind still within wait_ms? The time starts again at each offset."""
        now_s = self._cluster.clock.monotonic()
        if self._behind[:2] != (broker, offset):
            self._behind = (broker, offset, now_s)
        return now_s - self._behind[2] < self._range.wait_ms / 1000


def _is_gone(error: OffsetOutOfRange, offset: int) -> bool:
    """Were the records at `offset` removed, or lost?"""
    log_start = error.detail.get("log_start", "")
    return "history_start" in error.detail or (log_start.isdigit() and int(log_start) > offset)


class ScanCore:
    """A scan of one range. Made by AsyncClient.scan(); iterate over it in `async with`.

    It gives record batches of TABLE_SCHEMA as they are stored, uncopied, in the order of their offsets. It raises
    UnknownTopic if the topic was deleted, or created again since the scan began (with `topic_id`, since that was
    taken); UnknownPartition; and OffsetOutOfRange when records of the range were removed (detail: log_start) or lost.
    When no replica has served for unreachable_ms_max, it raises an error whose text names what each replica answered:
    BrokerUnreachable, OffsetNotAvailable (the replicas that answer are behind) or CorruptData.

        async with mq.scan("orders", partition=0, start=0, end=2) as scan:
            async for batch in scan:
                print(batch.num_rows)
    """

    def __init__(
        self, cluster: Cluster, scanned: Range, config: ReaderConfig, wake: Callable[[Callable[[], None]], None]
    ) -> None:
        """`wake` makes a call on the loop, soon, from any thread."""
        self._range = scanned
        self._cluster = cluster
        self._config = config if scanned.replicas is None else replace(config, replica="any")
        self._chunks = ChunkQueue(config.buffer_bytes_max, wake)
        # The range was planned by somebody else: it belongs to the history that the first answer names.
        self._cursor = FetchPosition(scanned.partition, scanned.start, scanned.end, scanned.end, history=None)
        self._offset = scanned.start  # written by the taker
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._ended = False

    @property
    def offset(self) -> int:
        """The offset of the next record to be taken; `end` once all records were taken."""
        return self._offset

    @property
    def served(self) -> Mapping[int, int]:
        """Fetched bytes, as stored, by the id of the broker that served them. May be ahead of what was taken."""
        return dict(self._cursor.served)

    @property
    def skipped(self) -> int:
        """The number of offsets that were removed before they could be read; only counted with on_trimmed="skip"."""
        return self._cursor.skipped

    @property
    def closed(self) -> bool:
        """Is the scan closed, or at its end? Then it has no running task any more."""
        return self._ended

    async def open(self) -> None:
        """Start to fetch, without waiting. The first use and `async with` do this. A second call does nothing."""
        self._cluster.check_loop()
        if self._task is None and not self._ended:
            self._task = asyncio.create_task(self._run())

    def take(self, block: bool) -> pa.RecordBatch | None:
        """Take the next batch, in any one thread; None at the end.

        Raises the error that stopped the scan, and queue.Empty if there is no batch yet and `block` is False.
        """
        chunk = self._chunks.take(block)
        if chunk is not None:
            self._offset = chunk.next_offset
            return chunk.table()
        if self._failure is not None:
            raise untraced(self._failure)
        self._offset = self._range.end
        return None

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """Wait for the next batch, of one row or more. Ends at `end`."""
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
        """Stop fetching. Batches that wait may still be taken. A second call does nothing."""
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
        scanned, cluster = self._range, self._cluster
        try:
            if scanned.start < scanned.end:
                timeout_s = cluster.config.request_timeout_ms / 1000
                numbers = (scanned.partition,)
                topic = await topic_with(cluster, scanned.topic, numbers, timeout_s, scanned.topic_id)
                await self._fetch(topic)
        except Exception as error:  # `take` raises any error: a scan never stops silently
            self._end(error)
        else:
            self._end(None)

    async def _fetch(self, topic: Topic) -> None:
        scanned, cluster = self._range, self._cluster
        fetcher = PartitionFetcher(
            cluster=cluster,
            config=self._config,
            policy=RangePolicy(cluster, self._config, scanned),
            topic=topic,
            cursor=self._cursor,
            deliver=self._chunks.put,
            has_room=self._chunks.has_room,
            turn=cluster.rng.randrange(1 << 16),
        )
        try:
            await fetcher.run()
        except UnknownTopic:
            now = cluster.view.topics.get(scanned.topic)
            if now is None or now.topic_id == topic.topic_id:
                raise
            raise recreated(scanned.topic) from None

    def _end(self, failure: Exception | None) -> None:
        if not self._ended:
            self._ended, self._failure = True, failure
            self._chunks.end()
