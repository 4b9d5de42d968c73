"""Calls one subscription's handler: `concurrency` loops take a record each, and handle it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tinymq.base.clock import Clock
from tinymq.client.serve.health import HandlerHealth, is_live
from tinymq.client.serve.source import Record, Source
from tinymq.client.serve.subscription import Subscription
from tinymq.client.serve.verdicts import Reject, Retry

LOG = logging.getLogger("tinymq.client")

ERROR_LENGTH_MAX = 300  # of the line that `health` shows


class HandlerRunner:
    """One subscription while it is served. All calls on the loop, except `health`."""

    def __init__(self, subscription: Subscription, source: Source, clock: Clock, ended: Callable[[], None]) -> None:
        """`ended` is called when it can handle no further record; `failure` says why."""
        self.failure: BaseException | None = None
        self._subscription = subscription
        self._source = source
        self._clock = clock
        self._ended = ended
        self._running: dict[int, float] = {}  # by the number of the handler loop: since when
        self._tasks: list[asyncio.Task[None]] = []
        self._state = "joining"
        self._attached_s = clock.monotonic()
        self._handled = 0
        self._errors = 0
        self._last_error = ""
        self._pool: ThreadPoolExecutor | None = None

    async def start(self) -> None:
        """Join the group and begin to handle. Raises the error if that fails."""
        await self._source.open()
        if not self._subscription.asynchronous:
            count = self._subscription.concurrency
            self._pool = ThreadPoolExecutor(count, thread_name_prefix=f"tinymq-{self._subscription.group}")
        self._state = "handling"
        self._tasks = [asyncio.create_task(self._handle_all(n)) for n in range(self._subscription.concurrency)]

    def stop(self) -> None:
        """Start no further handler."""
        if self._state != "failed":
            self._state = "stopped"
        self._source.stop()

    async def drain(self) -> None:
        """Wait for the handlers that have begun."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Cancel the handlers that still run, and leave the group. A thread's handler cannot be cancelled: it goes on,
        but its record counts as not done."""
        if self._running:
            LOG.warning("group %s: %d handlers did not end in time", self._subscription.group, len(self._running))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        await self._source.close()

    def tick(self) -> None:
        """Note whether the source is alive."""
        if self._source.alive:
            self._attached_s = self._clock.monotonic()

    def health(self) -> HandlerHealth:
        """Callable from any thread."""
        now_s = self._clock.monotonic()
        since_s = list(self._running.values())
        detached = self._state == "handling" and not self._source.alive
        state = "detached" if detached else self._state
        return HandlerHealth(
            handler=self._subscription.name,
            group=self._subscription.group,
            live=is_live(state, now_s - self._attached_s if detached or state == "joining" else 0.0),
            state=state,
            running=len(since_s),
            oldest_s=now_s - min(since_s) if since_s else 0.0,
            handled=self._handled,
            errors=self._errors,
            last_error=self._last_error,
        )

    async def _handle_all(self, number: int) -> None:
        try:
            while (record := await self._source.take()) is not None:
                self._running[number] = self._clock.monotonic()
                await self._handle(record)
                del self._running[number]
                # Neither of the calls above has to wait. Without this, handlers that never wait would starve the loop.
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._running.pop(number, None)
            if self.failure is None:
                self.failure, self._state = error, "failed"
            self._ended()

    async def _handle(self, record: Record) -> None:
        error = await self._call(record)
        self._handled += 1
        if error is None:
            self._source.done(record)
            return
        self._errors += 1
        self._last_error = f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX].replace("\n", " ")
        place = f"{record.topic}/{record.partition} at offset {record.offset}"
        if not isinstance(error, Exception):  # SystemExit and KeyboardInterrupt end the serving
            LOG.error("handler %s raised %s for %s", self._subscription.name, type(error).__name__, place)
            raise error
        outcome = "serving ends"
        try:
            outcome = self._source.failed(record, error)
        finally:
            if isinstance(error, Retry | Reject):  # the handler says what becomes of its record
                LOG.warning("handler %s, %s: %s: %s", self._subscription.name, place, error, outcome)
            else:
                LOG.error("handler %s failed for %s: %s", self._subscription.name, place, outcome, exc_info=error)

    async def _call(self, record: Record) -> BaseException | None:
        """Return what the handler raised."""
        handler = self._subscription.handler
        if self._pool is not None:
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(_outcome, handler, record))
        try:
            await handler(record)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return RuntimeError(f"the handler's own call was cancelled: {error}")
        except BaseException as error:
            return error
        return None


def _outcome(handler: Callable[[Record], object], record: Record) -> BaseException | None:
    """Call a handler in a thread. Returns the exception that the handler raised: SystemExit in a future would end the
    client's loop."""
    try:
        handler(record)
    except BaseException as error:
        return error
    return None
