"""The one crossing between an application's threads and a client's event loop: a background thread with that loop.

The thread starts with the first call. So a process may fork between making a Client and using it: the child starts a
thread of its own. A client that was used before the fork is dead in the child. Every call of it raises Closed at once,
and so does every call of a new Client, because gRPC does not survive a fork (tinymq/client/net/grpc_transport.py).

When nothing refers to a LoopThread any more, it closes its client and ends its thread by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from tinymq.base.errors import Closed, TinymqError
from tinymq.client.common.forks import forked
from tinymq.client.common.traces import trim
from tinymq.client.facade.core.client_core import ClientCore
from tinymq.client.produce import exit
from tinymq.client.produce.producer_batch import SIGNAL_S

T = TypeVar("T")
LOG = logging.getLogger("tinymq.client")

SETTLE_S = 1.0  # how long calls that gRPC still holds may take to end once their client is closed


class LoopThread:
    """An event loop on a daemon thread, with one AsyncClient on it."""

    def __init__(self, make: Callable[[], ClientCore], *, switch_interval_s: float | None = None) -> None:
        """`switch_interval_s`: set the interpreter's switch interval to this when the thread starts, unless it is
        shorter already."""
        self._make = make
        self._switch_interval_s = switch_interval_s
        self._process = os.getpid()
        self._starting = threading.Lock()  # guards the three fields below, which are set together
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: ClientCore | None = None
        self._stopping = False
        self._stopped = False

    @property
    def alive(self) -> bool:
        """Is it usable in this process? True before it starts, too."""
        return not self._stopped and self._process == os.getpid()

    @property
    def client(self) -> ClientCore:
        """The client on the loop. Starts the thread."""
        if self._client is None:
            self._start()
            assert self._client is not None, "started"
        return self._client

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it. Starts the thread. Raises Closed."""
        try:
            if not self.alive:
                raise Closed("the client is closed") if self._stopped else forked()
            self.check_thread()
            loop = self._loop or self._start()
        except BaseException:
            work.close()
            raise
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            _wait(future)
        except BaseException:
            future.cancel()  # an interrupted wait takes its work with it
            raise
        try:
            return future.result()
        except TinymqError as raised:
            trim(raised)
            raise

    @property
    def is_here(self) -> bool:
        """Is the calling thread the loop's own? Callbacks run in it."""
        return self._thread is not None and threading.get_ident() == self._thread.ident

    def check_thread(self) -> None:
        """Raises RuntimeError in the loop's own thread, which would wait for itself."""
        if self.is_here:
            raise RuntimeError("a callback runs in the client's own thread: it must not call what blocks")

    def do(self, call: Callable[[], T]) -> T:
        """Make a plain call on the loop and wait for it. Raises Closed."""

        async def wrapped() -> T:
            return call()

        return self.run(wrapped())

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine on the loop without waiting for it, from any thread. Does nothing once the loop has ended."""
        loop = self._loop
        if loop is None or not self.alive or loop.is_closed():
            work.close()
            return
        try:
            asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:  # the loop was closed in this moment
            work.close()

    def stop(self) -> None:
        """Close the client and end the thread. Raises what closing raises. A second call does nothing."""
        with self._starting:
            if self._stopping or not self.alive:
                return
            self._stopping = True
            if self._loop is None or self._thread is None or self._client is None:
                self._stopped = True
                return
        try:
            self.run(self._client.close())
            self.run(_settle())
        finally:
            self._stopped = True
            self._unused.detach()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _start(self) -> asyncio.AbstractEventLoop:
        """Start the thread unless it runs, and return its loop."""
        with self._starting:
            if self._stopped:
                raise Closed("the client is closed")
            if self._loop is None:
                if self._switch_interval_s is not None and sys.getswitchinterval() > self._switch_interval_s:
                    sys.setswitchinterval(self._switch_interval_s)
                self._client = self._make()
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(loop,), name="tinymq-client", daemon=True)
                self._thread.start()
                exit.enter_loop(loop)
                # Everything that a client makes refers to its LoopThread. Once that is collected, no caller can close
                # the client.
                self._unused = weakref.finalize(self, _end_unused, self._process, loop, self._client)
                self._unused.atexit = False  # at exit, tinymq/client/produce/exit.py flushes the producers instead
                self._loop = loop  # last: a thread that sees the loop may use the other two fields
            return self._loop


def _wait(future: Future[Any]) -> None:
    """Wait for the end of a future, in short steps for the sake of signals (`acquired` in producer_batch.py)."""
    while not future.done():
        with contextlib.suppress(TimeoutError):  # of the wait: one of the work is returned
            future.exception(SIGNAL_S)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """The target of the thread: run the loop until it is stopped, then close it."""
    try:
        loop.run_forever()
    finally:
        loop.close()


def _end_unused(pid: int, loop: asyncio.AbstractEventLoop, client: ClientCore) -> None:
    """Close the client and end its loop. Callable from any thread; does not wait."""

    async def end() -> None:
        try:
            for producer in client.producers():
                await exit.close_and_report(producer)
            await client.close()
        except TinymqError as error:
            LOG.debug("closing a client that nothing refers to: %s", error)
        finally:
            await _settle()
            loop.stop()

    if pid == os.getpid() and not loop.is_closed():
        asyncio.run_coroutine_threadsafe(end(), loop)


async def _settle() -> None:
    """Wait until gRPC has ended the calls that were closed, so that the loop ends with no pending task."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=SETTLE_S)
