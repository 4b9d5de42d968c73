"""Virtual time: an event loop whose clock jumps to the next timer, and processes that can be paused and killed.

This module does not know Raft. The same calls give the same order and the same times, so a run can be replayed.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from tinymq.base.errors import TinymqError
from tinymq.simulation.faulty_files import Crash
from tinymq_chaos.sim.virtual.handles import SoonHandle, TimedHandle

T = TypeVar("T")

SPINS_MAX = 200_000  # turns of the loop without time passing, after which the run fails: something feeds itself
RAISED_MAX = 5  # errors that a failure reports
WALL_START_US = 1_700_000_000_000_000

_process: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("process", default=None)


class ProcessKilled(Exception):
    """The process of this call is gone."""


class _Due(float):
    """The time of a timer. It compares as a plain number, because heaps compare often."""

    __slots__ = ("timer",)
    timer: TimedHandle


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time. When no callback is ready, the time is at once that of the next timer.

    Every callback belongs to the process in whose context it was scheduled. The loop holds the callbacks of a paused
    process until the process goes on, and never runs those of a killed one.
    """

    _ready: deque[asyncio.Handle]  # these three belong to BaseEventLoop
    _scheduled: list[_Due]  # a heap of timers, by time
    _timer_cancelled_count: int

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._clock_resolution = 1e-9
        self._spins = self.tasks_made = 0
        # of killed processes: kept, so that no garbage collection runs their clean-up at a random moment
        self.dead: list[asyncio.Task[Any]] = []
        self.steps = 0  # callbacks run so far: the same in two runs of one seed
        self.raised: list[str] = []  # errors of callbacks and tasks that no caller receives
        self.set_exception_handler(self._note)
        self.set_task_factory(_make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self._now_s

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        due = _Due(when)
        due.timer = timer = TimedHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, due)
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = SoonHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _run_once(self) -> None:
        """Run what is due and ready, once. It replaces BaseEventLoop's method, which would use a selector."""
        ready, scheduled = self._ready, self._scheduled
        if self._timer_cancelled_count > 100 and self._timer_cancelled_count * 2 > len(scheduled):
            self._drop_cancelled_timers()
        if ready:
            self._spins += 1
            what = "the loop turns and turns, and no time passes"
            assert self._spins < SPINS_MAX, f"t={self._now_s:.3f}: {what}: {list(ready)[:3]}"
        else:
            self._pass_time()
        now_s = self._now_s
        while scheduled and scheduled[0] <= now_s:
            timer: Any = heapq.heappop(scheduled).timer
            timer._scheduled = False
            if timer._cancelled:
                self._timer_cancelled_count -= 1
            else:
                process = timer._context.get(_process)
                if process is None or process.alive:
                    ready.append(timer)
        for _ in range(len(ready)):
            handle: Any = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_process)
            if process is not None:
                if not process.alive:
                    continue
                if process.held is not None:
                    process.held.append(handle)
                    continue
                if process.crashes:
                    process.step()
            self.steps += 1
            try:  # as Handle._run does
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"Exception in callback {handle}", "exception": error})

    def _pass_time(self) -> None:
        scheduled = self._scheduled
        while scheduled and (timer := _timer_of(scheduled[0]))._cancelled:
            heapq.heappop(scheduled)
            timer._scheduled = False
            self._timer_cancelled_count -= 1
        if not scheduled:
            raise AssertionError(f"t={self._now_s:.3f}: nothing is left to do, and a task waits")
        self._now_s = max(self._now_s, float(scheduled[0]))
        self._spins = 0

    def _drop_cancelled_timers(self) -> None:
        kept = []
        for due in self._scheduled:
            if (timer := _timer_of(due))._cancelled:
                timer._scheduled = False
            else:
                kept.append(due)
        heapq.heapify(kept)
        self._scheduled[:] = kept
        self._timer_cancelled_count = 0

    def go_on(self, handles: Iterable[asyncio.Handle]) -> None:
        """Schedule the callbacks that a process held while it was paused."""
        self._ready.extend(handles)

    def _write_to_self(self) -> None:
        pass

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Crash | ProcessKilled):
            return
        self.raised.append(f"t={self._now_s:.3f} {context.get('message')}: {error!r}")


