"""Time as an argument. No code below the gRPC adapters asks the system for the time or for a delay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic, time_ns
from typing import Protocol, TypeVar

from tinymq.base.errors import TinymqError

T = TypeVar("T")


class Timer(Protocol):
    """A call in the future, unless it is cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """The time of one broker. No method blocks, and `call_later` calls back on the broker's loop."""

    def monotonic(self) -> float:
        """Seconds since a fixed point. They never go back, and are unrelated between brokers."""
        ...

    def wall_us(self) -> int:
        """Microseconds since 1970 UTC. They may jump either way."""
        ...

    def wall_ns(self) -> int:
        """The same in nanoseconds: for what is called for each record."""
        ...

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Call `call` after `delay_s` seconds of this clock."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Return after `delay_s` seconds of this clock."""
        ...


class SystemClock:
    """The machine's clocks and the running asyncio loop's timers."""

    # The C functions themselves, because they are called for each record.
    monotonic = staticmethod(monotonic)
    wall_ns = staticmethod(time_ns)

    def wall_us(self) -> int:
        return time_ns() // 1000

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, call)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


async def within(clock: Clock, answer: asyncio.Future[T], timeout_s: float, late: TinymqError) -> T:
    """Wait for the future, and return its result. After `timeout_s` end the future with `late`, and raise `late`."""

    def end() -> None:
        if not answer.done():
            answer.set_exception(late)

    timer = clock.call_later(timeout_s, end)
    try:
        return await answer
    finally:
        timer.cancel()
