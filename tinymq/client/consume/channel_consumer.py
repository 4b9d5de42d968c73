"""The consumer of a channel: which records the application has got, which it has processed, and which are committed.

Invariant, while nobody else moves the channel's cursor: committed <= due <= handed. `Fenced`, or the deletion of the
channel or its partition, ends the consumer: from then on it is dead, and every call raises that error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Self

from tinymq.base.errors import Fenced, NotFound, OutcomeUnknown, TinymqError
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.common.start_positions import KnownOffset, OffsetQuestion
from tinymq.client.common.traces import untraced
from tinymq.client.consume import cursors
from tinymq.client.consume.cursors import REQUEST_ID_BYTES, ChannelId
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

UNSET_S_MIN = 0.1  # the least time for undoing a registration, even if the call's time is up
UNDO_SHARE = 0.25  # the part of a call's time that is reserved for undoing it, so that the call ends by its deadline


class ChannelConsumer:
    """One consumer of one channel, from `take` to `leave`. All calls on the loop."""

    def __init__(self, cluster: Cluster, channel: ChannelId, epoch: int) -> None:
        self.id = channel
        self.committed = 0  # the channel's cursor, as in the leader's newest answer
        self.handed = 0  # the offset behind the last message that the application got
        self.due = 0  # messages below count as processed, because the application has asked for more since
        self._cluster = cluster
        self._epoch = epoch  # fences every consumer with a lower one
        self._generation = 0  # of the cursor; a seek raises it, and commits of an older one are refused
        self._changing = asyncio.Lock()  # one commit or seek at a time
        self._failure: Exception | None = None  # the error that ended this consumer; None: it is alive
        self._told = False  # whether a call has raised `_failure` already, so that `leave` need not
        self._committing: asyncio.Task[None] | None = None

    @classmethod
    async def take(
        cls, cluster: Cluster, channel: ChannelId, consumer: str, start: KnownOffset | OffsetQuestion, timeout_s: float
    ) -> Self:
        """Take the channel over, which fences its previous consumer. A new channel begins at `start`."""
        left = cluster.countdown(timeout_s)
        command_id = cluster.rng.randbytes(REQUEST_ID_BYTES)
        try:
            epoch = await cursors.set_consumer(cluster, channel, consumer, command_id, left() * (1 - UNDO_SHARE))
        except OutcomeUnknown:
            await _undo(cluster, channel, consumer, command_id, left)
            raise
        consuming = cls(cluster, channel, epoch)
        try:
            await consuming._change(cursors.opening(epoch, start), left() * (1 - UNDO_SHARE))
        except TinymqError:
            await consuming._unset(max(UNSET_S_MIN, min(left(), cluster.attempt_s)))
            raise
        consuming.handed = consuming.due = consuming.committed
        return consuming

    def check(self) -> None:
        """Raise the error that ended this consumer, if it is dead."""
        if self._failure is not None:
            self._told = True
            raise untraced(self._failure)

    async def commit(self, offset: int, timeout_s: float) -> None:
        """Move the cursor to `offset`. When this returns, it is on a majority of disks."""
        self.due = max(self.due, offset)
        async with self._changing:
            await self._noted(self._commit(offset, timeout_s))

    async def settle(self, timeout_s: float) -> None:
        """Commit up to `due`, unless that is committed."""
        await self._noted(self._settle(timeout_s))

    async def seek(self, to: KnownOffset | OffsetQuestion, timeout_s: float) -> int:
        """Move the cursor to a place, and return its offset."""
        command = cursors.seeking(self._epoch, to, self._cluster.rng.randbytes(REQUEST_ID_BYTES))
        async with self._changing:
            try:
                await self._noted(self._change(command, timeout_s))
            except OutcomeUnknown:
                self.due = self.handed = self.committed  # if the seek was done, a commit of older messages is Fenced
                raise
            self.due = self.handed = self.committed
        return self.committed

    def commit_every(self, interval_s: float, died: Callable[[Exception], None]) -> None:
        """Commit up to `due` every `interval_s`. If an error ends the consumer, call `died` with it."""
        self._committing = asyncio.create_task(self._commit_every(interval_s, died))

    def forget(self) -> None:
        """Stop the background commits, because the channel was deleted."""
        if self._committing is not None:
            self._committing.cancel()

    async def leave(self, timeout_s: float, *, settle: bool) -> None:
        """End the consumer, and its registration unless another consumer has taken the channel over.

        With `settle`, first commits up to `due`. Raises the error of that commit, unless a call has raised it before.
        """
        self.forget()
        if self._committing is not None:
            await asyncio.gather(self._committing, return_exceptions=True)
        try:
            if settle and not self._told:
                await self.settle(timeout_s)
        finally:
            await self._unset(self._cluster.attempt_s)

    async def _unset(self, timeout_s: float) -> None:
        """Remove this consumer's registration, if it is still registered."""
        try:
            await cursors.unset_consumer(self._cluster, self.id, self._epoch, timeout_s)
        except TinymqError as error:  # the next consumer takes the channel over in any case
            LOG.debug("channel %s of %s not left: %s", self.id.channel, self.id.topic.name, error)

    async def _commit_every(self, interval_s: float, died: Callable[[Exception], None]) -> None:
        try:
            while self._failure is None:
                await self._cluster.clock.sleep(interval_s)
                try:
                    await self._settle(self._cluster.attempt_s)  # short, because a commit of the application waits
                except TinymqError as error:  # retried after `interval_s`, unless the error ended this consumer
                    LOG.info("channel %s of %s not committed: %s", self.id.channel, self.id.topic.name, error)
        except Exception as error:  # the application's next call raises it
            self._failure = self._failure or error
        if self._failure is not None:
            died(self._failure)

    async def _noted(self, work: Awaitable[None]) -> None:
        """Await the work of a call, and note its error if that ends the consumer."""
        try:
            await work
        except (Fenced, NotFound):
            self._told = True
            raise

    async def _settle(self, timeout_s: float) -> None:
        async with self._changing:
            if self.due > self.committed:
                await self._commit(self.due, timeout_s)

    async def _commit(self, offset: int, timeout_s: float) -> None:
        commit = pb.ChannelCommit(epoch=self._epoch, generation=self._generation, offset=offset)
        await self._change(pb.ChannelCommand(commit=commit), timeout_s)

    async def _change(self, command: pb.ChannelCommand, timeout_s: float) -> None:
        self.check()
        try:
            outcome = await cursors.change(self._cluster, self.id, command, timeout_s)
        except (Fenced, NotFound) as error:
            self._failure = error
            raise
        self.committed = outcome.position
        self._generation = outcome.generation


async def _undo(
    cluster: Cluster, channel: ChannelId, consumer: str, command_id: bytes, left: Callable[[], float]
) -> None:
    """Undo a registration of unknown outcome in the time that is left.

    This sends the same command again. Either it was carried out before, and the answer has its epoch, or it registers
    the consumer now. Both ways the epoch is known, so that the registration can be removed.
    """
    try:
        asking_s = max(UNSET_S_MIN, min(left() / 2, cluster.attempt_s))
        epoch = await cursors.set_consumer(cluster, channel, consumer, command_id, asking_s)
        await cursors.unset_consumer(cluster, channel, epoch, max(UNSET_S_MIN, min(left(), cluster.attempt_s)))
    except TinymqError as error:  # the next consumer takes the channel over in any case
        LOG.info("%s may stay registered for channel %s: %s", consumer, channel.channel, error)
