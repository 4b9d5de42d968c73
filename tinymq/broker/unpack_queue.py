"""Batches that take long to validate or unpack, away from the loop: a bounded number at a time, in the order of asking.

The log's writer uses the same threads: without the bound, clients that send many such batches keep it from syncing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from tinymq.log.runner import Runner

T = TypeVar("T")
JOBS_MAX = 2  # at once; each takes at most batch_uncompressed_bytes_max of memory


class Offload(Protocol):
    """Runs what would keep the loop busy: an UnpackQueue, or any Runner."""

    async def run(self, call: Callable[[], T]) -> T: ...


class UnpackQueue:
    """Of one broker."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._free = asyncio.Semaphore(JOBS_MAX)  # first come, first served

    async def run(self, call: Callable[[], T]) -> T:
        """Make `call` in a thread and return what it returns, or raise what it raises.

        A caller that is cancelled does not wait any longer; its call keeps its place until the thread is done with it.
        """
        await self._free.acquire()
        job = asyncio.ensure_future(self._runner.run(call))
        job.add_done_callback(self._ended)
        return await asyncio.shield(job)

    def _ended(self, job: asyncio.Future[T]) -> None:
        self._free.release()
        if not job.cancelled():
            job.exception()  # the caller may have gone
