"""When each group is ticked: once per turn of the loop after an event, or when its timer is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tinymq.base.clock import Clock, Timer
from tinymq.base.types import GroupId

NEVER = float("inf")


class TickSchedule:
    """Ticks groups through `tick(group)`, which returns the monotonic time of the group's next timer.

    A group that rests holds no timer and costs nothing (ARCHITECTURE.md: Idle partitions cost nothing).
    """

    def __init__(self, clock: Clock, tick: Callable[[GroupId], float | None]) -> None:
        self._clock = clock
        self._tick = tick
        self._due: dict[GroupId, None] = {}  # in order: the same events give the same ticks
        self._turning = False
        self._timers: dict[GroupId, tuple[float, Timer]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def wake(self, group: GroupId) -> None:
        """Tick this group after all events of this turn of the loop."""
        self._due[group] = None
        if not self._turning and not self._stopped:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        if self._stopped:
            return
        due, self._due = self._due, {}
        for group in due:
            self._arm(group, self._tick(group))

    def _arm(self, group: GroupId, deadline: float | None) -> None:
        armed = self._timers.get(group)
        if armed is not None:
            if armed[0] == deadline:
                return
            armed[1].cancel()
            del self._timers[group]
        if deadline is None or deadline == NEVER:
            return
        delay_s = max(0.0, deadline - self._clock.monotonic())
        self._timers[group] = (deadline, self._clock.call_later(delay_s, lambda: self._fire(group)))

    def _fire(self, group: GroupId) -> None:
        self._timers.pop(group, None)
        self.wake(group)

    def forget(self, group: GroupId) -> None:
        """Forget a group that is closed."""
        self._due.pop(group, None)
        self._arm(group, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` beside the loop's events. It is cancelled at `stop`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def sleep(self, delay_s: float) -> None:
        """Sleep for `delay_s` seconds of the broker's clock. Only coroutines that were spawned here may call it."""
        await self._clock.sleep(delay_s)

    def stop(self) -> None:
        self._stopped = True
        for group in list(self._timers):
            self._arm(group, None)
        for task in self._tasks:
            task.cancel()
