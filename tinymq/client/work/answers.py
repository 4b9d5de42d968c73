"""The answers that an application waits for: of one ack by `ack(wait=True)`, and of all settlements by `flush`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable

from tinymq.base.errors import OutcomeUnknown, TinymqError
from tinymq.client.common.argument_checks import check_wait
from tinymq.client.common.traces import untraced
from tinymq.client.work.job import Answer, Job


class Answers:
    """The answers and losses of one worker's jobs. All calls on the client's loop, except `wait`."""

    def __init__(self, check: Callable[[], None], timeout_s: float) -> None:
        """`check` raises what has ended the worker."""
        self.loop: asyncio.AbstractEventLoop | None = None  # the client's; set before there is a job
        self._check = check
        self._timeout_s = timeout_s
        self._lost = 0  # jobs that neither `flush` nor `ack(wait=True)` has reported
        self._flushes = 0

    def lost(self, job: Job) -> None:
        """Count a job that another worker may have."""
        self._lost += 1
        job._counted = self._flushes

    def take_lost(self) -> int:
        """The number of jobs that were lost since the last call, without those that `wait` has raised."""
        lost, self._lost = self._lost, 0
        self._flushes += 1
        return lost

    def wait(self, job: Job, timeout_s: float | None) -> Awaitable[None]:
        """Wait for the answer to the ack of a job: in the calling thread, or on the client's loop by awaiting the
        result. Raises LeaseLost, OutcomeUnknown, and what ended the worker."""
        check_wait(timeout_s)
        answered = self._answered(job, self._timeout_s if timeout_s is None else timeout_s)
        try:
            if asyncio.get_running_loop() is self.loop:
                return answered
        except RuntimeError:  # no loop runs in this thread
            pass
        assert self.loop is not None, "there are jobs"
        asyncio.run_coroutine_threadsafe(answered, self.loop).result()
        return _Nothing()

    async def _answered(self, job: Job, timeout_s: float) -> None:
        if job._partition_work.holds(job):
            self._check()
            answer = job._answer = job._answer or Answer()
            try:
                async with asyncio.timeout(timeout_s):
                    await answer.arrived.wait()
            except TimeoutError:
                after = f"after {timeout_s:g} s; the worker goes on sending it"
                raise OutcomeUnknown(f"the ack of {job!r} has no answer {after}") from None
            finally:
                job._answer = None
            if answer.error is not None and job._loss is None:
                raise untraced(answer.error)
        if job._loss is not None:
            if job._counted == self._flushes:  # `flush` need not raise it, too
                job._counted = -1
                self._lost -= 1
            raise job._loss

    def give_up(self, jobs: Iterable[Job], error: TinymqError) -> None:
        """End the waits: no answer comes any more."""
        for job in jobs:
            if job._answer is not None:
                job._answer.give(error)


class _Nothing:
    """An awaitable for a thread that has waited already."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()
