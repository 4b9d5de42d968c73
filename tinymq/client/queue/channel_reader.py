"""ChannelReader: reads one partition at the cursor of a channel, and moves that cursor.

An AsyncReader fetches ahead (tinymq/client/consume/reader.py). A ChannelConsumer has the cursor, which lies in the
partition's own log, and the right to move it (tinymq/client/consume/channel_consumer.py). The first call that may move
the cursor takes the channel over. Calls that only look fence no consumer.
"""

from __future__ import annotations

import asyncio

from tinymq.base.errors import Closed, DeadlineExceeded, InvalidRequest
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.common.argument_checks import check_channel, check_consumer
from tinymq.client.common.config import QueueConfig, default_client_id, reader_config
from tinymq.client.common.start_positions import OffsetLike, Place, read_offset, read_place
from tinymq.client.common.traces import trimming
from tinymq.client.consume import cursors
from tinymq.client.consume.channel_consumer import ChannelConsumer
from tinymq.client.consume.cursors import ChannelId
from tinymq.client.consume.reader import ReaderCore
from tinymq.client.consume.records import Message
from tinymq.client.queue.partition import PartitionLog


class ChannelReader:
    """The reading half of a queue."""

    def __init__(
        self, cluster: Cluster, log: PartitionLog, config: QueueConfig, channel: str, consumer: str | None, start: Place
    ) -> None:
        """`start`: where the channel begins if it does not exist yet. `consumer`: our name; client_id by default."""
        self.channel = check_channel(channel)
        self._name = check_consumer(consumer or cluster.config.client_id or default_client_id())
        self._start = read_place(start)
        self._cluster = cluster
        self._log = log
        self._config = config
        self._closed = False
        self._consumer: ChannelConsumer | None = None  # while the channel is ours
        self._opening = asyncio.Lock()  # one take-over at a time: a second one would fence the first
        # Reads ahead from the cursor. Made when messages are first waited for; dropped when the cursor is moved and
        # after an error, so that the next call reads from `_resume`.
        self._reader: ReaderCore | None = None
        self._resume = 0  # the offset from which the next reader starts, while there is no reader
        self._skipped = 0  # messages that earlier readers have skipped

    @property
    def closed(self) -> bool:
        """Was the queue closed?"""
        return self._closed

    @property
    def skipped(self) -> int:
        """The number of messages that were removed before they could be handed out."""
        return self._skipped + (self._reader.skipped if self._reader is not None else 0)

    def check(self) -> None:
        """Raises Closed, or the error that ended our right to the channel."""
        if self._closed:
            raise Closed("the queue is closed")
        if self._consumer is not None:
            self._consumer.check()

    # ---- messages ------------------------------------------------------------------------------------

    def take(self, max_records: int) -> list[Message]:
        """Hand out messages that were fetched already. The ones handed out before are done with. Any thread may
        call."""
        self.check()
        consumer, reader = self._consumer, self._reader
        if consumer is None or reader is None:
            return []
        consumer.due = consumer.handed
        messages = reader.buffer.next_messages(max_records)
        if messages:
            consumer.handed = messages[-1].offset + 1
        return messages

    @trimming
    async def arrival(self, timeout_s: float | None) -> bool:
        """Wait until `take` has a message. Returns False if no message came in time."""
        await self.open()
        if self._reader is None:
            self._reader = self._log.reader(self._resume, None, reader_config(self._config))
        reader = self._reader
        try:
            if timeout_s != 0.0 and await reader.arrival(timeout_s):
                return True
            # An empty buffer does not mean that the partition is empty: the leader is asked before we say so.
            if reader.buffer.empty and not await self._log.has_message_at(self._position()):
                return False
            if await reader.arrival(self._log.timeout_s):
                return True
        except Exception:
            await self._stop_reading()  # the next call starts a new reader where this one ended
            self.check()
            raise
        waited_s = self._log.timeout_s
        raise DeadlineExceeded(f"{self._log.name}: there are messages, and none came within {waited_s:.3g} s")

    async def peek(self) -> Message | None:
        """The next message, without handing it out. None if there is none."""
        if self._consumer is not None:
            messages = await self.arrival(0.0)
            return self._reader.buffer.peek() if messages and self._reader is not None else None
        position = await self._stored_position()
        return await self._log.message_at(position) if await self._log.has_message_at(position) else None

    async def position(self) -> int:
        """The offset that comes next."""
        return self._position() if self._consumer is not None else await self._stored_position()

    # ---- the cursor ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Take the channel over, unless it is ours already. Raises Fenced."""
        self._cluster.check_loop()
        self.check()
        if self._consumer is not None:
            return
        async with self._opening:
            if self._consumer is not None:
                return
            left = self._cluster.countdown(self._log.timeout_s)
            channel = await self._channel_id(left())
            consumer = await ChannelConsumer.take(self._cluster, channel, self._name, self._start, left())
            self.check()  # the queue may have been closed meanwhile
            self._resume, self._consumer = consumer.committed, consumer
            if self._config.auto_commit:
                consumer.commit_every(self._config.commit_interval_ms / 1000, self._fail)

    async def commit(self, upto: OffsetLike | Message | None) -> None:
        """Commit all messages that were handed out, or those up to `upto`. Raises InvalidRequest beyond them."""
        handed = self._consumer.handed if self._consumer is not None else 0
        offset = handed if upto is None else _offset_behind(upto)
        if offset > handed:
            raise InvalidRequest(
                f"{self._log.name}: {offset} lies beyond the delivered messages, {handed}",
                hint="to skip messages, seek",
            )
        if self._consumer is not None:
            await self._consumer.commit(offset, self._log.timeout_s)

    async def settle(self) -> None:
        """Commit the messages that are done with, unless commits are the application's task."""
        if self._consumer is not None and self._config.auto_commit:
            await self._consumer.settle(self._log.timeout_s)

    async def seek(self, to: Place) -> int:
        """Move the cursor, and return its position after that."""
        place = read_place(to)
        await self.open()
        assert self._consumer is not None, "open"
        position = await self._consumer.seek(place, self._log.timeout_s)
        await self._stop_reading(position)
        return position

    async def removed_before(self, log_start: int) -> None:
        """Drop messages that were fetched and are removed by now."""
        if self._consumer is not None and self._position() < log_start:
            await self._stop_reading(log_start)

    # ---- the end -------------------------------------------------------------------------------------

    def hand_out_is_done(self) -> None:
        """The messages that were handed out last are done with, too."""
        if self._consumer is not None:
            self._consumer.due = self._consumer.handed

    def close(self) -> None:
        """Refuse every call from now on."""
        self._closed = True

    async def leave(self, timeout_s: float) -> None:
        """Commit the messages that are done with, and leave the channel to other consumers."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await self._stop_reading()
            await consumer.leave(timeout_s, settle=self._config.auto_commit)

    async def forget(self) -> None:
        """Stop reading a channel that was deleted with its partition."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.forget()
        await self._stop_reading()

    # ---- of its parts --------------------------------------------------------------------------------

    def _position(self) -> int:
        """The offset that comes next in a channel that is ours."""
        reader = self._reader
        if reader is None or not reader.buffer.cursors:
            return self._resume
        if reader.buffer.empty:  # then messages that were skipped count, too
            return max(self._resume, reader.buffer.cursors[self._log.partition].offset)
        return reader.buffer.position()[self._log.partition]

    async def _stored_position(self) -> int:
        """The offset that comes next in a channel that is not ours, or does not exist yet."""
        left = self._cluster.countdown(self._log.timeout_s)
        channel = await self._channel_id(left())
        return await cursors.stored_position(self._cluster, channel, self._start, left())

    async def _channel_id(self, timeout_s: float) -> ChannelId:
        return ChannelId(await self._log.known_topic(timeout_s), self._log.partition, self.channel)

    def _fail(self, error: Exception) -> None:
        """Wake a call that waits for messages, and raise `error` there."""
        if self._reader is not None:
            self._reader.fail(error)

    async def _stop_reading(self, resume: int | None = None) -> None:
        """Drop the messages that were fetched and not handed out. Reading goes on at `resume`, or else at the position
        of the application."""
        self._resume = self._position() if resume is None else resume
        reader, self._reader = self._reader, None
        if reader is not None:
            self._skipped += reader.skipped
            await reader.close()


def _offset_behind(upto: object) -> int:
    """The first offset that a commit up to `upto` leaves out. Raises InvalidRequest."""
    if isinstance(upto, Message):
        return upto.offset + 1
    return read_offset(upto, "upto")
