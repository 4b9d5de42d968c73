"""Validates and unpacks heavy batches away from the loop: a bounded number at a time, first come, first served.

The log's writer uses the same threads. Without the bound, clients that send many heavy batches would delay its syncs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from tinymq.log.files.runner import Runner

T = TypeVar("T")
JOBS_MAX = 2  # at once; each takes at most batch_uncompressed_bytes_max of memory


class BlockingRunner(Protocol):
    """Runs calls that would block the loop: an UnpackQueue, or any Runner."""

    async def run(self, call: Callable[[], T]) -> T: ...


class UnpackQueue:
    """The queue of one broker."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._free = asyncio.Semaphore(JOBS_MAX)  # first come, first served

    async def run(self, call: Callable[[], T]) -> T:
        """Make `call` in a thread and return what it returns, or raise what it raises.

        A cancelled caller stops waiting, but its call occupies its slot until the thread has finished.
        """
        await self._free.acquire()
        job = asyncio.ensure_future(self._runner.run(call))
        job.add_done_callback(self._ended)
        return await asyncio.shield(job)

    def _ended(self, job: asyncio.Future[T]) -> None:
        self._free.release()
        if not job.cancelled():
            job.exception()  # retrieve the error, so that asyncio does not report it when the caller has gone
