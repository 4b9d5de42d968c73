"""The broker's one timer for retention: it calls every partition in turn, some in each turn of the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from tinymq.base.clock import Clock, Timer

STEP = 50  # partitions in one turn of the loop


class Retained(Protocol):
    """Something with a retention (tinymq.broker.partition.partition.Partition)."""

    def retain(self) -> None: ...


class RetentionTimer:
    """From `start` to `stop`."""

    def __init__(self, clock: Clock, partitions: Callable[[], Iterable[Retained]], every_s: float) -> None:
        """`partitions` returns the open partitions when a round begins. `every_s` is the pause between two rounds."""
        self._clock = clock
        self._partitions = partitions
        self._every_s = every_s
        self._left: list[Retained] = []  # of this round; the next one is last
        self._timer: Timer | None = None

    def start(self) -> None:
        self._timer = self._clock.call_later(self._every_s, self._begin)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._left = None, []

    def _begin(self) -> None:
        self._left = list(self._partitions())
        self._left.reverse()
        self._step()

    def _step(self) -> None:
        some, self._left = self._left[-STEP:], self._left[:-STEP]
        # The timer is set first: an error of one partition must not end retention for all.
        again = self._clock.call_later(0.0, self._step) if self._left else None
        self._timer = again or self._clock.call_later(self._every_s, self._begin)
        for partition in reversed(some):
            partition.retain()
