"""The tasks of a consumer that run until it ends. An error that ends one of them ends the consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine


class Background:
    """Tasks that nobody awaits."""

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
