"""Background work of the writer: what happens to it when the data directory is closed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.fakes.manual_clock import ManualClock
from tests.log.values import GROUP, LIMITS, OTHER, append, faulty, first_entry, open_store, run
from tinymq.base.errors import Closed
from tinymq.log import InlineRunner, Store

T = TypeVar("T")


class Hangs(InlineRunner):
    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()

    async def run(self, call: Callable[[], T]) -> T:
        await self.free.wait()
        return call()


class Takes(InlineRunner):
    """Each call takes its time."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    async def run(self, call: Callable[[], T]) -> T:
        self._clock.advance(self._seconds)
        return call()


def test_a_data_directory_closes_although_a_waiting_caller_is_cancelled() -> None:
    files = faulty()

    async def body() -> None:
        runner = Hangs()
        store = await open_store(files, runner=runner)
        runner.free.clear()
        waits = []
        for _ in range(3):
            waits.append(asyncio.ensure_future(store.writer.run_exclusive(lambda: "done")))
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


def test_each_sync_batch_is_reported_with_its_time_and_logs() -> None:
    files = faulty()

    async def body() -> None:
        clock = ManualClock()
        runner = Takes(clock, 0.25)
        store = await Store.open(files, runner, clock, broker_id=1, limits=LIMITS, rng=random.Random(1), mark_every_s=0)
        logs = [(await store.open_log(group, first_entry())).log for group in (GROUP, OTHER)]
        await store.writer.drain()
        told: list[tuple[float, int]] = []
        store.writer.on_synced = lambda took_s, count: told.append((took_s, count))
        for log in logs:
            append(log, 2)
        await store.writer.drain()
        append(logs[0], 1)
        await store.writer.drain()
        assert told == [(pytest.approx(0.25), 2), (pytest.approx(0.25), 1)]
        files.fail_sync("*")
        append(logs[1], 1)
        await store.writer.drain()
        assert logs[1].failed is not None
        assert told[2:] == [(pytest.approx(0.25), 1)], "the failed sync took time as well"
        await store.abandon()

    run(body())
