"""Blocking work in threads, which a loop can await, and which does not delay the end of the process.

The loop's own executor is joined when the loop ends, however long its work takes: a second Ctrl-C would have to wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises. When cancelled, the work continues and its result is
    lost."""
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
        except BaseException as raised:  # it belongs to the awaiting task
            error = raised
        with suppress(RuntimeError):  # the loop is closed: no task waits any more
            loop.call_soon_threadsafe(tell, value, error)

    threading.Thread(target=run, name="works for a loop", daemon=True).start()
    return await answer


async def to_its_end(work: Callable[[], T]) -> T:
    """Like `in_thread`, but a cancelled call ends when `work` has ended, so that nothing runs beside the next step.

    A second cancellation ends it at once.
    """
    working = asyncio.ensure_future(in_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if working.cancelled():
            raise
        await asyncio.wait([working])
        working.result()
        raise
