"""Calls that wait until something of a name changes: a command on it is applied, or this broker's part changes."""

from __future__ import annotations

import asyncio

from tinymq.base.clock import Clock, within
from tinymq.base.errors import DeadlineExceeded


class Changes:
    """The calls that wait, by name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}  # in the order in which they came

    async def wait(self, name: str, timeout_s: float) -> None:
        """Wait for the next `wake` of this name. Raises DeadlineExceeded."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(name, {})
        waiting[changed] = None
        try:
            await within(self._clock, changed, max(0.0, timeout_s), DeadlineExceeded("nothing changed in time"))
        finally:
            waiting.pop(changed, None)
            if not waiting and self._waiting.get(name) is waiting:
                del self._waiting[name]

    def wake(self, name: str) -> None:
        for each in self._waiting.pop(name, ()):
            if not each.done():
                each.set_result(None)

    def wake_all(self) -> None:
        for name in list(self._waiting):
            self.wake(name)
