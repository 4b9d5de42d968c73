"""Runners of blocking disk work: in threads for real, and inline in tests and the simulator."""

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
DRAIN_LOOK_S = 0.002
LINGER_S = 1.0  # the own thread ends after so long without a call
SHORT_S_MAX = 0.000_6  # if short calls take longer on average they go to a thread: the loop has other work
SHORT_CALLS = 16  # of the moving average: a call of 10 ms sends the next few to a thread, one of 1 s about 70


class Runner(Protocol):
    """The one crossing from the loop to blocking work and back."""

    async def run(self, call: Callable[[], T]) -> T:
        """Run `call` and return what it returns, or raise what it raises.

        Calls may run side by side. Each one may touch only its own values, or values that nothing else touches
        meanwhile.
        """
        ...

    async def run_short(self, call: Callable[[], T]) -> T:
        """Run a call that should take less time than the way to a thread and back: the write and sync of one small
        entry. It may run on the loop itself if such calls have been quick lately."""
        ...


class ThreadRunner:
    """Runs calls in threads: in one of its own, which stays awake for a while, and in an executor's while the own
    thread is busy. A lone call costs 35 µs there and back in the own thread, and 70 µs through an executor."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._busy = False  # the own thread has a call; set on the loop, and cleared by the thread
        self._awake = False  # the own thread runs
        self._short_s = 0.0  # moving average of the duration of short calls
        self._under_way = 0  # calls in threads, those whose caller was cancelled among them

    async def run(self, call: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        with self._lock:
            own, self._busy = not self._busy, True
            self._under_way += own
            if own and not self._awake:
                self._awake = True
                threading.Thread(target=self._serve, name="tinymq-disk", daemon=True).start()
        if not own:
            return await loop.run_in_executor(self._executor, partial(self._in_pool, call))
        future: asyncio.Future[T] = loop.create_future()

        def body() -> None:
            try:
                result = self._counted(call)
            except BaseException as error:
                self._busy = False
                _post(loop, future, partial(future.set_exception, error))
            else:
                self._busy = False
                _post(loop, future, partial(future.set_result, result))

        self._calls.put(body)
        return await future

    async def drain(self, timeout_s: float) -> bool:
        """Wait until no thread is at work any more: a call goes on when the task that waited for it was cancelled.

        False: a call still runs after `timeout_s`, such as one on a disk that hangs.
        """
        deadline_s = time.monotonic() + timeout_s
        while self._under_way:
            if time.monotonic() > deadline_s:
                return False
            await asyncio.sleep(DRAIN_LOOK_S)
        return True

    def _in_pool(self, call: Callable[[], T]) -> T:
        with self._lock:
            self._under_way += 1
        return self._counted(call)

    def _counted(self, call: Callable[[], T]) -> T:
        try:
            return call()
        finally:
            with self._lock:
                self._under_way -= 1

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
                del body  # frees what it refers to, before the thread waits again


def _post(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], settle: Callable[[], None]) -> None:
    """Settle a future of `loop` from another thread. If the loop is closed, nobody waits for it any more."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: None if future.done() else settle())


class InlineRunner:
    """Runs calls inline: disk work takes no time, and its order can be replayed."""

    async def run(self, call: Callable[[], T]) -> T:
        return call()

    async def run_short(self, call: Callable[[], T]) -> T:
        return await self.run(call)
