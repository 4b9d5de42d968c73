"""Delivers or reports records that are still unacknowledged when a program ends without closing their producer.

This module registers the producers of this process. At the interpreter's exit it flushes and closes each of them on its
event loop, if that still runs, with delivery_timeout_ms as the deadline. Then it counts and reports the records that
are left. The report is an error of the logger `tinymq.client`, which Python prints on stderr in a program that
configures no logging, and a ResourceWarning, which Python ignores unless it is told otherwise.

At that time thread pools accept no work, and concurrent.futures.thread cannot even be imported. So this module imports
it early, because pyarrow needs it, and tinymq/client/net/streams.py resolves names without a pool.

None of this happens when a process ends without the interpreter's exit (SIGKILL, os._exit, a signal's default action).
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread
import contextlib
import logging
import os
import sys
import threading
import time
import warnings
import weakref
from typing import Protocol

from tinymq.base.errors import NotDelivered, TinymqError

LOG = logging.getLogger("tinymq.client")

LATE_S = 1.0  # how long after its deadline the exit still waits for a producer to close


class UnclosedProducers(Protocol):
    """The part of a producer that this module needs."""

    loop: asyncio.AbstractEventLoop

    @property
    def closed(self) -> bool:
        """Was `close` called?"""
        ...

    @property
    def close_s(self) -> float:
        """The longest time that `close` takes, in seconds."""
        ...

    @property
    def unfinished(self) -> int:
        """The number of records that are neither acknowledged nor reported as failed."""
        ...

    async def close(self) -> None:
        """Raises NotDelivered. A second call waits until the first one has ended."""
        ...


_producers: weakref.WeakSet[UnclosedProducers] = weakref.WeakSet()
_lock = threading.Lock()  # guards _producers: producers enter it on their own loops
_finished = False
_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()  # of the clients for threads
_loops_of = 0  # the process id of their owner
_process = 0  # the process id of these producers' owner: a forked child begins with none


def enter(producer: UnclosedProducers) -> None:
    """Register a new producer."""
    global _process
    with _lock:
        if _process != os.getpid():
            _process = os.getpid()
            _producers.clear()
            _register_in_child()
        _producers.add(producer)


def enter_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Register a client's own loop, on which nothing but that client runs."""
    global _loops_of
    with _lock:
        if _loops_of != os.getpid():
            _loops_of = os.getpid()
            _loops.clear()
        _loops.add(loop)


def finished() -> bool:
    """Has the process reached its end? If so, all records that were left have been reported."""
    return _finished


def leave(producer: UnclosedProducers) -> None:
    """Unregister a closed producer. `close` has raised an error for the records that it could not deliver."""
    with _lock:
        _producers.discard(producer)


def _register_in_child() -> None:
    """Register `finish` in a child of multiprocessing, which runs its own finalizers but no function of atexit."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing import util

        util.Finalize(None, finish, exitpriority=0)


@atexit.register
def finish() -> None:
    """Close every producer of this process that is still open, and report the records that are left."""
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
        _end_tasks()
    except BaseException as interrupt:  # Ctrl-C: the user wants the program to end now
        lost += sum(producer.unfinished for producer, _ in closing)
        reason = reason or type(interrupt).__name__
        raise
    finally:
        report(lost, "when the program ended", reason)


def _end_tasks() -> None:
    """Cancel what still runs on the clients' own loops. asyncio would report each task that the exit destroys."""

    async def end(loop: asyncio.AbstractEventLoop) -> None:
        tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LATE_S)

    for loop in [each for each in _loops if each.is_running()] if _loops_of == os.getpid() else ():
        ended = asyncio.run_coroutine_threadsafe(end(loop), loop)
        with contextlib.suppress(TimeoutError):
            ended.result(2 * LATE_S)


def close_unused(producer: UnclosedProducers) -> None:
    """Close a producer that nothing refers to any more, on its loop. Callable from any thread; does not wait."""
    if _process != os.getpid() or producer.closed or producer.loop.is_closed():
        return
    closing = close_and_report(producer)
    try:
        asyncio.run_coroutine_threadsafe(closing, producer.loop)
    except RuntimeError:  # the loop was closed just now
        closing.close()


async def close_and_report(producer: UnclosedProducers) -> None:
    """Close the producer and report what it could not deliver. Runs on the producer's loop."""
    count, why = await _close(producer)
    report(count, "when the producer was dropped", why)


def report(count: int, when: str, reason: str = "") -> None:
    """Tell the user, whatever the warning filters say, that `count` records may be lost. Does nothing if `count` is
    0."""
    if count <= 0:
        return
    what = "1 record was" if count == 1 else f"{count} records were"
    because = f" ({reason})" if reason else ""
    text = f"tinymq: {what} not acknowledged {when}, and may be lost{because}; close the producer, or use it in `with`"
    LOG.error(text)
    warnings.warn(text, ResourceWarning, stacklevel=2)


async def _close(producer: UnclosedProducers) -> tuple[int, str]:
    """(records that were not delivered, why the first of them was not)."""
    try:
        await producer.close()
    except NotDelivered as error:
        return len(error.records) + error.left_out, error.records[0].error.message if error.records else ""
    return 0, ""
