"""A clock that a test moves."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable


class ManualTimer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call  # None once cancelled

    def cancel(self) -> None:
        self.call = None


class ManualClock:
    """Time stands still until `advance`, which runs the timers that are due, in order."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self.wall_skew_us = 0  # wall clock minus monotonic clock; a test may change it at any time
        self._now_s = start_s
        self._timers: list[tuple[float, int, ManualTimer]] = []  # a heap of (due, number, timer)
        self._count = 0  # of timers so far: it orders those that are due at the same time

    def monotonic(self) -> float:
        return self._now_s

    def wall_us(self) -> int:
        return int(self._now_s * 1_000_000) + self.wall_skew_us

    def wall_ns(self) -> int:
        return self.wall_us() * 1000

    def call_later(self, delay_s: float, call: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(call)
        self._count += 1
        heapq.heappush(self._timers, (self._now_s + delay_s, self._count, timer))
        return timer

    async def sleep(self, delay_s: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        self.call_later(delay_s, wake)
        await woken

    def advance(self, seconds: float) -> None:
        """Move the time on by `seconds`, and run the timers that are due by then."""
        end = self._now_s + seconds
        while self._timers and self._timers[0][0] <= end:
            self._now_s, _, timer = heapq.heappop(self._timers)
            if timer.call is not None:
                timer.call()
        self._now_s = end
