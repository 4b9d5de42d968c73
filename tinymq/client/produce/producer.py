"""Send records asynchronously, many at a time, in batches. Each record has a Delivery.

`send` returns as soon as the record has its place in the buffer. The synchronous producer shares everything below
`append` (tinymq/client/facade/producer.py).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Self, TypeVar, overload

import pyarrow as pa

from tinymq.base.errors import BufferFull, Closed, InvalidRequest, NotDelivered, TinymqError
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.cluster.lookups import topic_with
from tinymq.client.common import forks
from tinymq.client.common.argument_checks import check_partition, check_topic, check_wait
from tinymq.client.common.config import ProducerConfig
from tinymq.client.common.due import Delay, check_due
from tinymq.client.common.topic_settings import UNBOUNDED
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.produce import exit, partitioner
from tinymq.client.produce.batcher import Batcher
from tinymq.client.produce.blocking_sender import BlockingSender
from tinymq.client.produce.delivery import BatchDelivery, Delivery, ScheduledDelivery, hasten
from tinymq.client.produce.producer_batch import ProducerBatch
from tinymq.client.produce.send_queue import SenderTransaction
from tinymq.client.produce.sender import Sender
from tinymq.client.produce.topic_buffers import BATCH_OVERHEAD_BYTES, TopicBuffer
from tinymq.client.produce.whole_batches import WholeBatches, by_partition, by_size, only_partition
from tinymq.format.batch import conform

Handle = TypeVar("Handle", bound=Delivery | ScheduledDelivery)

LEAVING_IN_ERROR_S = 5.0  # a `with` block left by an exception flushes for so long at most


class ProducerCore:
    """Sends records in batches. Made by AsyncClient.producer(); use it in `async with`, which flushes at the end.

    async with mq.producer(linger_ms=5) as producer:
        delivery = await producer.send("orders", b"...", key=b"42")
        print((await delivery).offset)
    """

    def __init__(
        self, cluster: Cluster, config: ProducerConfig, wake: Callable[[Callable[[], None]], None],
        staging: SenderTransaction | None = None,
    ) -> None:  # fmt: skip
        """`wake` makes a call on the loop, soon, from any thread. `staging`: the transaction of all records."""
        self.config = config
        self._cluster = cluster
        self.loop = cluster.loop  # the loop that the producer belongs to
        self._closed = False
        self._ended = asyncio.Event()  # `close` has ended
        self.batcher = Batcher(
            config,
            cluster.config.limits,
            monotonic=cluster.clock.monotonic,
            wall_ns=cluster.clock.wall_ns,
            rng=cluster.rng,
            wake=lambda: wake(self._sender.pump),
            loop_ended=cluster.loop.is_closed,
            staged=staging is not None,
        )
        self._sender = Sender(cluster, config, self.batcher, staging)
        self._whole_batches = whole = WholeBatches(self.batcher, config, cluster.config.limits)
        # The same for records that are batches of their own.
        self.append_identified, self.append_delayed = whole.append_identified, whole.append_delayed
        self._soon = wake
        self._direct: BlockingSender | None = None
        self.append = self.batcher.append  # the synchronous half of send; the facade's threads call it
        if staging is None:  # staged records need no delivery at the exit: without a commit they are dropped
            self._process = os.getpid()  # set last: an object that has it is fully initialised
            exit.enter(self)
        forks.in_child(self, ProducerCore._forked)

    def _forked(self) -> None:
        self.append = self.append_identified = self.append_delayed = forks.refuse

    def __repr__(self) -> str:
        return f"<AsyncProducer with acks={self.config.acks!r}{' (closed)' if self.closed else ''}>"

    @overload
    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, message_id: str | bytes | None = None,
        delay: None = None, deliver_at: None = None,
    ) -> Delivery: ...  # fmt: skip
    @overload
    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, message_id: str | bytes | None = None,
        delay: Delay, deliver_at: None = None,
    ) -> ScheduledDelivery: ...  # fmt: skip
    @overload
    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, message_id: str | bytes | None = None,
        delay: None = None, deliver_at: datetime,
    ) -> ScheduledDelivery: ...  # fmt: skip
    @overload
    async def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, message_id: str | bytes | None = None,
        delay: Delay | None = None, deliver_at: datetime | None = None,
    ) -> Delivery | ScheduledDelivery: ...  # fmt: skip
    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
        partition: int | None = None,
        message_id: str | bytes | None = None,
        delay: Delay | None = None,
        deliver_at: datetime | None = None,
    ) -> Delivery | ScheduledDelivery:
        """Append one record to the buffer. Waits for room up to block_ms_max, then raises BufferFull.

        The Delivery ends when the record is acknowledged (`await delivery`) or has failed. `timestamp` is a datetime
        with a time zone, or microseconds since 1970 UTC; now, if not given. Raises UnknownTopic, InvalidRequest,
        BatchTooLarge.

        With `message_id`, the topic needs a `dedupe_window`: if its partition has stored a record of this id within the
        window, the Delivery has that record's offset, and `duplicate` is True. Such a record is a batch of its own.

        With `delay` (a timedelta or seconds, 1 s to 30 days) or `deliver_at` (a datetime with a time zone), the record
        is stored now and delivered then: the result is a ScheduledDelivery. See docs/delayed-messages.md.
        """
        if asyncio.get_running_loop() is not self.loop:
            self._cluster.check_loop()
        if delay is not None or deliver_at is not None:
            return await self.send_delayed(
                topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition,
                message_id=message_id, delay=delay, deliver_at=deliver_at,
            )  # fmt: skip
        append: Callable[..., Delivery | None] = self.append
        if message_id is not None:
            append = partial(self.append_identified, message_id=message_id)
        delivery = append(topic, value, key, headers, timestamp, partition)
        if delivery is None:
            again = partial(
                append, topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition
            )  # fmt: skip
            delivery = await self._append_when_ready(again, topic, partition)
        return delivery

    async def send_delayed(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, message_id: str | bytes | None = None,
        delay: Delay | None, deliver_at: datetime | None,
    ) -> ScheduledDelivery:  # fmt: skip
        """As `send`, of a delayed record: for callers that do not know which of the two arguments they have."""
        append = partial(
            self.append_delayed, topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition,
            message_id=message_id, due=check_due(delay, deliver_at, self.config.acks),
        )  # fmt: skip
        return append() or await self._append_when_ready(append, topic, partition)

    async def _append_when_ready(
        self, append: Callable[[], Handle | None], topic: str, partition: int | None
    ) -> Handle:
        """Return what `append` returns once there is room, and the topic is known. Raises as `ready`."""
        delivery = None
        started_s = self._cluster.clock.monotonic()
        while delivery is None:
            await self.ready(topic, started_s, partition)
            delivery = append()
        hasten(delivery, started_s + self.config.delivery_timeout_ms / 1000)
        return delivery

    def append_here(
        self, topic: str, value: bytes | None, key: bytes | None, headers: HeadersLike | None,
        timestamp: Timestamp | None, partition: int | None,
    ) -> Delivery | None:  # fmt: skip
        """The half of `send` that does not wait. None: `send` has to. Raises as `send`."""
        if asyncio.get_running_loop() is not self.loop:
            self._cluster.check_loop()
        return self.append(topic, value, key, headers, timestamp, partition)

    async def send_batch(
        self, topic: str, data: pa.Table | pa.RecordBatch, *, partition: int | None = None
    ) -> BatchDelivery:
        """Send a whole table: `value`, and if you like `key`, `headers` and `timestamp`, as `to_arrow` returns them.

        Text becomes UTF-8, and a missing timestamp is now. Raises InvalidBatch for another column, or a type that does
        not convert without loss: pack columns of your own into `value` first.

        Rows go to `partition` if given, else to partitions by their keys, as single records do. A record batch of about
        batch_bytes_max without keys is sent uncut. Raises as `send`.
        """
        self._cluster.check_loop()
        check_topic(topic)
        if partition is not None:
            check_partition(partition)
        if not isinstance(data, pa.Table | pa.RecordBatch):
            raise InvalidRequest(
                f"data is {type(data).__name__}, not a table",
                hint='pass pyarrow.table({"value": [b"..."]}), or use send',
            )
        now = self._cluster.clock.monotonic
        await self.ready(topic, now(), partition)
        buffer = self.batcher.buffers.by_topic.get(topic)
        parts: list[ProducerBatch] = []
        # A piece that finds no room waits, and the pieces behind it wait, too, so that the rows stay in order.
        for place, piece in self._pieces(data, partition, buffer):
            while True:
                if buffer is None or self._closed:
                    raise Closed("the producer is closed")
                pending = self._whole_batches.append_table(buffer, place, piece)
                if pending is not None:
                    parts.append(pending)
                    break
                await self.ready(topic, now(), place)
        return BatchDelivery(parts)

    async def send_whole(
        self, topic: str, batches: Sequence[pa.RecordBatch], partition: int | None = None
    ) -> BatchDelivery:
        """Send record batches of SCHEMA as one batch, which is in the log as a whole or not at all.

        Without `partition` it goes to that of the keys, or to any. Raises as `send_batch`, and InvalidRequest if the
        keys belong to several partitions.
        """
        data = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        now = self._cluster.clock.monotonic
        while True:
            await self.ready(topic, now(), partition)
            buffer = self.batcher.buffers.by_topic.get(topic)
            if buffer is None or self._closed:
                raise Closed("the producer is closed")
            place = partition if partition is not None else only_partition(self._placed(data, buffer))
            batch = self._whole_batches.append_table(buffer, place, data)
            if batch is not None:
                return BatchDelivery([batch])

    def direct(self) -> BlockingSender:
        """Return the object by which threads deliver lone records themselves. Called on the loop."""
        if self._direct is None:
            self._direct = BlockingSender(self._cluster, self.config, self.batcher, self._sender, self._soon)
        return self._direct

    @property
    def written(self) -> dict[tuple[bytes, int], int]:
        """How many batches of a transaction are staged, by topic id and partition."""
        return {place: queue.written for place, queue in self.batcher.buffers.queues.items() if queue.written}

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far has ended.

        Raises NotDelivered with the records that failed since the last flush and whose Delivery nobody asked. After
        `timeout` seconds it raises TimeoutError, and the records are still being sent.
        """
        self._cluster.check_loop()
        check_wait(timeout)
        await self._sender.flush(timeout)

    def abandon(self, error: TinymqError) -> None:
        """Close at once. Each record that is not acknowledged yet fails with `error`, which nothing reports."""
        self._closed = True
        self._sender.abandon(error)
        self._ended.set()

    async def close(self, timeout: float | None = None) -> None:
        """Flush within `timeout` seconds (delivery_timeout_ms if None), then end the records that are left.

        Raises NotDelivered with those records. A second call waits for the first one, and raises nothing.
        """
        self._cluster.check_loop()
        check_wait(timeout)
        if self._closed:
            await self._ended.wait()
            return
        self._closed = True
        try:
            await self._sender.close(self.close_s if timeout is None else timeout)
        finally:
            if self._direct is not None:
                self._direct.close()
            self._ended.set()
            exit.leave(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.close(LEAVING_IN_ERROR_S)
        except NotDelivered as undelivered:
            error.add_note(f"and {undelivered}")

    def __del__(self) -> None:
        """Report records that are lost with the producer, because its loop ended before the producer was closed."""
        if getattr(self, "_process", 0) == os.getpid() and not self._closed and not exit.finished():
            exit.report(self.unfinished, "when the producer was dropped", "its event loop has ended")

    @property
    def closed(self) -> bool:
        """Was `close` called? After that the producer accepts no records."""
        return self._closed

    @property
    def ended(self) -> bool:
        """Has `close` ended?"""
        return self._ended.is_set()

    @property
    def close_s(self) -> float:
        """The longest time that `close` takes without a timeout of its own, in seconds."""
        return self.config.delivery_timeout_ms / 1000

    @property
    def unfinished(self) -> int:
        """The number of records that are not acknowledged yet, or that failed without anyone asking their Delivery."""
        return self.batcher.buffers.waiting + self._sender.undelivered

    async def ready(self, topic: str, started_s: float, partition: int | None = None) -> None:
        """Wait until `append` can take a record for this topic, and this partition.

        Raises the reason at the deadline of a send that began at `started_s`: UnknownTopic, BufferFull or another.
        """
        if self._closed:
            raise Closed("the producer is closed")
        clock, config = self._cluster.clock, self.config
        deadline_s = started_s + min(config.block_ms_max, config.delivery_timeout_ms) / 1000
        buffer = self.batcher.buffers.by_topic.get(topic)
        if buffer is None or (partition is not None and buffer.queue(partition) is None):
            check_topic(topic)
            partitions = () if partition is None else (partition,)
            look_up_s = self._look_up_s(deadline_s - clock.monotonic())
            known = await topic_with(self._cluster, topic, partitions, look_up_s, create=True)
            if self._closed:
                raise Closed("the producer is closed")
            self.batcher.buffers.open(topic, known.topic_id, known.numbers, known.bounds)
        has_room = asyncio.Event()
        self.batcher.pool.when_free(has_room.set)
        try:
            async with asyncio.timeout(max(0.0, deadline_s - clock.monotonic()) if not has_room.is_set() else None):
                await has_room.wait()
        except TimeoutError:
            waited_s = clock.monotonic() - started_s
            raise BufferFull(
                f"{self.batcher.pool.taken_bytes} bytes wait to be acknowledged; no room came free in {waited_s:.3g} s"
            ) from None

    def _look_up_s(self, left_s: float) -> float:
        """Return how long to look up a topic. A producer that never waits for room still has to find its topics."""
        config, request_s = self.config, self._cluster.config.request_timeout_ms / 1000
        most_s = config.delivery_timeout_ms / 1000 if not config.block_ms_max else left_s
        return max(0.0, min(most_s, request_s))

    def _pieces(
        self, data: pa.Table | pa.RecordBatch, partition: int | None, buffer: TopicBuffer | None
    ) -> list[tuple[int | None, pa.RecordBatch]]:
        limits = self._cluster.config.limits
        bounds = buffer.bounds if buffer is not None else UNBOUNDED
        bytes_max = max(1, min(limits.batch_bytes_max, bounds.bytes_max) - BATCH_OVERHEAD_BYTES)
        bytes_aim = min(self.config.batch_bytes_max, bounds.batch_bytes_aim)
        records_max = min(limits.batch_records_max, bounds.records_max)
        pieces: list[tuple[int | None, pa.RecordBatch]] = []
        for batch in conform(data, self._cluster.clock.wall_us()):
            placed = [(partition, batch)] if partition is not None or buffer is None else self._placed(batch, buffer)
            for place, part in placed:
                cuts = by_size(part, bytes_aim, bytes_max, records_max)
                pieces += [(place, cut) for cut in cuts]
        return pieces

    def _placed(self, batch: pa.RecordBatch, buffer: TopicBuffer) -> list[tuple[int | None, pa.RecordBatch]]:
        queues = buffer.queues
        count = len(queues)
        chosen = self.config.partitioner
        choose = partitioner.named(chosen) if isinstance(chosen, str) else chosen
        if choose is not None:
            return by_partition(batch, lambda key: buffer.pick(choose(key, count)).partition)
        if chosen == "sticky" or batch.column(0).null_count == batch.num_rows:
            return [(None, batch)]
        return by_partition(batch, lambda key: queues[partitioner.keyed(key, count)].partition if key else None)
