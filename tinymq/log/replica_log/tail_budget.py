"""Bounds the memory that the tails of all logs of one broker take together, and chooses the tail that drops entries.

Pure bookkeeping: each tail itself knows which entries it may drop.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class BudgetedTail(Protocol):
    """A tail as the budget sees it."""

    listed: bool
    """True while the tail is among those that the budget may ask to drop entries. Only the budget sets this."""

    def drop_oldest(self, excess_bytes: int) -> bool:
        """Drop the oldest droppable entries until `excess_bytes` are free, and tell the budget. Returns True if more
        entries may be dropped."""
        ...


class TailBudget:
    """The bytes of all tails. Above the bound, the tail with the least recent append drops its oldest entries.

    Entries that are not yet durable and applied stay in memory, so `bytes` may exceed the bound by them. To keep an
    append cheap, each tail adds to `bytes` by itself.
    """

    __slots__ = ("_droppable", "bytes", "bytes_max", "touch")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self._droppable: OrderedDict[BudgetedTail, None] = OrderedDict()  # the least recently appended first
        self.touch = self._droppable.move_to_end  # makes a listed tail the most recent one

    def add(self, tail: BudgetedTail) -> None:
        """Add a tail that has droppable entries."""
        tail.listed = True
        self._droppable[tail] = None

    def make_room(self) -> None:
        """Make tails drop entries until `bytes` is within the bound."""
        while self.bytes > self.bytes_max and self._droppable:
            oldest = next(iter(self._droppable))
            if not oldest.drop_oldest(self.bytes - self.bytes_max):
                self._remove(oldest)

    def forget(self, tail: BudgetedTail, bytes_held: int) -> None:
        """Remove a closed tail, whose `bytes_held` no longer count."""
        self.bytes -= bytes_held
        self._remove(tail)

    def _remove(self, tail: BudgetedTail) -> None:
        tail.listed = False
        self._droppable.pop(tail, None)
