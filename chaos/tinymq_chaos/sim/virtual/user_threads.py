"""Threads of applications in virtual time: real threads, of which one at most runs, and never beside the loop.

The loop resumes a thread, and waits until the thread parks: at a wait of the synchronous client, or at a point where
another thread could run, as the seed draws it. A parked thread is resumed by a callback of the loop, a drawn time after
it was woken. So the seed determines the whole schedule, as in the schedulers of loom and shuttle for Rust.

A thread parks only while it holds no lock (`SteppedLock`). So the loop, which cannot wait, never finds a lock taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tinymq_chaos.sim.virtual.event_loop import VirtualLoop

T = TypeVar("T")

SWITCH = 0.2  # how often a thread is interrupted where it could be
LATE_S = 0.000_2  # most virtual seconds from its wake-up until a thread runs


class ThreadEnded(BaseException):
    """The run is over, and the thread with it."""


class UserThread:
    """One thread. It does one piece of work after another."""

    def __init__(self, threads: UserThreads, number: int) -> None:
        self.waits = 0  # so far, in `until`
        self.locks = 0  # that it holds
        self._threads = threads
        self._work: Callable[[], None] | None = None  # None: it waits for work
        self._due = False  # a callback will resume it
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=f"user thread {number}", daemon=True)
        self._thread.start()

    def begin(self, work: Callable[[], None]) -> None:
        """Do `work`, which raises nothing, soon."""
        assert self._work is None, "one work at a time"
        self._work = work
        self.wake()

    def wake(self) -> None:
        """Resume the thread soon. Several calls are one until it runs."""
        if not self._due:
            self._due = True
            late_s = self._threads.rng.uniform(0.0, LATE_S)
            self._threads.loop.call_later(late_s, self.resume, context=contextvars.Context())

    def resume(self) -> None:
        """Let the thread run until it parks. Called by the loop."""
        self._due = False
        if self._work is not None:
            self._threads.running = self
            self._go.release()
            self._back.acquire()
            self._threads.running = None

    def until(self, holds: Callable[[], object], timeout_s: float | None = None) -> bool:
        """Wait until `holds`. The code that makes it true wakes the thread. False: not within `timeout_s`."""
        self.waits += 1
        loop = self._threads.loop
        end_s = None if timeout_s is None else loop.time() + timeout_s
        timer = None if end_s is None else loop.call_at(end_s, self.wake)
        try:
            while not holds():
                if end_s is not None and loop.time() >= end_s:
                    return False
                self._park()
            return True
        finally:
            if timer is not None:
                timer.cancel()

    def step(self) -> None:
        """Let the loop and other threads run here, now and then."""
        if not self.locks and not self._threads.over and self._threads.rng.random() < SWITCH:
            self._threads.switches += 1
            self.wake()
            self._park()

    def _park(self) -> None:
        assert not self.locks, "it would keep a lock that the loop may need"
        if self._threads.over:
            raise ThreadEnded
        self._back.release()
        self._go.acquire()
        if self._threads.over:
            raise ThreadEnded

    def _run(self) -> None:
        while True:
            self._go.acquire()
            if self._work is not None and not self._threads.over:
                with contextlib.suppress(ThreadEnded):
                    self._work()
                self._work = None
            self._back.release()
            if self._threads.over:
                return

    def end(self) -> None:
        """End the thread, wherever it is. `UserThreads.over` is set."""
        self._go.release()
        self._thread.join()


class UserThreads:
    """All threads of a world."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.running: UserThread | None = None  # None: the loop runs
        self.over = False
        self.switches = 0  # interruptions so far
        self._threads: list[UserThread] = []
        self._free: list[UserThread] = []

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns in a thread, or raise what it raises. If the caller is cancelled, the work goes on
        and its result is lost."""
        answer: asyncio.Future[T] = self.loop.create_future()
        if not self._free:
            self._threads.append(UserThread(self, len(self._threads) + 1))
            self._free.append(self._threads[-1])
        thread = self._free.pop()

        def tell(give: Callable[..., None], value: Any) -> None:
            self._free.append(thread)
            if not answer.done():
                give(value)

        def done() -> None:
            try:
                value = work()
            except ThreadEnded:
                raise
            except BaseException as error:
                self.loop.call_soon_threadsafe(tell, answer.set_exception, error)
            else:
                self.loop.call_soon_threadsafe(tell, answer.set_result, value)

        thread.begin(done)
        return await answer

    def end(self) -> None:
        """End all threads. The loop runs no more."""
        self.over = True
        for thread in self._threads:
            thread.end()


class SteppedLock:
    """A lock of the synchronous client. A thread may be interrupted before it takes the lock, and after it has released
    it."""

    def __init__(self, threads: UserThreads) -> None:
        self._threads = threads
        self._lock = threading.Lock()

    def __enter__(self) -> bool:
        if (thread := self._threads.running) is not None:
            thread.step()
            thread.locks += 1
        assert self._lock.acquire(blocking=False), "a parked thread holds a lock"
        return True

    def __exit__(self, *error: object) -> None:
        self._lock.release()
        if (thread := self._threads.running) is not None:
            thread.locks -= 1
            thread.step()


class Signal:
    """A signal from the loop or another thread to the thread that waits for it. In the product it is a taken lock."""

    def __init__(self, threads: UserThreads) -> None:
        self._thread = threads.running
        self._given = False

    def release(self) -> None:
        self._given = True
        if self._thread is not None:
            self._thread.wake()

    def wait(self, timeout_s: float | None) -> bool:
        assert self._thread is not None, "the loop would wait for itself"
        return self._thread.until(lambda: self._given, timeout_s)
