"""Calls that want the disk to themselves, between two rounds of the writer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tinymq.base.errors import TinymqError
from tinymq.log.files.runner import Runner


class ExclusiveJobs:
    """In the order in which they were asked for. On the loop; the calls are made in the executor."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._waiting: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """What it returns, or raises, once it was made."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, future))
        return future

    async def run(self, on_error: Callable[[], None]) -> None:
        """Make all that were asked for before this. `on_error`: one has raised, and nobody was told yet."""
        waiting, self._waiting = self._waiting, []
        for call, future in waiting:
            try:
                result = await self._runner.run(call)
            except BaseException as error:  # whatever it is, it belongs to whoever waits, if anybody still does
                on_error()
                if not future.done():
                    future.set_exception(error)
                if not isinstance(error, Exception):
                    raise
            else:
                if not future.done():
                    future.set_result(result)

    def refuse(self, error: TinymqError) -> None:
        """None of those that wait will be made."""
        for _, future in self._waiting:
            if not future.done():  # else whoever asked was cancelled
                future.set_exception(error)
        self._waiting.clear()
