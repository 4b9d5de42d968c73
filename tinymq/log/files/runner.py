"""Where blocking disk work runs: off the loop for real, inline in tests and the simulator."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

T = TypeVar("T")
LINGER_S = 1.0  # a thread without calls ends after this
SHORT_S_MAX = 0.000_6  # short calls that take longer on average go to a thread: the loop has others to serve
SHORT_CALLS = 16  # that the average looks back on: one of 10 ms sends the next few to a thread, one of 1 s some 70


class Runner(Protocol):
    """The one crossing from the loop to blocking work and back."""

    async def run(self, call: Callable[[], T]) -> T:
        """Make `call` and return what it returns, or raise what it raises. Calls may run side by side: each must
        touch only values that it was given, or that nothing else touches meanwhile."""
        ...

    async def run_short(self, call: Callable[[], T]) -> T:
        """The same for a call that should take less time than handing it to a thread and back does: the write and
        sync of one small entry. It may be made on the loop itself, if such calls have been quick lately."""
        ...


class ThreadRunner:
    """Runs calls in threads: the first in one of its own, which stays awake for a while, and what comes while that
    one is busy in an executor's. A call alone costs 35 µs there and back this way, 70 µs through an executor."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._busy = False  # the own thread has a call
        self._awake = False  # the own thread is there
        self._short_s = 0.0  # what a short call takes: a moving average

    async def run(self, call: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        with self._lock:
            own, self._busy = not self._busy, True
            if own and not self._awake:
                self._awake = True
                threading.Thread(target=self._serve, name="tinymq-disk", daemon=True).start()
        if not own:
            return await loop.run_in_executor(self._executor, call)
        future: asyncio.Future[T] = loop.create_future()

        def body() -> None:
            try:
                result = call()
            except BaseException as error:
                self._busy = False
                _post(loop, future, partial(future.set_exception, error))
            else:
                self._busy = False
                _post(loop, future, partial(future.set_result, result))

        self._calls.put(body)
        return await future

    async def run_short(self, call: Callable[[], T]) -> T:
        if self._short_s < SHORT_S_MAX:
            return self._timed(call)
        return await self.run(lambda: self._timed(call))

    def _timed(self, call: Callable[[], T]) -> T:
        started_s = time.monotonic()
        try:
            return call()
        finally:
            self._short_s += (time.monotonic() - started_s - self._short_s) / SHORT_CALLS

    def _serve(self) -> None:
        while True:
            try:
                body = self._calls.get(timeout=LINGER_S)
            except Empty:
                with self._lock:
                    if not self._busy:
                        self._awake = False
                        return
            else:
                body()
                del body  # and what it holds, before waiting again


def _post(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], settle: Callable[[], None]) -> None:
    """Settle a future of `loop` from another thread. Nobody waits any more when the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: None if future.done() else settle())


class InlineRunner:
    """Runs calls where they are made: disk work takes no time, and its order is replayable."""

    async def run(self, call: Callable[[], T]) -> T:
        return call()

    async def run_short(self, call: Callable[[], T]) -> T:
        return await self.run(call)
