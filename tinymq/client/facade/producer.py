"""Producer: an AsyncProducer for threads. `send` stays in the calling thread until a batch is full."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import TypedDict, overload
from zlib import crc32

from tinymq.base.errors import Closed, NotDelivered
from tinymq.client.common import forks
from tinymq.client.common.due import Delay, check_due
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.facade.generated.producer import ProducerCalls
from tinymq.client.facade.loop_thread import LoopThread
from tinymq.client.produce import exit
from tinymq.client.produce.batcher import RECORD_OVERHEAD_BYTES
from tinymq.client.produce.delivery import Delivery, ScheduledDelivery
from tinymq.client.produce.producer import LEAVING_IN_ERROR_S, ProducerCore


class Record(TypedDict):
    """The properties of a record beside its value, by the names that every `send` and `append` give them."""

    key: bytes | None
    headers: HeadersLike | None
    timestamp: Timestamp | None
    partition: int | None


class Producer(ProducerCalls):
    """Sends records in batches, from any thread. Made by Client.producer(). Close it, or use it in `with`.

        with mq.producer(linger_ms=5) as producer:
            for line in lines:
                producer.send("orders", line)

    A producer that is not closed is flushed and closed when the program ends, or when nothing refers to it any more.
    Records that cannot be delivered then are only counted (tinymq/client/produce/exit.py).

    Single steps:

        producer = mq.producer()
        producer.send_batch("orders", pa.table({"value": [b"one", b"two"]}))
        producer.flush(timeout=30.0)
        producer.close()
    """

    def __init__(self, loop_thread: LoopThread, asynchronous: ProducerCore) -> None:
        super().__init__(loop_thread, asynchronous)
        batcher = asynchronous.batcher
        self._plain_topics = batcher.plain_topics
        self._pool = batcher.pool
        self._record_bytes_max = batcher.record_bytes_max
        self._wall_ns = batcher.wall_ns
        self._append: Callable[..., Delivery | None] = asynchronous.append
        self._append_identified: Callable[..., Delivery | None] = asynchronous.append_identified
        self._append_delayed: Callable[..., ScheduledDelivery | None] = asynchronous.append_delayed
        weakref.finalize(self, exit.close_unused, asynchronous).atexit = False
        forks.in_child(self, Producer._forked)

    def __repr__(self) -> str:
        return repr(self._async).replace("AsyncProducer", "Producer", 1)

    @overload
    def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, message_id: str | bytes | None = None,
        delay: None = None, deliver_at: None = None,
    ) -> Delivery: ...  # fmt: skip
    @overload
    def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, message_id: str | bytes | None = None,
        delay: Delay, deliver_at: None = None,
    ) -> ScheduledDelivery: ...  # fmt: skip
    @overload
    def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, message_id: str | bytes | None = None,
        delay: None = None, deliver_at: datetime,
    ) -> ScheduledDelivery: ...  # fmt: skip
    @overload
    def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, message_id: str | bytes | None = None,
        delay: Delay | None = None, deliver_at: datetime | None = None,
    ) -> Delivery | ScheduledDelivery: ...  # fmt: skip
    def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None, partition: int | None = None, message_id: str | bytes | None = None,
        delay: Delay | None = None, deliver_at: datetime | None = None,
    ) -> Delivery | ScheduledDelivery:  # fmt: skip
        """Give one record its place in the buffer. Waits for room up to block_ms_max, then raises BufferFull.

        The Delivery ends when the record is acknowledged (`delivery.result()`), or fails for good. `timestamp` is a
        datetime with a zone or microseconds; now, if not given. Raises UnknownTopic, InvalidRequest, BatchTooLarge.

        With `message_id`, the topic needs a `dedupe_window`: if its partition has stored a record of this id within the
        window, the Delivery has that record's offset, and `duplicate` is True. Such a record is a batch of its own.

        With `delay` (1 s to 30 days) or `deliver_at`, it is stored now and delivered then: docs/delayed-messages.md.
        """
        if (
            value.__class__ is bytes
            and (key is None or (key and key.__class__ is bytes))
            and headers is None
            and timestamp is None
            and partition is None
            and message_id is None
            and delay is None
            and deliver_at is None
            and (topics := self._plain_topics)
        ):
            # Most records are appended here, as Batcher.append and ProducerBatch.put do it: calling those would take
            # longer than all the rest. They get the records that do not simply join an open batch, and errors.
            try:
                buffer = topics[topic]
            except (KeyError, TypeError):
                pass  # not open yet, or not the name of a topic
            else:
                size = RECORD_OVERHEAD_BYTES + len(value)
                if key is None:
                    queue = buffer.sticky
                else:
                    size += len(key)
                    queue = buffer.queues[crc32(key) % len(buffer.queues)]
                cells, pool = (value, key, self._wall_ns() // 1000), self._pool
                # One step beside other threads and interrupts, up to the end of the inner block.
                if (batch := queue.open) is not None and (row := batch.count):
                    filled = batch.bytes + size
                    if (
                        filled <= buffer.bytes_max
                        and row < buffer.records_max
                        and size <= self._record_bytes_max
                        and pool.taken_bytes < pool.bytes_max
                    ):
                        if key is not None:
                            batch.bound = True
                        batch.cells += cells
                        batch.count, batch.bytes = row + 1, filled
                        pool.taken_bytes += size
                        delivery = Delivery()
                        delivery._batch, delivery._row = batch, row
                        return delivery
        return self._append_or_wait(
            topic, value, key, headers, timestamp, partition, message_id=message_id, delay=delay, deliver_at=deliver_at
        )

    def _append_or_wait(
        self, topic: str, value: bytes | None, key: bytes | None, headers: HeadersLike | None,
        timestamp: Timestamp | None, partition: int | None = None, message_id: str | bytes | None = None,
        delay: Delay | None = None, deliver_at: datetime | None = None,
    ) -> Delivery | ScheduledDelivery:  # fmt: skip
        delayed = delay is not None or deliver_at is not None
        if message_id is None and not delayed:
            delivery = self._append(topic, value, key, headers, timestamp, partition)
            if delivery is not None:
                return delivery
        record: Record = {"key": key, "headers": headers, "timestamp": timestamp, "partition": partition}
        if delayed:
            due = check_due(delay, deliver_at, self._async.config.acks)
            stored = self._append_delayed(topic, value, **record, message_id=message_id, due=due)
            if stored is not None:
                return stored
            return self._loop_thread.run(
                self._async.send_delayed(
                    topic, value, **record, message_id=message_id, delay=delay, deliver_at=deliver_at
                )
            )
        if message_id is not None:
            delivery = self._append_identified(topic, value, **record, message_id=message_id)
            if delivery is not None:
                return delivery
        return self._loop_thread.run(self._async.send(topic, value, **record, message_id=message_id))

    def close(self, timeout: float | None = None) -> None:
        """Flush, within `timeout` seconds (delivery_timeout_ms if None); what is left then ends as not delivered.

        Raises NotDelivered with those records. A second call does nothing.
        """
        if not self._async.closed:
            self._loop_thread.run(self._async.close(timeout))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close(None if error is None else LEAVING_IN_ERROR_S)
        except (NotDelivered, Closed) as undelivered:
            if error is None:
                raise
            error.add_note(f"and {undelivered}")

    def _forked(self) -> None:
        self._plain_topics = {}
        self._append = self._append_identified = self._append_delayed = forks.refuse
