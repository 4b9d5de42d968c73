"""Tasks and timers of a client that run in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Generic, TypeVar

from tinymq.base.clock import Clock, Timer

Key = TypeVar("Key", bound=Hashable)


class BackgroundTasks:
    """Background tasks by name, each at most once at a time."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def run(self, name: str, start: Callable[[], Coroutine[None, None, None]]) -> None:
        """Start a task, unless the one of this name is still running."""
        if not self._closed and name not in self._running:
            task = self._running[name] = asyncio.create_task(start())
            task.add_done_callback(lambda _: self._running.pop(name, None))

    def close(self) -> None:
        self._closed = True
        for task in list(self._running.values()):
            task.cancel()


class Retries(Generic[Key]):
    """One timer per key. When a timer ends, `due` is called with its key. A producer's keys are its send queues."""

    def __init__(self, clock: Clock, due: Callable[[Key], None]) -> None:
        self._clock = clock
        self._due = due
        self._timers: dict[Key, Timer] = {}

    def set(self, key: Key, delay_s: float) -> None:
        """Call `due` in `delay_s` seconds. This replaces the time that was set before."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

        def again() -> None:
            self._timers.pop(key, None)
            self._due(key)

        self._timers[key] = self._clock.call_later(delay_s, again)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()


class Background:
    """Tasks of a consumer that run until it ends. An error that ends one of them ends the consumer."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        """`failed` gets the error of a task that raised."""
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Run a task until it ends, or until `close`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._failed(error)
