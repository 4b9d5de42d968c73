"""Work that blocks, in threads: awaited on a loop, and in nobody's way when the process ends.

The loop's own executor is joined when the loop ends, however long its work takes: who presses Ctrl-C twice would wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """What `work` returns or raises. Cancelled, it goes on, and what comes of it is lost."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(value: T | None, error: BaseException | None) -> None:
        if answer.done():  # cancelled
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as raised:  # it belongs to whoever awaits
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody awaits any more
            loop.call_soon_threadsafe(tell, value, error)

    threading.Thread(target=run, name="works for a loop", daemon=True).start()
    return await answer


async def to_its_end(work: Callable[[], T]) -> T:
    """As `in_thread`, but cancelled it ends when `work` has: nothing goes on beside what comes next. Cancelled once
    more, at once."""
    working = asyncio.ensure_future(in_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if working.cancelled():
            raise
        await asyncio.wait([working])
        working.result()
        raise
