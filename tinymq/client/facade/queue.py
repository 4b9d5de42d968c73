"""Queue, Hold and the admin of channels: the synchronous facade of tinymq/client/queue/queue.py and what is beside it.

Thin, but for messages at hand, which are taken in the calling thread, and pushes, which stay there until a batch is
full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self

from tinymq.base.errors import Closed, TinymqError
from tinymq.base.types import RecordMetadata
from tinymq.client.admin.admin import AsyncAdmin
from tinymq.client.admin.channel_admin import LEASE_S, PartitionSize
from tinymq.client.admin.holds import ENOUGH, AsyncHold, HoldDescription
from tinymq.client.common.argument_checks import check_count, check_wait
from tinymq.client.common.start_positions import OffsetLike, Place
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.consume.cursors import ChannelDescription, ConsumerDescription
from tinymq.client.consume.records import Message
from tinymq.client.facade.loop_thread import LoopThread
from tinymq.client.produce.delivery import Delivery
from tinymq.client.produce.producer import AsyncProducer
from tinymq.client.queue.queue import AsyncQueue


class Queue:
    """A partition as a queue, read through a channel. Made by Client.queue(). For one thread at a time.

        with mq.queue("orders", channel="billing") as queue:
            queue.push(b"...")
            for message in queue.poll(max_records=100, timeout=1.0):
                handle(message)

    What was handed out is committed once more is asked for, or when the `with` block ends without an exception.
    """

    def __init__(self, engine: LoopThread, core: AsyncQueue) -> None:
        self._engine = engine
        self._core = core
        self._sending: AsyncProducer | None = None
        self._own = False  # that one is the queue's own

    @property
    def topic(self) -> str:
        return self._core.topic

    @property
    def partition(self) -> int:
        return self._core.partition

    @property
    def channel(self) -> str:
        return self._core.channel

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """As AsyncQueue: the next message; waits for it, for good."""
        found = self._core.take(1)
        while not found:
            self._engine.run(self._core.arrival(None))
            found = self._core.take(1)
        return found[0]

    def poll(self, max_records: int = 1, timeout: float | None = 0.0) -> list[Message]:
        """As AsyncQueue.poll: [] when there is no message, and none came within `timeout` seconds."""
        check_count("max_records", max_records, 1)
        check_wait(timeout)
        return self._core.take(max_records) or self._engine.run(self._core.poll(max_records, timeout))

    def peek(self) -> Message | None:
        """As AsyncQueue.peek: the next message, which stays the next one."""
        return self._engine.run(self._core.peek())

    def get(self, offset: OffsetLike) -> Message:
        """As AsyncQueue.get: the message at an offset."""
        return self._engine.run(self._core.get(offset))

    def is_empty(self) -> bool:
        """As AsyncQueue.is_empty."""
        return self._engine.run(self._core.is_empty())

    def size(self) -> int:
        """As AsyncQueue.size: how many messages the channel has not handed out yet."""
        return self._engine.run(self._core.size())

    def position(self) -> int:
        """As AsyncQueue.position: the offset that comes next."""
        return self._engine.run(self._core.position())

    @property
    def skipped(self) -> int:
        """As AsyncQueue.skipped."""
        return self._core.skipped

    def open(self) -> None:
        """As AsyncQueue.open: take the channel over now, rather than at the first use."""
        self._engine.run(self._core.open())

    def commit(self, upto: OffsetLike | Message | None = None) -> None:
        """As AsyncQueue.commit: on a majority of disks when this returns."""
        self._engine.run(self._core.commit(upto))

    def seek(self, to: Place) -> int:
        """As AsyncQueue.seek: go on from somewhere else."""
        return self._engine.run(self._core.seek(to))

    def push(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
    ) -> RecordMetadata:
        """As AsyncQueue.push: one message, on a majority of disks when this returns."""
        if self._sending is None:
            self._sending = self._engine.do(self._core.producer)
        return self._send(self._sending, value, key, headers, timestamp).result()

    def push_nowait(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
    ) -> Delivery:
        """As AsyncQueue.push_nowait: `flush` waits for it."""
        if self._sending is None or not self._own:
            self._sending, self._own = self._engine.do(self._core.own_producer), True
        return self._send(self._sending, value, key, headers, timestamp)

    def flush(self) -> None:
        """As AsyncQueue.flush. Raises NotDelivered."""
        self._engine.run(self._core.flush())

    def remove_before(self, before: Place) -> int:
        """As AsyncQueue.remove_before: cut off the partition's head, for all its channels."""
        return self._engine.run(self._core.remove_before(before))

    def delete(self) -> None:
        """As AsyncQueue.delete: the whole partition, for all its channels."""
        self._engine.run(self._core.delete())

    def close(self) -> None:
        """As AsyncQueue.close. Again: nothing."""
        if self._engine.alive and not self._core.closed:
            self._engine.run(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            if self._engine.alive:
                self._engine.run(self._core.leave())
        except TinymqError as another:
            error.add_note(f"and {another}")

    def _send(
        self,
        producer: AsyncProducer,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersLike | None,
        timestamp: Timestamp | None,
    ) -> Delivery:
        if self._core.closed:
            raise Closed("the queue is closed")
        topic, partition = self._core.topic, self._core.partition
        delivery = producer.append(topic, value, key, headers, timestamp, partition)
        if delivery is None:
            work = producer.send(topic, value, key=key, headers=headers, timestamp=timestamp, partition=partition)
            delivery = self._engine.run(work)
        return delivery


class Hold:
    """Made by admin.hold(). While its `with` block runs, everything from its offset on is kept. As AsyncHold."""

    def __init__(self, engine: LoopThread, core: AsyncHold) -> None:
        self._engine = engine
        self._core = core

    @property
    def offset(self) -> int:
        return self._core.offset

    @property
    def log_start(self) -> int:
        """Where the partition began when the hold was last renewed."""
        return self._core.log_start

    def check(self) -> None:
        """As AsyncHold.check: raises unless everything is certainly kept now."""
        self._core.check()

    def acquire(self) -> None:
        """What `with` does first. Raises OffsetOutOfRange, QuotaExceeded."""
        self._engine.run(self._core.acquire())

    def release(self) -> None:
        """What `with` does at its end."""
        if self._engine.alive:
            self._engine.run(self._core.release())

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class ChannelAdmin:
    """AsyncChannelAdmin, synchronous."""

    def __init__(self, engine: LoopThread) -> None:
        self._engine = engine
        self._core: AsyncAdmin = engine.do(lambda: engine.client.admin)

    def list_channels(
        self, topic: str, partition: int | None = None, *, timeout: float | None = None
    ) -> list[ChannelDescription]:
        """As AsyncAdmin.list_channels."""
        return self._engine.run(self._core.list_channels(topic, partition, timeout=timeout))

    def seek_channel(
        self,
        topic: str,
        partition: int,
        channel: str,
        to: Place,
        *,
        unless_read: bool = False,
        make: bool = False,
        timeout: float | None = None,
    ) -> int:
        """As AsyncAdmin.seek_channel."""
        sought = self._core.seek_channel(
            topic, partition, channel, to, unless_read=unless_read, make=make, timeout=timeout
        )
        return self._engine.run(sought)

    def delete_channel(self, topic: str, partition: int, channel: str, *, timeout: float | None = None) -> None:
        """As AsyncAdmin.delete_channel."""
        self._engine.run(self._core.delete_channel(topic, partition, channel, timeout=timeout))

    def trim(self, topic: str, partition: int, before: Place, *, timeout: float | None = None) -> int:
        """As AsyncAdmin.trim."""
        return self._engine.run(self._core.trim(topic, partition, before, timeout=timeout))

    def hold(self, topic: str, partition: int, offset: OffsetLike, *, lease: float = LEASE_S) -> Hold:
        """As AsyncAdmin.hold, for a `with` block."""
        return Hold(self._engine, self._core.hold(topic, partition, offset, lease=lease))

    def list_holds(
        self, topic: str, partition: int | None = None, *, timeout: float | None = None
    ) -> list[HoldDescription]:
        """As AsyncAdmin.list_holds."""
        return self._engine.run(self._core.list_holds(topic, partition, timeout=timeout))

    def make_hold(
        self,
        topic: str,
        partition: int,
        offset: OffsetLike,
        *,
        lease: float = LEASE_S,
        hold_id: bytes | None = None,
        timeout: float | None = None,
    ) -> HoldDescription:
        """As AsyncAdmin.make_hold."""
        made = self._core.make_hold(topic, partition, offset, lease=lease, hold_id=hold_id, timeout=timeout)
        return self._engine.run(made)

    def hold_many(
        self,
        topic: str,
        ranges: Mapping[int, int],
        *,
        hold_id: bytes,
        lease: float = LEASE_S,
        enough: float = ENOUGH,
        partial: bool = False,
        light: bool = False,
        timeout: float | None = None,
    ) -> dict[int, int]:
        """As AsyncAdmin.hold_many."""
        made = self._core.hold_many(
            topic, ranges, hold_id=hold_id, lease=lease, enough=enough, partial=partial, light=light, timeout=timeout
        )
        return self._engine.run(made)

    def kept_sizes(
        self, topic: str, partitions: Iterable[int], *, timeout: float | None = None
    ) -> dict[int, PartitionSize]:
        """As AsyncAdmin.kept_sizes."""
        return self._engine.run(self._core.kept_sizes(topic, partitions, timeout=timeout))

    def release_hold(self, topic: str, partition: int, hold_id: bytes, *, timeout: float | None = None) -> None:
        """As AsyncAdmin.release_hold."""
        self._engine.run(self._core.release_hold(topic, partition, hold_id, timeout=timeout))

    def get_consumer(
        self, topic: str, partition: int, channel: str, *, timeout: float | None = None
    ) -> ConsumerDescription | None:
        """As AsyncAdmin.get_consumer."""
        return self._engine.run(self._core.get_consumer(topic, partition, channel, timeout=timeout))

    def unset_consumer(
        self, topic: str, partition: int, channel: str, epoch: int = 0, *, timeout: float | None = None
    ) -> None:
        """As AsyncAdmin.unset_consumer."""
        self._engine.run(self._core.unset_consumer(topic, partition, channel, epoch, timeout=timeout))
