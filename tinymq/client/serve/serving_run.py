"""Serves a client's subscriptions, until it is stopped or one of them fails: then it finishes what is started."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from tinymq.base.clock import Clock
from tinymq.base.errors import TinymqError
from tinymq.client.serve.health import TICK_S, Health, judge
from tinymq.client.serve.runner import HandlerRunner
from tinymq.client.serve.source import Source
from tinymq.client.serve.subscription import Subscription

LOG = logging.getLogger("tinymq.client")

LEAVING_S = 10.0  # to save what is done and to leave the groups, after the handlers have ended


class ServingRun:
    """One run of all subscriptions. All calls on the loop, except `health`."""

    def __init__(
        self, subscriptions: Iterable[Subscription], source_of: Callable[[Subscription], Source], clock: Clock
    ) -> None:
        self._clock = clock
        self._ending = asyncio.Event()
        self._giving_up = asyncio.Event()
        self._ticked_s = clock.monotonic()
        self._runners = [HandlerRunner(each, source_of(each), clock, self.stop) for each in subscriptions]

    def stop(self) -> None:
        """Start no further handler, finish those that have begun, and end `run`."""
        if not self._ending.is_set():
            self._ending.set()
            for runner in self._runners:
                runner.stop()

    def give_up(self) -> None:
        """As `stop`, but do not wait for the handlers."""
        self.stop()
        self._giving_up.set()

    def health(self) -> Health:
        """Callable from any thread."""
        handlers = tuple(runner.health() for runner in self._runners)
        return judge(handlers, self._clock.monotonic() - self._ticked_s)

    async def run(self, stop_timeout_s: float) -> None:
        """Handle records until `stop`. Then wait up to `stop_timeout_s` for the handlers that have begun.

        A cancellation counts as `stop`, and is raised when all is done. Raises the error that ended a subscription.
        """
        ticking = asyncio.create_task(self._tick())
        cancelled: asyncio.CancelledError | None = None
        try:
            try:
                await self._start_all()
                await self._ending.wait()
            except asyncio.CancelledError as error:  # Ctrl-C under asyncio.run
                cancelled = error
            await self._end(stop_timeout_s)
        finally:  # also when a subscription does not start
            ticking.cancel()
        if cancelled is not None:
            raise cancelled
        for runner in self._runners:
            if runner.failure is not None:
                raise runner.failure

    async def _start_all(self) -> None:
        starts = [asyncio.create_task(runner.start()) for runner in self._runners]
        ending = asyncio.create_task(self._ending.wait())
        try:
            while (waiting := {each for each in starts if not each.done()}) and not self._ending.is_set():
                await asyncio.wait({*waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
                for start in starts:
                    if start.done():
                        start.result()
        except TinymqError:
            await self._end(0.0)
            raise
        finally:
            for task in (*starts, ending):
                task.cancel()
            await asyncio.gather(*starts, ending, return_exceptions=True)

    async def _end(self, stop_timeout_s: float) -> None:
        self.stop()
        drained = asyncio.create_task(self._drain())
        giving_up = asyncio.create_task(self._giving_up.wait())
        waits: list[asyncio.Task[Any]] = [drained, giving_up]
        try:
            await asyncio.wait(waits, timeout=stop_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            giving_up.cancel()
        for runner in self._runners:
            try:
                async with asyncio.timeout(LEAVING_S):
                    await runner.close()
            except (TinymqError, TimeoutError) as error:  # what is not saved is delivered again
                LOG.warning("a group was not left cleanly: %s", error)

    async def _drain(self) -> None:
        for runner in self._runners:
            await runner.drain()

    async def _tick(self) -> None:
        while True:
            self._ticked_s = self._clock.monotonic()
            for runner in self._runners:
                runner.tick()
            await asyncio.sleep(TICK_S)