def _timer_of(due: _Due) -> Any:
    """Return the timer, typed as Any because callers use private attributes of asyncio."""
    return due.timer


class NumberedTask(asyncio.Task[T]):
    """A task with a number as its hash: sets of tasks are walked in an order that the run determines, not addresses."""

    process: SimProcess | None = None

    def __init__(self, coro: Coroutine[Any, Any, T], *, number: int, **options: Any) -> None:
        self.number = number  # before anything hashes the task
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


def _make_task(loop: VirtualLoop, coro: Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:
    loop.tasks_made += 1
    task = NumberedTask(coro, loop=loop, number=loop.tasks_made, **options)
    context = options.get("context")
    task.process = _process.get() if context is None else context.get(_process)
    return task


def running_process() -> SimProcess | None:
    """Return the process in whose context this call is made."""
    return _process.get()


class SimProcess:
    """One run of one program. Everything that happens in it belongs to it, so it can stop at any moment.

    A paused process does nothing; callbacks that fell due meanwhile run when it goes on, in order. A killed process
    never does anything again: not even a `finally` of it runs.
    """

    def __init__(self, name: str, broker_id: int = 0) -> None:
        """`broker_id`: the number of the broker's machine; 0: it is no broker's."""
        self.name = name
        self.broker_id = broker_id
        self.alive = True
        self.held: deque[asyncio.Handle] | None = None  # callbacks of a paused process; None: it runs
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)
        self._died: asyncio.Future[None] | None = None  # resolved when the process ends
        self._steps_left = 0
        self._crash: Callable[[], None] | None = None

    @property
    def paused(self) -> bool:
        return self.held is not None

    @property
    def crashes(self) -> bool:
        return self._crash is not None

    def call(self, call: Callable[[], object]) -> None:
        """Make `call` in this process, now or when it goes on."""
        if not self.alive:
            return
        if self.held is not None:
            self.held.append(asyncio.Handle(call, (), asyncio.get_running_loop(), self.context.copy()))
        else:
            self.context.copy().run(call)

    def do(self, call: Callable[[], T]) -> T:
        """Make `call` in this process, and return its result. Raises ProcessKilled when the process is gone."""
        if not self.alive:
            raise ProcessKilled(self.name)
        return self.context.copy().run(call)

    async def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run `coro` as a task of this process. Raises ProcessKilled when the process is killed before its end."""
        if not self.alive:
            coro.close()
            raise ProcessKilled(self.name)
        if self._died is None:
            self._died = asyncio.get_running_loop().create_future()
        task = self.spawn(coro)
        either: list[asyncio.Future[Any]] = [task, self._died]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() or task.cancelled():
            raise ProcessKilled(self.name)
        return task.result()

    def spawn(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `coro` as a task of this process, which must be alive."""
        return asyncio.get_running_loop().create_task(coro, context=self.context.copy())

    def step(self) -> None:
        """Count a callback of this process that is about to run, while the process waits for its crash."""
        self._steps_left -= 1
        if self._crash is not None and self._steps_left <= 0:
            crash, self._crash = self._crash, None
            asyncio.get_running_loop().call_soon(crash, context=contextvars.Context())

    def crash_after(self, steps: int, crash: Callable[[], None]) -> None:
        """Call `crash` after so many callbacks of this process have begun: between any two awaits."""
        self._steps_left, self._crash = steps, crash

    def forget_crash(self) -> None:
        self._crash = None

    def pause(self) -> None:
        if self.held is None:
            self.held = deque()

    def resume(self) -> None:
        held, self.held = self.held, None
        if held and self.alive:
            asyncio.get_running_loop().go_on(held)  # type: ignore[attr-defined]

    def kill(self) -> None:
        loop: Any = asyncio.get_running_loop()
        loop.dead += [t for t in asyncio.all_tasks() if _process_of(t) is self]  # before `held`, their only reference
        self.alive = False
        self.held = None
        self._crash = None
        if self._died is not None:
            self._died.set_result(None)


