"""Batches that wait for their commit: each is answered exactly once, on the loop, whatever its outcome."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import structlog

from tinymq.base.errors import OutcomeUnknown, TinymqError
from tinymq.base.value import value
from tinymq.broker.partition.deadlines import Deadlines, Ticket
from tinymq.format.entry import Entry

logger = structlog.get_logger("tinymq.broker")


class Acks(Enum):
    """When a batch is answered."""

    QUORUM = 0  # on a majority of disks, synced
    LEADER = 1  # in the leader's memory
    NONE = 2


@value
class Produced:
    """The place of a batch in its partition."""

    base_offset: int  # 0: the batch is delayed
    append_time_us: int
    leader_epoch: int  # term of the leader that answers
    duplicate: bool  # the partition had the batch already
    schedule_id: int = 0  # of a delayed batch; 0: it is not delayed
    deliver_at_us: int = 0  # when a delayed batch is due; 0: not known, because it has ended


Done = Callable[[Produced | TinymqError], None]
"""Called once, on the loop, with the place of a batch or an error. Must not raise."""


def call_done(partition: str, done: Callable[[Any], None], outcome: object) -> None:
    """Call `done`. An exception of one caller must not stop `apply`, and with it the replica (hazard 9)."""
    try:
        done(outcome)
    except Exception:
        logger.exception("done_callback_failed", partition=partition)


class PendingAck:
    """A batch that is appended and not answered yet."""

    __slots__ = ("done", "partition", "produced", "ticket")

    def __init__(self, partition: str, produced: Produced, done: Done) -> None:
        self.partition = partition
        self.produced = produced
        self.done: Done | None = done
        self.ticket: Ticket | None = None

    def answer(self, outcome: Produced | TinymqError) -> None:
        """Call `done`, the first time only."""
        done, self.done = self.done, None
        if done is not None:
            call_done(self.partition, done, outcome)

    def expire(self) -> None:
        self.answer(OutcomeUnknown(f"{self.partition}: not committed in time; it may be committed later"))


class PendingAcks:
    """The pending acks of one partition, by the index of the entry that they wait for."""

    def __init__(self, partition: str, deadlines: Deadlines) -> None:
        self._partition = partition
        self._deadlines = deadlines
        self._by_index: dict[int, list[PendingAck]] = {}  # several: a batch and its duplicates

    def add(self, index: int, produced: Produced, timeout_s: float, done: Done) -> None:
        """Answer with `produced` once the entry at `index` is applied, or with OutcomeUnknown after `timeout_s`."""
        pending = PendingAck(self._partition, produced, done)
        pending.ticket = self._deadlines.add(pending, timeout_s)
        self._by_index.setdefault(index, []).append(pending)

    def applied(self, entry: Entry) -> None:
        """Answer the batches that wait for this entry."""
        for pending in self._by_index.pop(entry.header.index, ()):
            if entry.term == pending.produced.leader_epoch:
                self.end(pending, pending.produced)
            else:  # a new leader replaced the entry of that index
                self.end(pending, OutcomeUnknown(f"{self._partition}: another leader's entry took the place"))

    def lost(self, closed: TinymqError | None) -> None:
        """End all, because the leadership is lost, or the replica is `closed`. The next leader may keep or discard
        uncommitted entries; and readers may have read records of a partition that is deleted now."""
        by_index, self._by_index = self._by_index, {}
        reason = "the leader changed" if closed is None else closed.message.removeprefix(f"{self._partition}: ")
        unknown = f"{self._partition}: {reason} before the batch was committed"
        for batches in by_index.values():
            for pending in batches:
                self.end(pending, OutcomeUnknown(unknown))

    def end(self, pending: PendingAck, outcome: Produced | TinymqError) -> None:
        """Answer one batch, and drop its deadline."""
        if pending.ticket is not None:
            self._deadlines.drop(pending.ticket)
        pending.answer(outcome)
