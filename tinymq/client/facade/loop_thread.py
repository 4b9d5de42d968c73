"""The one crossing between an application's threads and the client's loop: a background thread per process.

Started by the first call and not before, so that a process may fork between making a Client and using it: the
child starts its own. What was used before a fork is dead in the child: every call of it is answered with Closed at
once, and so is a new Client's, since gRPC does not live through a fork (tinymq/client/net/grpc_transport.py).

When nothing refers to an engine any more, it closes its client and ends its thread by itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from tinymq.base.errors import Closed, TinymqError
from tinymq.client.common.argument_checks import FORK_HINT
from tinymq.client.facade.async_client import AsyncClient
from tinymq.client.produce import exit

T = TypeVar("T")
LOG = logging.getLogger("tinymq.client")

SETTLE_S = 1.0
SWITCH_S_MAX = 0.000_5
"""After so long an application's thread that computes makes way for the client's loop, in the whole process. It waits
for that at every system call, and Python's 5 ms each time made a failover beside a busy producer 2 s longer."""


class LoopThread:
    """A loop on a daemon thread, with one AsyncClient on it."""

    def __init__(self, make: Callable[[], AsyncClient]) -> None:
        self._pid = os.getpid()
        if sys.getswitchinterval() > SWITCH_S_MAX:
            sys.setswitchinterval(SWITCH_S_MAX)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="tinymq-client", daemon=True)
        self._thread.start()
        self.client = make()
        self._stopped = False
        # Everything that a client makes refers to its engine. Once the engine is collected, no caller can close the
        # client.
        self._unused = weakref.finalize(self, _end_unused, self._pid, self._loop, self.client)
        self._unused.atexit = False  # at exit, tinymq/client/produce/exit.py flushes the producers instead

    @property
    def alive(self) -> bool:
        """Usable in this process."""
        return not self._stopped and self._pid == os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it."""
        if not self.alive:
            work.close()
            raise Closed("the client is closed") if self._stopped else forked()
        try:
            self.check_thread()
        except RuntimeError:
            work.close()
            raise
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupted wait takes its work with it
            raise

    def check_thread(self) -> None:
        """Raises RuntimeError in the loop's own thread, which would wait for itself."""
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError("a delivery's callback runs in the client's own thread: it must not call what blocks")

    def do(self, call: Callable[[], T]) -> T:
        """Make a plain call on the loop and wait for it."""

        async def wrapped() -> T:
            return call()

        return self.run(wrapped())

    def stop(self) -> None:
        """Close the client and end the thread. Raises what closing raises."""
        try:
            self.run(self.client.close())
            self.run(_settle())
        finally:
            self._stopped = True
            self._unused.detach()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


def forked() -> Closed:
    """What a child is told of what its parent made."""
    return Closed("made and used before this process forked", hint=FORK_HINT)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop in the engine's thread, and close it."""
    try:
        loop.run_forever()
    finally:
        loop.close()


def _end_unused(pid: int, loop: asyncio.AbstractEventLoop, client: AsyncClient) -> None:
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
    """Let what gRPC still has in hand for closed calls end, so that the loop is left with nothing pending."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=SETTLE_S)
