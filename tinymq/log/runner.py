"""Where blocking disk work runs: off the loop for real, inline in tests and the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Runner(Protocol):
    """The one crossing from the loop to blocking work and back."""

    async def run(self, call: Callable[[], T]) -> T:
        """Make `call` and return what it returns, or raise what it raises. Calls may run side by side: each must
        touch only values that it was given, or that nothing else touches meanwhile."""
        ...


class ThreadRunner:
    """Runs calls in an executor's threads."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


class InlineRunner:
    """Runs calls where they are made: disk work takes no time, and its order is replayable."""

    async def run(self, call: Callable[[], T]) -> T:
        return call()
