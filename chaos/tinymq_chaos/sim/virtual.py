"""Virtual time: an event loop whose clock jumps to the next timer, and processes that can be paused and killed.

Nothing here knows of Raft. Same calls, same order, same times: what runs on it can be replayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tinymq.errors import TinymqError
from tinymq.testing.faulty_files import Crash, FaultyFiles

T = TypeVar("T")

SPINS_MAX = 200_000  # turns of the loop without time passing: something feeds itself
WALL_START_US = 1_700_000_000_000_000

_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Killed(Exception):
    """The process in which this was to run is gone."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs what is ready; when nothing is, it is at once the time of the next timer."""

    _scheduled: list[asyncio.TimerHandle]  # of BaseEventLoop: a heap by time

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._spins = 0
        self._selector = self  # BaseEventLoop asks it for file events, and to wait
        self._clock_resolution = 1e-9
        self.raised: list[str] = []  # by callbacks and tasks, out of anybody's reach
        self.set_exception_handler(self._note)
        self.set_task_factory(_make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self._now_s

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise AssertionError(f"t={self._now_s:.3f}: nothing is left to do, and somebody waits")
        if timeout > 0:
            self._now_s = max(self._now_s, self._scheduled[0].when())
            self._spins = 0
        self._spins += 1
        assert self._spins < SPINS_MAX, f"t={self._now_s:.3f}: the loop turns and turns, and no time passes"
        return []

    def _process_events(self, event_list: list[object]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        pass

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Crash | Killed):
            return
        self.raised.append(f"t={self._now_s:.3f} {context.get('message')}: {error!r}")


def _make_task(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:
    task = asyncio.Task(coro, loop=loop, **options)
    context = options.get("context")
    process = _process.get() if context is None else context.get(_process)
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(lambda done: process.tasks.pop(done, None))
    return task


class Process:
    """One run of one program: whatever happens in it passes through here, so that it can be stopped at any moment.

    A paused process does nothing; what fell due meanwhile happens when it goes on, in order. A killed one is never
    heard of again.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._held: deque[Callable[[], object]] | None = None  # None: it runs
        self._context = contextvars.copy_context()
        self._context.run(_process.set, self)

    @property
    def paused(self) -> bool:
        return self._held is not None

    def call(self, call: Callable[[], object]) -> None:
        """Make `call` in this process, now or when it goes on."""
        if not self.alive:
            return
        if self._held is not None:
            self._held.append(call)
        else:
            self._context.copy().run(call)

    def do(self, call: Callable[[], T]) -> T:
        """Make `call` in this process, and return what it returns. Raises Killed when it is gone."""
        if not self.alive:
            raise Killed(self.name)
        return self._context.copy().run(call)

    async def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run `coro` as a task of this process. Raises Killed when the process is killed before its end."""
        if not self.alive:
            coro.close()
            raise Killed(self.name)
        task = asyncio.get_running_loop().create_task(coro, context=self._context.copy())
        await asyncio.wait([task])
        if task.cancelled():
            raise Killed(self.name)
        return task.result()

    def pause(self) -> None:
        if self._held is None:
            self._held = deque()

    def resume(self) -> None:
        held, self._held = self._held, None
        for call in held or ():
            self.call(call)

    def kill(self) -> None:
        self.alive = False
        self._held = None
        for task in list(self.tasks):
            task.cancel()


class VirtualTimer:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call
        self.handle: asyncio.TimerHandle | None = None

    def fire(self) -> None:
        if self._call is not None:
            self._call()

    def cancel(self) -> None:
        self._call = None
        if self.handle is not None:
            self.handle.cancel()


class VirtualClock:
    """A process's sense of time: its own starting point, rate and wall clock. Without a process, the world's."""

    def __init__(
        self, loop: VirtualLoop, process: Process | None = None, start_s: float = 0.0, rate: float = 1.0
    ) -> None:
        self.wall_skew_us = 0  # may be moved at any time
        self._loop = loop
        self._process = process
        self._start_s = start_s
        self._rate = rate
        self.timers: list[tuple[float, VirtualTimer]] = []

    def monotonic(self) -> float:
        return self._start_s + self._loop.time() * self._rate

    def wall_us(self) -> int:
        return WALL_START_US + self.wall_skew_us + int(self._loop.time() * 1e6)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> VirtualTimer:
        timer = VirtualTimer(call)
        process = self._process
        fire = timer.fire if process is None else lambda: process.call(timer.fire)
        timer.handle = self._loop.call_later(max(0.0, delay_s) / self._rate, fire)
        return timer

    async def sleep(self, delay_s: float) -> None:
        woken: asyncio.Future[None] = self._loop.create_future()
        self.call_later(delay_s, lambda: _wake(woken))
        await woken


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


class Disk:
    """Blocking work of a process: it takes time, takes effect somewhere within, and dies with the process."""

    def __init__(self, loop: VirtualLoop, process: Process, files: FaultyFiles, rng: random.Random) -> None:
        self.delay_s = (0.000_05, 0.002)  # of each of the two halves: before the effect, and after it
        self.hung: asyncio.Future[None] | None = None  # while set, nothing comes to an end
        self._loop = loop
        self._process = process
        self._files = files
        self._rng = rng
        self._clock = VirtualClock(loop, process)
        self._begun: dict[int, Callable[[], Any]] = {}
        self._count = 0

    async def run(self, call: Callable[[], T]) -> T:
        self._count += 1
        number = self._count
        self._begun[number] = call
        await self._clock.sleep(self._rng.uniform(*self.delay_s))
        if self.hung is not None:
            await self.hung
        if not self._process.alive or number not in self._begun:
            raise asyncio.CancelledError
        del self._begun[number]
        try:
            return call()
        finally:
            await self._clock.sleep(self._rng.uniform(*self.delay_s))

    async def run_short(self, call: Callable[[], T]) -> T:
        return await self.run(call)

    def die(self) -> None:
        """The machine stops: what was under way is done up to some point."""
        for number in list(self._begun):
            call = self._begun.pop(number)
            if self._rng.random() < 0.7:
                self._files.crash_after(self._rng.randrange(12), bytes_written=self._rng.randrange(2048))
                with contextlib.suppress(Crash, TinymqError):
                    call()


def run_virtually(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run `main` to its end on a loop of its own, and fail for whatever was raised beside it."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        try:
            result = loop.run_until_complete(main(loop))
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(_ended(tasks))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    assert not loop.raised, "\n".join(loop.raised)
    return result


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    if tasks:
        await asyncio.gather(*tasks, return_exceptions=True)
