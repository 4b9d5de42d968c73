"""Publishes the delayed batches of one partition when they are due, while its replica leads.

One timer waits for the next due time. Batches that are due are read from the log, and then decided and appended in one
turn of the loop: during the read, one may have been canceled, or the leadership lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import structlog

from tinymq.base.errors import NotLeader, TinymqError
from tinymq.base.retry import Backoff
from tinymq.broker.delayed.due_times import DueTimes
from tinymq.broker.delayed.staged_reads import StagedPayload
from tinymq.broker.partition.deadlines import Deadlines, Ticket
from tinymq.broker.state.delayed import DelayedBatch

TURN_MAX = 256  # batches that are read, and then appended, in one turn of the loop
RETRY = Backoff(0.05, 5.0)  # after failures, such as too many uncommitted bytes, or a full disk
# The append clock is at most 1 % faster than the monotonic clock, so a long wait has to end a little early.
NEAR_S = 1.0
SHARE = 0.98

logger = structlog.get_logger("tinymq.broker")


class DelayedLog(Protocol):
    """The delayed batches of one partition, and what their publisher does with them."""

    def now_us(self) -> int:
        """The append clock. Raises NotLeader."""
        ...

    def waiting(self, schedule_ids: Sequence[int]) -> list[DelayedBatch]:
        """Those of the batches that have not ended, and do not with an uncommitted entry, in the same order."""
        ...

    async def read(self, batches: Sequence[DelayedBatch]) -> dict[int, StagedPayload]:
        """The batches by schedule id."""
        ...

    def publish(self, schedule_ids: Sequence[int], staged: Mapping[int, StagedPayload]) -> None:
        """Append the entries that publish batches, in this order, except for those that have ended.

        Raises NotLeader, QuotaExceeded, DiskFull, maybe after some of them.
        """
        ...


class Publisher:
    """From each `lead` to the next `follow`."""

    def __init__(self, name: str, deadlines: Deadlines, log: DelayedLog) -> None:
        self._name = name
        self._deadlines = deadlines
        self._log = log
        self._due: DueTimes | None = None  # None: this replica does not lead
        self._ticket: Ticket | None = None  # of the timer
        self._task: asyncio.Task[None] | None = None
        self._failures = 0  # in a row

    def lead(self, due: DueTimes) -> None:
        self._due = due
        self.look()

    def follow(self) -> None:
        self._due = None
        self._drop_timer()

    def staged(self, batch: DelayedBatch) -> None:
        """Note that the entry that stages a batch is applied."""
        if self._due is not None:
            before = self._due.next_us
            self._due.add(batch.deliver_at_us, batch.schedule_id)
            if before != self._due.next_us:
                self.look()

    def look(self) -> None:
        """Set the timer again: the next due time has changed, or the append clock has jumped."""
        self._drop_timer()
        if self._due is not None and self._task is None and (due_us := self._due.next_us) is not None:
            with suppress(NotLeader):  # the leadership is lost, and `follow` comes
                left_s = max(0.0, (due_us - self._log.now_us()) / 1e6)
                self._ticket = self._deadlines.add(self, left_s * SHARE if left_s > NEAR_S else left_s)

    def expire(self) -> None:
        """The timer has ended."""
        self._ticket = None
        if self._due is not None and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _drop_timer(self) -> None:
        if self._ticket is not None:
            self._deadlines.drop(self._ticket)
            self._ticket = None

    async def _run(self) -> None:
        """Publish what is due, until nothing is."""
        try:
            while (due := self._due) is not None and (taken := due.take(self._log.now_us(), TURN_MAX)):
                await self._publish(due, taken)
                self._failures = 0
        except TinymqError as error:
            self._failures += 1
            if self._due is not None:
                self._ticket = self._deadlines.add(self, RETRY.pause_s(self._failures))
                if self._failures == 1:
                    logger.warning("publishing_failed", partition=self._name, error=error.code, reason=error.message)
        finally:
            self._task = None
        if self._ticket is None:
            self.look()

    async def _publish(self, due: DueTimes, taken: Sequence[int]) -> None:
        """Publish these batches. If that fails, the ones that are left are due again."""
        try:
            staged = await self._log.read(self._log.waiting(taken))
            self._log.publish(taken, staged)
        except TinymqError:
            for batch in self._log.waiting(taken):
                due.add(batch.deliver_at_us, batch.schedule_id)
            raise
        await asyncio.sleep(0)  # entries in memory are read without a pause, and others have to have their turn
