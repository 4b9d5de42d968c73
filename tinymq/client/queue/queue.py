"""A queue, asynchronous: one partition, read through a channel of one's own, and written to.

What is handed out is committed when more is asked for, or when the queue is closed cleanly; a crash or an exception
delivers the last ones again. Reading is a reader's (tinymq/client/consume/reader.py), read-ahead and all; the cursor is
in the partition's own log (tinymq/client/consume/cursors.py). The channel is taken over by the first call that may move
it, and not before: who pushes, peeks or counts fences nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from tinymq.base.errors import DeadlineExceeded, InvalidRequest, TinymqError
from tinymq.base.types import Offset
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.common.argument_checks import check_channel, check_consumer, check_count, check_wait
from tinymq.client.common.config import QueueConfig, default_client_id
from tinymq.client.common.start_positions import OffsetLike, Place, read_offset, read_place
from tinymq.client.consume import cursors
from tinymq.client.consume.channel_consumer import ChannelConsumer
from tinymq.client.consume.cursors import ChannelId
from tinymq.client.consume.reader import AsyncReader
from tinymq.client.consume.records import Message
from tinymq.client.produce.producer import LEAVING_IN_ERROR_S, AsyncProducer
from tinymq.client.queue.partition import AsyncPartition, Wake


class AsyncQueue(AsyncPartition):
    """A partition as a queue. Made by AsyncClient.queue(); use it in `async with`. For one task at a time."""

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
        sending: Callable[[], AsyncProducer],
        topic: str,
        partition: int,
        *,
        channel: str,
        consumer: str | None,
        start: Place,
    ) -> None:
        super().__init__(cluster, config, wake, sending, topic, partition)
        self.channel = check_channel(channel)
        self.consumer = check_consumer(consumer or cluster.config.client_id or default_client_id())
        self._start = read_place(start)
        self._claim: ChannelConsumer | None = None  # while the channel is ours
        self._opening = asyncio.Lock()
        self._reader: AsyncReader | None = None
        self._resume = 0  # where to read on without a reader
        self._skipped = 0

    # ---- reading -------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """The next message; waits for it, for good. The one before it is done with."""
        while not (found := self.take(1)):
            await self.arrival(None)
        return found[0]

    async def poll(self, max_records: int = 1, timeout: float | None = 0.0) -> list[Message]:
        """Up to `max_records` messages: at once if there are any, else after up to `timeout` seconds (None: for good).

        [] says that there is none: the leader was asked. While no leader answers this waits beyond `timeout`, up to
        request_timeout_ms, and then raises. What was handed out before is done with, and is committed within
        commit_interval_ms. Raises Fenced when another consumer took the channel over, or somebody moved its cursor;
        OffsetOutOfRange when what comes next is gone (on_trimmed="skip" goes on behind it).
        """
        check_count("max_records", max_records, 1)
        check_wait(timeout)
        if not (found := self.take(max_records)) and await self.arrival(timeout):
            found = self.take(max_records)
        return found

    def take(self, max_records: int) -> list[Message]:
        """What is at hand, from any thread; with that, what was handed out before is done with."""
        self._check()
        claim, reader = self._claim, self._reader
        if claim is None or reader is None:
            return []
        claim.due = claim.handed
        found = reader.buffer.next_messages(max_records)
        if found:
            claim.handed = found[-1].offset + 1
        return found

    async def arrival(self, timeout_s: float | None) -> bool:
        """Wait until a message is at hand. False: there is none, and none came in time."""
        await self.open()
        reader = self._reader = self._reader or self._read(Offset(self._resume), None, self.config.reader())
        try:
            if timeout_s != 0.0 and await reader.arrival(timeout_s):
                return True
            if reader.buffer.empty and not await self._left(self._position(), strict=True):
                return False
            if await reader.arrival(self._patience_s):
                return True
        except Exception:
            await self._stop_reading()  # the next call begins anew, where this one ended
            self._check()
            raise
        raise DeadlineExceeded(f"{self._where}: there are messages, and none came within {self._patience_s:.3g} s")

    async def peek(self) -> Message | None:
        """The next message, which stays the next one; None when there is none. Takes the channel from nobody."""
        self._check()
        if self._claim is not None:
            found = await self.arrival(0.0)
            return self._reader.buffer.peek() if found and self._reader is not None else None
        position = await self._stored_position()
        return await self._one(position) if await self._left(position, strict=True) else None

    async def size(self) -> int:
        """How many messages the channel has not handed out yet. Takes the channel from nobody."""
        self._check()
        return await self._left(await self.position(), strict=False)

    async def is_empty(self) -> bool:
        """There is no message that the channel has not handed out yet."""
        return await self.size() == 0

    async def position(self) -> int:
        """The offset that comes next. Takes the channel from nobody."""
        self._check()
        return self._position() if self._claim is not None else await self._stored_position()

    @property
    def skipped(self) -> int:
        """How many messages were gone before they could be handed out; counted with on_trimmed="skip" alone."""
        return self._skipped + (self._reader.skipped if self._reader is not None else 0)

    # ---- the channel's cursor ------------------------------------------------------------------------

    async def open(self) -> None:
        """Take the channel over: whoever read it before is fenced. Done by the first call that needs it.

        A channel that is not there is made, and starts at `start`. Raises UnknownTopic, UnknownPartition,
        QuotaExceeded (too many channels); Fenced when yet another consumer was quicker.
        """
        self._cluster.check_loop()
        self._check()
        if self._claim is not None:
            return
        async with self._opening:  # twice at once would fence ourselves
            if self._claim is not None:
                return
            left = self._cluster.countdown(self._patience_s)
            channel = ChannelId(await self._known(left()), self.partition, self.channel)
            claim = await ChannelConsumer.take(self._cluster, channel, self.consumer, self._start, left())
            self._check()  # it may have been closed meanwhile
            self._resume, self._claim = claim.committed, claim
            if self.config.auto_commit:
                claim.commit_every(self.config.commit_interval_ms / 1000, self._wake_up)

    async def commit(self, upto: OffsetLike | Message | None = None) -> None:
        """Commit now: all that was handed out, or all below an offset, or a Message and all before it.

        Returns when a majority has it on disk. Raises Fenced, InvalidRequest (beyond what was handed out),
        DeadlineExceeded, OutcomeUnknown.
        """
        self._check()
        claim = self._claim
        handed = claim.handed if claim is not None else 0
        offset = handed if upto is None else _behind(upto)
        if offset > handed:
            raise InvalidRequest(
                f"{self._where}: {offset} lies beyond what was handed out, {handed}", hint="to skip messages, seek"
            )
        if claim is not None:
            await claim.commit(offset, self._patience_s)

    async def seek(self, to: Place) -> int:
        """Go on from an Offset, "earliest", "latest" or a datetime; where that is. What is not committed stays so.

        After OutcomeUnknown nobody knows where the channel is: seek again. Raises OffsetOutOfRange, Fenced.
        """
        place = read_place(to)
        await self.open()
        assert self._claim is not None, "open"
        position = await self._claim.seek(place, self._patience_s)
        await self._stop_reading(position)
        return position

    async def flush(self) -> None:
        """Wait until everything pushed so far is acknowledged, and what is done with is committed."""
        await super().flush()
        if self._claim is not None and self.config.auto_commit:
            await self._claim.settle(self._patience_s)

    # ---- the end -------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Commit what was handed out, flush what was pushed, and leave the channel to others. Again: nothing.

        Raises Fenced when another consumer took over before that, NotDelivered.
        """
        if self._claim is not None:
            self._claim.due = self._claim.handed
        await self.leave(self._patience_s)

    async def leave(self, timeout_s: float = LEAVING_IN_ERROR_S) -> None:
        """Close, with what was handed out last not done with: it will be delivered again."""
        self._cluster.check_loop()
        if self._closed:
            return
        self._closed = True
        claim, self._claim = self._claim, None
        try:
            if claim is not None:
                await self._stop_reading()
                await claim.leave(timeout_s, settle=self.config.auto_commit)
        finally:
            await super().leave(timeout_s)

    async def remove_before(self, before: Place) -> int:
        """Remove for good what lies before an Offset, or before the first message at or after a datetime.

        Returns where the partition begins afterwards, on a majority of disks. Raises Held when somebody holds records
        that were to go, and did so all the time; OffsetOutOfRange beyond the end.
        """
        start = await super().remove_before(before)
        if self._claim is not None and self._position() < start:
            await self._stop_reading(start)  # what was read ahead is gone with the rest
        return start

    async def delete(self) -> None:
        """Delete the whole partition, for all its channels: its messages are gone, and its number is never used again.

        The last partition goes with its topic alone: InvalidRequest. Raises UnknownPartition. The queue is closed then.
        """
        await super().delete()
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.forget()
        await self._stop_reading()

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

    # ---- of its parts --------------------------------------------------------------------------------

    def _check(self) -> None:
        super()._check()
        if self._claim is not None:
            self._claim.check()

    def _position(self) -> int:
        """The offset that comes next, of a channel that is ours."""
        reader = self._reader
        if reader is None or not reader.buffer.cursors:
            return self._resume
        if reader.buffer.empty:  # then what was skipped counts, too
            return max(self._resume, reader.buffer.cursors[self.partition].offset)
        return reader.buffer.position()[self.partition]

    async def _stored_position(self) -> int:
        """The offset that comes next, of a channel that is not ours, or that is not there yet."""
        left = self._cluster.countdown(self._patience_s)
        channel = ChannelId(await self._known(left()), self.partition, self.channel)
        return await cursors.stored_position(self._cluster, channel, self._start, left())

    def _wake_up(self, error: Exception) -> None:
        """Whoever waits for messages hears of it."""
        if self._reader is not None:
            self._reader.fail(error)

    async def _stop_reading(self, resume: int | None = None) -> None:
        """Drop what was fetched and not handed out; go on at `resume`, or else where the application is."""
        self._resume = self._position() if resume is None else resume
        reader, self._reader = self._reader, None
        if reader is not None:
            self._skipped += reader.skipped
            await reader.close()


def _behind(upto: object) -> int:
    """The first offset that is not meant. Raises InvalidRequest."""
    if isinstance(upto, Message):
        return upto.offset + 1
    return read_offset(upto, "upto")
