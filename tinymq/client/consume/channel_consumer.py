"""A channel that is ours: its cursor, and how far what was handed out is done with and committed.

Invariant: committed <= due <= handed, while nobody else moves the cursor. `Fenced`, and a channel or partition that
is gone, are for good: the claim is dead from then on, and every call says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Self

from tinymq.base.errors import Fenced, NotFound, OutcomeUnknown, TinymqError
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.common.start_positions import KnownOffset, OffsetQuestion
from tinymq.client.consume import cursors
from tinymq.client.consume.cursors import REQUEST_ID_BYTES, ChannelId
from tinymq.proto import tinymq_pb2 as pb

LOG = logging.getLogger("tinymq.client")

UNSET_S_MIN = 0.1  # for the way back, when the time is up
WAY_BACK = 0.25  # of the time that there is, kept for it: a call ends by its deadline, whatever comes of it


class ChannelConsumer:
    """Who we are at the channel (epoch), after which seek (generation), and how far."""

    def __init__(self, cluster: Cluster, channel: ChannelId, epoch: int) -> None:
        self.id = channel
        self.committed = 0
        self.handed = 0  # behind the last message that was handed out
        self.due = 0  # what lies below was handed out, and more was asked for: done with
        self._cluster = cluster
        self._epoch = epoch
        self._generation = 0
        self._changing = asyncio.Lock()  # one commit or seek at a time
        self._failure: Exception | None = None  # it is dead, for this reason
        self._told = False  # and the application knows
        self._committing: asyncio.Task[None] | None = None

    @classmethod
    async def take(
        cls, cluster: Cluster, channel: ChannelId, consumer: str, start: KnownOffset | OffsetQuestion, timeout_s: float
    ) -> Self:
        """Take the channel over, making it at `start` where there is none: whoever read it before is fenced."""
        left = cluster.countdown(timeout_s)
        command_id = cluster.rng.randbytes(REQUEST_ID_BYTES)
        try:
            epoch = await cursors.set_consumer(cluster, channel, consumer, command_id, left() * (1 - WAY_BACK))
        except OutcomeUnknown:
            await _undo(cluster, channel, consumer, command_id, left)
            raise
        claim = cls(cluster, channel, epoch)
        try:
            await claim._change(cursors.opening(epoch, start), left() * (1 - WAY_BACK))
        except TinymqError:
            await claim._unset(max(UNSET_S_MIN, min(left(), cluster.attempt_s)))
            raise
        claim.handed = claim.due = claim.committed
        return claim

    def check(self) -> None:
        """Raises why it is dead."""
        if self._failure is not None:
            self._told = True
            raise self._failure

    async def commit(self, offset: int, timeout_s: float) -> None:
        """What lies below `offset` is done with: on a majority of disks when this returns."""
        self.due = max(self.due, offset)
        async with self._changing:
            await self._telling(self._commit(offset, timeout_s))

    async def settle(self, timeout_s: float) -> None:
        """Commit what is due, if it is not."""
        await self._telling(self._settle(timeout_s))

    async def seek(self, to: KnownOffset | OffsetQuestion, timeout_s: float) -> int:
        """Move the cursor; where it is then."""
        command = cursors.seeking(self._epoch, to, self._cluster.rng.randbytes(REQUEST_ID_BYTES))
        async with self._changing:
            try:
                await self._telling(self._change(command, timeout_s))
            except OutcomeUnknown:
                self.due = self.handed = self.committed  # if it was done, a commit of what was would be Fenced
                raise
            self.due = self.handed = self.committed
        return self.committed

    def commit_every(self, interval_s: float, died: Callable[[Exception], None]) -> None:
        """Settle now and then from now on. `died` is told of what the claim dies of meanwhile."""
        self._committing = asyncio.create_task(self._commit_every(interval_s, died))

    def forget(self) -> None:
        """The end of a claim whose channel is gone."""
        if self._committing is not None:
            self._committing.cancel()

    async def leave(self, timeout_s: float, *, settle: bool) -> None:
        """The end: nobody reads the channel from now on, unless somebody took it over. With `settle`,
        commits what is due first, and raises what keeps it from that, unless the application knows already."""
        self.forget()
        if self._committing is not None:
            await asyncio.gather(self._committing, return_exceptions=True)
        try:
            if settle and not self._told:
                await self.settle(timeout_s)
        finally:
            await self._unset(self._cluster.attempt_s)

    async def _unset(self, timeout_s: float) -> None:
        """Nobody is on record for the channel any more, as far as it was us."""
        try:
            await cursors.unset_consumer(self._cluster, self.id, self._epoch, timeout_s)
        except TinymqError as error:  # whoever comes next takes it over all the same
            LOG.debug("channel %s of %s not left: %s", self.id.channel, self.id.topic.name, error)

    async def _commit_every(self, interval_s: float, died: Callable[[Exception], None]) -> None:
        try:
            while self._failure is None:
                await self._cluster.clock.sleep(interval_s)
                try:
                    await self._settle(self._cluster.attempt_s)  # not for long: a commit by hand waits behind it
                except TinymqError as error:  # it is tried again, unless it is dead: then the next call says so
                    LOG.info("channel %s of %s not committed: %s", self.id.channel, self.id.topic.name, error)
        except Exception as error:  # whatever it was, the application hears of it
            self._failure = self._failure or error
        if self._failure is not None:
            died(self._failure)

    async def _telling(self, work: Awaitable[None]) -> None:
        """For calls of the application: it need not be told again at the end."""
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
    """We may be on record for a channel that we do not read: ask what came of it (else it is done now), and end it, in
    what is left of the time."""
    try:
        asking_s = max(UNSET_S_MIN, min(left() / 2, cluster.attempt_s))
        epoch = await cursors.set_consumer(cluster, channel, consumer, command_id, asking_s)
        await cursors.unset_consumer(cluster, channel, epoch, max(UNSET_S_MIN, min(left(), cluster.attempt_s)))
    except TinymqError as error:  # whoever comes next takes the channel over all the same
        LOG.info("%s may stay on record for channel %s: %s", consumer, channel.channel, error)
