"""Time as an argument. Nothing below the gRPC adapters asks the system for the time or a delay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from tinymq.base.errors import TinymqError

T = TypeVar("T")


class Timer(Protocol):
    """A call that will be made later, unless cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """One broker's sense of time. Calls never block; `call_later` calls back on the broker's loop."""

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back; unrelated between brokers."""
        ...

    def wall_us(self) -> int:
        """Microseconds since 1970 UTC; may jump either way."""
        ...

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Make `call` after `delay_s` seconds of this clock."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Return after `delay_s` seconds of this clock."""
        ...


class SystemClock:
    """The machine's clocks and the running asyncio loop's timers."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, call)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


async def within(clock: Clock, answer: asyncio.Future[T], timeout_s: float, late: TinymqError) -> T:
    """The future's result, or `late` raised after `timeout_s`; the future itself then ends with `late`, too."""

    def end() -> None:
        if not answer.done():
            answer.set_exception(late)

    timer = clock.call_later(timeout_s, end)
    try:
        return await answer
    finally:
        timer.cancel()
