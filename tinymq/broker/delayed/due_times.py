"""The due times of delayed batches, as their leader's timer needs them. Pure.

A heap takes a hundred bytes for each due time, so it has only those within one minute (WINDOW_US). When that minute is
over, the leader reads the applied state through, and fills the heap with the next minute's.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from tinymq.broker.state.delayed import DelayedBatches

WINDOW_US = 60_000_000


class DueTimes:
    """The due times of one partition's batches, as far as its leader has applied them."""

    __slots__ = ("_applied", "_heap", "_later_us", "_until_us")

    def __init__(self, applied: DelayedBatches, now_us: int) -> None:
        self._applied = applied
        self._heap: list[tuple[int, int]] = []  # (due time, schedule id) of batches that are due before `_until_us`
        self._until_us = 0
        self._later_us: int | None = None  # the first of the due times that are not in the heap; None: there are none
        self._fill(now_us)

    def add(self, due_us: int, schedule_id: int) -> None:
        """Add a batch that is staged, or one that was taken out and could not be published."""
        if due_us < self._until_us:
            heappush(self._heap, (due_us, schedule_id))
        elif self._later_us is None or due_us < self._later_us:
            self._later_us = due_us

    @property
    def next_us(self) -> int | None:
        """When to call `take` next; None: nothing waits. A batch that has ended may still be counted."""
        return self._heap[0][0] if self._heap else self._later_us

    def take(self, now_us: int, most: int) -> list[int]:
        """Take out the schedule ids that are due, at most so many, by due time and then by id. Some may have ended."""
        if not self._heap and self._later_us is not None and self._later_us <= now_us:
            self._fill(now_us)
        taken: list[int] = []
        while self._heap and len(taken) < most and self._heap[0][0] <= now_us:
            taken.append(heappop(self._heap)[1])
        return taken

    def _fill(self, now_us: int) -> None:
        """Fill the empty heap with the batches that are due within the next WINDOW_US."""
        self._until_us = now_us + WINDOW_US
        later = None
        for due_us, schedule_id in self._applied.due_times():
            if due_us < self._until_us:
                self._heap.append((due_us, schedule_id))
            elif later is None or due_us < later:
                later = due_us
        self._later_us = later
        heapify(self._heap)