class ProcessTransport:
    """A broker's transport that makes its callbacks in the broker's process: they wait while the process is paused."""

    def __init__(self, inner: object, process: SimProcess) -> None:
        self.__dict__.update(_inner=inner, _process=process)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Callable[..., Any] | None) -> None:
        process = self._process
        if value is None or not name.startswith("on_"):
            setattr(self._inner, name, value)
        else:
            setattr(self._inner, name, lambda *args: process.call(lambda: value(*args)))


class VirtualClock:
    """The clock of a process, with its own start, rate and wall clock; without a process, the clock of the world."""

    def __init__(
        self, loop: VirtualLoop, process: SimProcess | None = None, start_s: float = 0.0, rate: float = 1.0
    ) -> None:
        self.wall_skew_us = 0  # faults change it at any time
        self._loop = loop
        self._base_s, self._since_s, self._rate = start_s + loop.time() * rate, loop.time(), rate
        self._context = process.context if process is not None else contextvars.Context()

    def monotonic(self) -> float:  # called for every message: it reads the loop's field
        return self._base_s + (self._loop._now_s - self._since_s) * self._rate

    def drift(self, rate: float) -> None:
        """Run faster (above 1) or slower from now on. Timers that are set keep their time."""
        self._base_s, self._since_s, self._rate = self.monotonic(), self._loop.time(), rate

    def wall_us(self) -> int:
        return WALL_START_US + self.wall_skew_us + int(self._loop.time() * 1e6)

    def wall_ns(self) -> int:
        return self.wall_us() * 1000

    def call_later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        at_s = self._loop._now_s + (delay_s if delay_s > 0.0 else 0.0) / self._rate
        return self._loop.call_at(at_s, call, context=self._context.copy())

    async def sleep(self, delay_s: float) -> None:
        woken: asyncio.Future[None] = self._loop.create_future()
        timer = self.call_later(delay_s, lambda: _wake(woken))
        try:
            await woken
        finally:
            timer.cancel()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def run_virtually(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run `main` to its end on a loop of its own, and fail for any error that no caller received."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        try:
            result = loop.run_until_complete(main(loop))
        finally:
            _end_all(loop)
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    more = [f"and {len(loop.raised) - RAISED_MAX} more"] if len(loop.raised) > RAISED_MAX else []
    assert not loop.raised, "\n".join([*loop.raised[:RAISED_MAX], *more])
    return result


def _end_all(loop: VirtualLoop) -> None:
    """Cancel every task of the world, and take apart what processes left behind."""
    tasks = asyncio.all_tasks(loop)
    left = sorted((t for t in tasks if _process_of(t) is not None), key=hash)
    others = sorted(tasks - set(left), key=hash)
    for task in others:
        task.cancel()
    loop.run_until_complete(_ended(others))
    asyncio._set_running_loop(loop)
    closed: set[asyncio.Task[Any]] = set()
    try:
        while left:  # a coroutine that ends may start others on its way out
            for task in left:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task)
            closed.update(left)
            left = sorted(asyncio.all_tasks(loop) - closed, key=hash)
    finally:
        asyncio._set_running_loop(None)


def _process_of(task: asyncio.Task[Any]) -> SimProcess | None:
    assert isinstance(task, NumberedTask)
    return task.process


def _close(task: asyncio.Task[Any]) -> None:
    """End the task's coroutine now, and not at a moment that the garbage collector chooses."""
    coro = task.get_coro()
    assert isinstance(coro, Coroutine)
    try:
        coro.close()
    except (RuntimeError, Crash, TinymqError) as error:  # the coroutine would go on, but nothing asks it to
        task.set_name(f"{task.get_name()}, left with {error!r}")


async def _ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
