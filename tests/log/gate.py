"""Disk work that a test can hold up, and the reports of logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from tinymq.base.errors import TinymqError
from tinymq.log import Log

T = TypeVar("T")


class GateRunner:
    """Runs each call only when the test permits it, while the loop keeps running."""

    def __init__(self) -> None:
        self.open = True
        self.waiting = 0
        self._gate = asyncio.Event()

    async def run(self, call: Callable[[], T]) -> T:
        self.waiting += 1
        while not self.open:
            await self._gate.wait()
        self.waiting -= 1
        return call()

    async def run_short(self, call: Callable[[], T]) -> T:
        return await self.run(call)

    def close(self) -> None:
        self.open = False
        self._gate.clear()

    def let_go(self) -> None:
        self.open = True
        self._gate.set()


async def until(condition: Callable[[], Any]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


class Reports:
    def __init__(self, *logs: Log) -> None:
        self.failed: list[tuple[Log, TinymqError]] = []
        for log in logs:
            log.on_failed = lambda error, log=log: self.failed.append((log, error))  # type: ignore[misc]
