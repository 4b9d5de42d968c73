"""The writer job's chores: what becomes of them when the folder is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.log.values import faulty, open_store, run
from tinymq.errors import Closed
from tinymq.log import InlineRunner

T = TypeVar("T")


class Hangs(InlineRunner):
    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()

    async def run(self, call: Callable[[], T]) -> T:
        await self.free.wait()
        return call()


def test_a_folder_is_closed_although_somebody_who_waited_for_its_disk_is_gone() -> None:
    files = faulty()

    async def body() -> None:
        runner = Hangs()
        store = await open_store(files, runner=runner)
        runner.free.clear()
        waits = []
        for _ in range(3):
            waits.append(asyncio.ensure_future(store.writer.alone(lambda: "done")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        waits[1].cancel()
        closing = asyncio.ensure_future(store.abandon())
        await asyncio.sleep(0)
        runner.free.set()
        await closing
        assert await waits[0] == "done"
        with pytest.raises(Closed):
            await waits[2]

    run(body())
