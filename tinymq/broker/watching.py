"""Who is told when a partition has something new: once per turn of the loop, however much came in it."""

from __future__ import annotations

from collections.abc import Callable


class Watchers:
    """Of one partition."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._watchers: dict[Callable[[], None], None] = {}  # in order: a replay wakes them alike
        self._waking = False

    def add(self, woken: Callable[[], None]) -> None:
        self._watchers[woken] = None

    def drop(self, woken: Callable[[], None]) -> None:
        self._watchers.pop(woken, None)

    def wake(self) -> None:
        if self._watchers and not self._waking:
            self._waking = True
            self._soon(self._wake_now)

    def _wake_now(self) -> None:
        self._waking = False
        for woken in list(self._watchers):
            woken()
