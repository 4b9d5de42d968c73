"""Tells watchers that a partition has changed: once per turn of the loop, however many entries were applied.

It wakes many watchers in slices, so that the loop serves other work in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

WOKEN_MAX = 32  # watchers woken in one turn of the loop


class CommitWatchers:
    """The watchers of one partition."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._watchers: dict[Callable[[], None], None] = {}  # in order: a replay wakes them in the same order
        self._waking = False  # a pass over all watchers is scheduled or under way
        self._due: deque[Callable[[], None]] = deque()  # the rest of the pass that is under way
        self._again = False  # whether the partition has changed since that pass began

    def add(self, woken: Callable[[], None]) -> None:
        self._watchers[woken] = None

    def drop(self, woken: Callable[[], None]) -> None:
        self._watchers.pop(woken, None)

    def wake(self) -> None:
        if self._due:
            self._again = True
        elif self._watchers and not self._waking:
            self._waking = True
            self._soon(self._wake_all)

    def _wake_all(self) -> None:
        self._due.extend(self._watchers)
        self._again = False
        self._wake_some()

    def _wake_some(self) -> None:
        for _ in range(min(WOKEN_MAX, len(self._due))):
            woken = self._due.popleft()
            if woken in self._watchers:
                woken()
        if self._due:
            self._soon(self._wake_some)
            return
        self._waking = False
        if self._again:
            self.wake()
