"""How much memory the tails of all logs of one broker take together, and which of them gives up entries first.

Pure bookkeeping: what may be dropped is each tail's own knowledge.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class BudgetedTail(Protocol):
    """A tail as the budget sees it."""

    listed: bool
    """Whether the budget counts on it to drop entries; the budget's own."""

    def drop_oldest(self, wanted_bytes: int) -> bool:
        """Drop the oldest entries until `wanted_bytes` are free, as far as they may go, and tell the budget. True when
        more may go."""
        ...


class TailBudget:
    """Bytes of all tails. Over the bound, the tail that was appended to least recently drops its oldest entries.

    Entries that are not durable or not applied stay in memory whatever the bound is: `bytes` may exceed it by them.
    Appending calls this once per entry, so a tail does the additions by itself.
    """

    __slots__ = ("_droppable", "bytes", "bytes_max", "touch")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max
        self._droppable: OrderedDict[BudgetedTail, None] = OrderedDict()  # the least recently appended first
        self.touch = self._droppable.move_to_end  # a listed tail took an entry: it is the most recent one

    def add(self, tail: BudgetedTail) -> None:
        """`tail` has entries that may be dropped."""
        tail.listed = True
        self._droppable[tail] = None

    def make_room(self) -> None:
        """Have entries dropped while all of them are too many."""
        while self.bytes > self.bytes_max and self._droppable:
            oldest = next(iter(self._droppable))
            if not oldest.drop_oldest(self.bytes - self.bytes_max):
                self._remove(oldest)

    def forget(self, tail: BudgetedTail, bytes_held: int) -> None:
        """`tail` is closed: what it held does not count any more."""
        self.bytes -= bytes_held
        self._remove(tail)

    def _remove(self, tail: BudgetedTail) -> None:
        tail.listed = False
        self._droppable.pop(tail, None)
