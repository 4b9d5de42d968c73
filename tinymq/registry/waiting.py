"""Awaiting an answer for so long and no longer, on a clock that is an argument."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from tinymq.clock import Clock
from tinymq.errors import TinymqError

T = TypeVar("T")


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
