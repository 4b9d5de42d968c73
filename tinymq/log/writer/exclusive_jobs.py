"""Calls that need the disk to themselves, between two sync batches of the writer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tinymq.base.errors import TinymqError
from tinymq.log.files.runner import Runner


class ExclusiveJobs:
    """A queue of calls, first in, first out. It lives on the loop; the calls run in the executor."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._queued: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []

    def __bool__(self) -> bool:
        return bool(self._queued)

    def add(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Queue `call`. The future ends with what it returns or raises."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queued.append((call, future))
        return future

    async def run(self, on_error: Callable[[], None]) -> None:
        """Run every call that was queued before this one. `on_error` is called after a call has raised, and before its
        caller is told."""
        queued, self._queued = self._queued, []
        for call, future in queued:
            try:
                result = await self._runner.run(call)
            except BaseException as error:  # any error belongs to the caller, if it still waits
                on_error()
                if not future.done():
                    future.set_exception(error)
                if not isinstance(error, Exception):
                    raise
            else:
                if not future.done():
                    future.set_result(result)

    def refuse(self, error: TinymqError) -> None:
        """End every queued call with `error`, without running it."""
        for _, future in self._queued:
            if not future.done():  # the caller may have been cancelled
                future.set_exception(error)
        self._queued.clear()
