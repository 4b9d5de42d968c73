"""Who waits for an entry of a partition to be committed: told once, on the loop, whatever becomes of it."""

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
    """Where a batch is."""

    base_offset: int
    append_time_us: int
    leader_epoch: int
    duplicate: bool


Done = Callable[[Produced | TinymqError], None]
"""Told once what became of a batch, on the loop. Must not raise."""


def tell(partition: str, done: Callable[[Any], None], outcome: object) -> None:
    """What `done` raises harms nobody else: `apply` goes on, and so does its replica (hazard 9)."""
    try:
        done(outcome)
    except Exception:
        logger.exception("answer_failed", partition=partition)


class PendingAck:
    """A batch that is appended and not yet answered."""

    __slots__ = ("done", "partition", "produced", "ticket")

    def __init__(self, partition: str, produced: Produced, done: Done) -> None:
        self.partition = partition
        self.produced = produced
        self.done: Done | None = done
        self.ticket: Ticket | None = None

    def answer(self, outcome: Produced | TinymqError) -> None:
        """Once."""
        done, self.done = self.done, None
        if done is not None:
            tell(self.partition, done, outcome)

    def expire(self) -> None:
        self.answer(OutcomeUnknown(f"{self.partition}: not committed in time; it may yet be"))


class PendingAcks:
    """Those of one partition, by the index of the entry that they wait for."""

    def __init__(self, partition: str, deadlines: Deadlines) -> None:
        self._partition = partition
        self._deadlines = deadlines
        self._at: dict[int, list[PendingAck]] = {}

    def add(self, index: int, produced: Produced, timeout_s: float, done: Done) -> None:
        waiter = PendingAck(self._partition, produced, done)
        waiter.ticket = self._deadlines.add(waiter, timeout_s)
        self._at.setdefault(index, []).append(waiter)

    def applied(self, entry: Entry) -> None:
        """Answer those who wait for this entry: it may be another leader's."""
        for waiter in self._at.pop(entry.header.index, ()):
            if entry.term == waiter.produced.leader_epoch:
                self.end(waiter, waiter.produced)
            else:
                self.end(waiter, OutcomeUnknown(f"{self._partition}: another leader's entry took the place"))

    def lost(self) -> None:
        """The leadership is: what is not committed may be taken back by the next leader, or kept."""
        at, self._at = self._at, {}
        for waiters in at.values():
            for waiter in waiters:
                self.end(
                    waiter, OutcomeUnknown(f"{self._partition}: the leader changed before the batch was committed")
                )

    def end(self, waiter: PendingAck, outcome: Produced | TinymqError) -> None:
        if waiter.ticket is not None:
            self._deadlines.drop(waiter.ticket)
        waiter.answer(outcome)
