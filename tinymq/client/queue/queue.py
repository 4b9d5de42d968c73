"""AsyncQueue: one partition as a queue, which is written to and read through a channel of one's own.

The parts: a PartitionLog looks at the partition, a QueueWriter pushes to it, and a ChannelReader reads it at the
channel's cursor. A message that was handed out is committed when more are asked for, or when the queue is closed
cleanly. After a crash or an exception the last ones are delivered again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from tinymq.base.errors import TinymqError
from tinymq.base.types import RecordMetadata
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.common.argument_checks import check_count, check_wait
from tinymq.client.common.config import QueueConfig
from tinymq.client.common.start_positions import OffsetLike, Place
from tinymq.client.common.values import HeadersLike, Timestamp
from tinymq.client.consume.records import Message
from tinymq.client.produce.delivery import Delivery
from tinymq.client.produce.producer import LEAVING_IN_ERROR_S, ProducerCore
from tinymq.client.queue.channel_reader import ChannelReader
from tinymq.client.queue.partition import PartitionLog, Wake
from tinymq.client.queue.writer import QueueWriter


class QueueCore:
    """A partition as a queue. Made by AsyncClient.queue(); use it in `async with`. For one task at a time.

    async with mq.queue("orders", channel="billing") as queue:
        await queue.push(b"...")
        for message in await queue.poll(max_records=100, timeout=1.0):
            handle(message)
    """

    topic: str
    """The name of the topic."""
    partition: int
    """The number of the partition."""
    channel: str
    """The name of the channel."""

    def __init__(
        self,
        cluster: Cluster,
        config: QueueConfig,
        wake: Wake,
        shared_producer: Callable[[], ProducerCore],
        topic: str,
        partition: int,
        *,
        channel: str,
        consumer: str | None,
        start: Place,
    ) -> None:
        """`shared_producer` returns the client's own producer."""
        self._cluster = cluster
        self._log = PartitionLog(cluster, config, wake, topic, partition)
        self.writer = QueueWriter(cluster, self._log, wake, shared_producer)
        self.reader = ChannelReader(cluster, self._log, config, channel, consumer, start)
        self.topic, self.partition, self.channel = topic, partition, channel

    def __repr__(self) -> str:
        place = f"{self.topic}/{self.partition}, channel {self.channel!r}"
        return f"<AsyncQueue of {place}{' (closed)' if self.closed else ''}>"

    # ---- writing -------------------------------------------------------------------------------------

    async def push(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
    ) -> RecordMetadata:
        """Write one message to the partition, and wait until a majority has it on disk. As AsyncClient.send."""
        self.reader.check()
        delivery = await self.writer.send(self.writer.producer(), value, key, headers, timestamp)
        return await delivery

    async def push_nowait(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        timestamp: Timestamp | None = None,
    ) -> Delivery:
        """Write one message behind those pushed before, and do not wait for it: `flush` does. As AsyncProducer.send."""
        self.reader.check()
        return await self.writer.send(self.writer.own_producer(), value, key, headers, timestamp)

    async def flush(self) -> None:
        """Wait until every message pushed so far is acknowledged, and the messages that are done with are committed.

        Raises NotDelivered with the messages that failed.
        """
        self.reader.check()
        await self.writer.flush()
        await self.reader.settle()

    # ---- reading -------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """The next message. Waits for it without a limit. The message before it is done with."""
        while not (messages := self.reader.take(1)):
            await self.reader.arrival(None)
        return messages[0]

    async def poll(self, max_records: int = 1, timeout: float | None = 0.0) -> list[Message]:
        """Up to `max_records` messages: at once if there are any, else after up to `timeout` seconds (None: no limit).

        [] means that there is none: the leader was asked. While no leader answers this waits beyond `timeout`, up to
        request_timeout_ms, and then raises. The messages of the previous call count as processed, and are committed
        within commit_interval_ms. Raises Fenced when another consumer took the channel over, or somebody moved its
        cursor; OffsetOutOfRange when the next message is gone (on_trimmed="skip" goes on behind it).
        """
        check_count("max_records", max_records, 1)
        check_wait(timeout)
        if not (messages := self.reader.take(max_records)) and await self.reader.arrival(timeout):
            messages = self.reader.take(max_records)
        return messages

    async def peek(self) -> Message | None:
        """The next message, which stays the next one; None when there is none. Fences no consumer."""
        self.reader.check()
        return await self.reader.peek()

    async def get(self, offset: OffsetLike) -> Message:
        """The message at an offset; moves nothing. Raises OffsetOutOfRange if it does not exist yet, or was removed."""
        self.reader.check()
        return await self._log.get(offset)

    async def size(self) -> int:
        """The number of messages that the channel has not handed out yet. Fences no consumer."""
        return await self._log.count_from(await self.position())

    async def is_empty(self) -> bool:
        """Has the channel handed out every message? Fences no consumer."""
        return await self.size() == 0

    async def position(self) -> int:
        """The offset that comes next. Fences no consumer."""
        self.reader.check()
        return await self.reader.position()

    @property
    def skipped(self) -> int:
        """The number of messages that were removed before they could be handed out; counted with on_trimmed="skip"
        alone."""
        return self.reader.skipped

    # ---- the channel's cursor ------------------------------------------------------------------------

    async def open(self) -> None:
        """Take the channel over: the consumer that read it before is fenced. Done by the first call that needs it.

        A channel that does not exist is made, and starts at `start`. Raises UnknownTopic, UnknownPartition,
        QuotaExceeded (too many channels); Fenced when yet another consumer was quicker.
        """
        await self.reader.open()

    async def commit(self, upto: OffsetLike | Message | None = None) -> None:
        """Commit now all messages that were handed out, or those up to `upto`: all below an offset, or a Message and
        all before it.

        Returns when a majority has it on disk. Raises Fenced, InvalidRequest (beyond what was handed out),
        DeadlineExceeded, OutcomeUnknown.
        """
        self.reader.check()
        await self.reader.commit(upto)

    async def seek(self, to: Place) -> int:
        """Go on from `to`: an Offset, "earliest", "latest" or a datetime, and return the position.

        Messages that are not committed stay so. After OutcomeUnknown nobody knows where the channel is: seek again.
        Raises OffsetOutOfRange, Fenced.
        """
        return await self.reader.seek(to)

    # ---- removing ------------------------------------------------------------------------------------

    async def remove_before(self, before: Place) -> int:
        """Remove for good, for all channels, the messages before an Offset, or before the first one at or after a
        datetime.

        Returns where the partition begins afterwards, on a majority of disks. Raises Held when a hold keeps messages
        that were to be removed, until the deadline; OffsetOutOfRange beyond the end.
        """
        self.reader.check()
        log_start = await self._log.remove_before(before)
        await self.reader.removed_before(log_start)
        return log_start

    async def delete(self) -> None:
        """Delete the whole partition, for all its channels: its messages are gone, and its number is never used again.

        The queue is closed after that. The last partition of a topic can only be deleted with the topic:
        InvalidRequest. Raises UnknownPartition.
        """
        self.reader.check()
        await self._log.delete()
        self.reader.close()
        await self.writer.close(0.0)
        await self.reader.forget()

    # ---- the end -------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Commit the messages that were handed out, flush those that were pushed, and leave the channel to others.

        A second call does nothing. Raises Fenced when another consumer took over before that, NotDelivered.
        """
        self.reader.hand_out_is_done()
        await self.leave(self._log.timeout_s)

    async def leave(self, timeout_s: float = LEAVING_IN_ERROR_S) -> None:
        """Close, and let the messages that were handed out last be delivered again."""
        self._cluster.check_loop()
        if self.closed:
            return
        self.reader.close()
        try:
            await self.reader.leave(timeout_s)
        finally:
            await self.writer.close(timeout_s)

    @property
    def closed(self) -> bool:
        """Was the queue closed?"""
        return self.reader.closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.leave()
        except TinymqError as another:
            error.add_note(f"and {another}")
