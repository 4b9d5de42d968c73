"""What becomes of records that are not acknowledged yet when a program ends without closing their producer.

Here is the registry of this process's producers, and what happens to those in it at the interpreter's exit: each is
flushed and closed on its event loop, if that still runs, with delivery_timeout_ms as the deadline. Whatever is left is
counted and reported. The report is an error of the logger `tinymq.client`, which Python prints on stderr in a program
that configures no logging, and a ResourceWarning, which Python ignores unless it is told otherwise.

At that time no thread pool takes work any more, and concurrent.futures.thread cannot even be imported: it is imported
here, for pyarrow's sake, and tinymq/client/streams.py resolves names without a pool.

What ends a process without the interpreter's exit (SIGKILL, os._exit, a signal's default action) ends it without this.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread
import logging
import os
import sys
import threading
import time
import warnings
import weakref
from typing import Protocol

from tinymq.errors import NotDelivered, TinymqError

LOG = logging.getLogger("tinymq.client")

LATE_S = 1.0  # a producer that is not closed so long after its deadline is waited for no longer


class Unclosed(Protocol):
    """A producer, as far as it matters here."""

    loop: asyncio.AbstractEventLoop

    @property
    def closed(self) -> bool:
        """Was `close` called?"""
        ...

    @property
    def close_s(self) -> float:
        """How many seconds `close` takes at most."""
        ...

    @property
    def unfinished(self) -> int:
        """Records that are not acknowledged, and that nobody was told about."""
        ...

    async def close(self) -> None:
        """Raises NotDelivered. Called again it waits until the first call has ended."""
        ...


_producers: weakref.WeakSet[Unclosed] = weakref.WeakSet()
_lock = threading.Lock()  # of the set: producers enter it on their own loops
_finished = False
_process = 0  # whose producers these are: a forked child begins with none


def enter(producer: Unclosed) -> None:
    """A producer was made."""
    global _process
    with _lock:
        if _process != os.getpid():
            _process = os.getpid()
            _producers.clear()
            _register_in_child()
        _producers.add(producer)


def finished() -> bool:
    """Has the process reached its end? Whatever was left then is reported already."""
    return _finished


def leave(producer: Unclosed) -> None:
    """A producer is closed: whatever it could not deliver was raised."""
    with _lock:
        _producers.discard(producer)


def _register_in_child() -> None:
    """A child of multiprocessing runs its own finalizers, and no function of atexit."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing import util

        util.Finalize(None, finish, exitpriority=0)


@atexit.register
def finish() -> None:
    """Close every producer of this process that is not closed, and report what is left."""
    global _finished
    with _lock:
        left = list(_producers) if _process == os.getpid() else []
        _finished = True
    running = [producer for producer in left if producer.loop.is_running()]
    lost = sum(producer.unfinished for producer in left if producer not in running)
    reason = "its event loop ended before it was closed" if lost else ""
    until_s = time.monotonic() + LATE_S + max((producer.close_s for producer in running), default=0.0)
    closing = [(producer, asyncio.run_coroutine_threadsafe(_close(producer), producer.loop)) for producer in running]
    try:
        for producer, done in closing:
            try:
                count, why = done.result(max(0.0, until_s - time.monotonic()))
            except (TinymqError, TimeoutError, concurrent.futures.CancelledError) as error:
                count, why = producer.unfinished, str(error)
            lost, reason = lost + count, reason or why
    except BaseException as interrupt:  # Ctrl-C: the program is to end now
        lost += sum(producer.unfinished for producer, _ in closing)
        reason = reason or type(interrupt).__name__
        raise
    finally:
        report(lost, "when the program ended", reason)


def close_unused(producer: Unclosed) -> None:
    """Nothing refers to the producer any more: close it on its loop, from any thread, and wait for nothing."""
    if _process != os.getpid() or producer.closed or producer.loop.is_closed():
        return
    closing = close_and_report(producer)
    try:
        asyncio.run_coroutine_threadsafe(closing, producer.loop)
    except RuntimeError:  # the loop was closed just now
        closing.close()


async def close_and_report(producer: Unclosed) -> None:
    """On the producer's loop."""
    count, why = await _close(producer)
    report(count, "when the producer was dropped", why)


def report(count: int, when: str, reason: str = "") -> None:
    """Tell the user, whatever the filters of warnings say, of so many records that may be lost; of none, nothing."""
    if count <= 0:
        return
    what = "1 record was" if count == 1 else f"{count} records were"
    because = f" ({reason})" if reason else ""
    text = f"tinymq: {what} not acknowledged {when}, and may be lost{because}; close the producer, or use it in `with`"
    LOG.error(text)
    warnings.warn(text, ResourceWarning, stacklevel=2)


async def _close(producer: Unclosed) -> tuple[int, str]:
    """(records that were not delivered, why the first of them was not)."""
    try:
        await producer.close()
    except NotDelivered as error:
        return len(error.records) + error.left_out, error.records[0].error.message if error.records else ""
    return 0, ""
