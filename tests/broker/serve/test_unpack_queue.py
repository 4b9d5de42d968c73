"""The number of concurrent jobs is bounded, even when their waiters are cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tinymq.base.errors import InvalidBatch
from tinymq.broker.serve.unpack_queue import JOBS_MAX, UnpackQueue
from tinymq.log.files.runner import ThreadRunner


class Jobs:
    """Jobs that run until the test releases them."""

    def __init__(self) -> None:
        self.running = self.most = self.ended = 0
        self.go = threading.Event()
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        assert self.go.wait(10)
        with self._lock:
            self.running -= 1
            self.ended += 1
            return self.ended


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.001)


def test_jobs_of_cancelled_callers_count_until_they_end() -> None:
    async def main() -> None:
        with ThreadPoolExecutor(8) as executor:
            queue, jobs = UnpackQueue(ThreadRunner(executor)), Jobs()
            first = [asyncio.ensure_future(queue.run(jobs)) for _ in range(JOBS_MAX)]
            await until(lambda: jobs.running == JOBS_MAX)
            for each in first:
                each.cancel()
            await asyncio.gather(*first, return_exceptions=True)
            later: list[asyncio.Future[Any]] = [asyncio.ensure_future(queue.run(jobs)) for _ in range(20)]
            later[3].cancel()
            await asyncio.sleep(0)
            assert jobs.running == JOBS_MAX
            jobs.go.set()
            answers = await asyncio.gather(*later, return_exceptions=True)
            assert isinstance(answers.pop(3), asyncio.CancelledError)
            assert len(set(answers)) == len(answers) == 19
            # The runner has a thread of its own, which the executor does not wait for. 21: the cancelled one never ran.
            await until(lambda: jobs.ended == JOBS_MAX + 19)
        assert (jobs.ended, jobs.most) == (JOBS_MAX + 19, JOBS_MAX)

    asyncio.run(main())


def test_the_error_of_a_job_reaches_its_caller() -> None:
    def fails() -> None:
        raise InvalidBatch("no")

    async def main() -> None:
        with ThreadPoolExecutor(8) as executor:
            queue = UnpackQueue(ThreadRunner(executor))
            for _ in range(2 * JOBS_MAX):
                with pytest.raises(InvalidBatch):
                    await queue.run(fails)

    asyncio.run(main())
