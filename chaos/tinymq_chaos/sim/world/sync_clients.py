"""The synchronous client in the simulator: the code that ships, on user threads, over the loop of the world.

Replaced are only the places where its threads meet the loop and each other: the thread of the client's own loop, whose
part the world's loop plays; the wait for a coroutine; the locks; and the socket of lone records
(../network/blocking_streams.py).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import Empty
from types import SimpleNamespace
from typing import Any, TypeVar

from tinymq.client import Client
from tinymq.client.consume import scan
from tinymq.client.facade import loop_thread
from tinymq.client.facade.core.client_core import ClientCore
from tinymq.client.facade.loop_thread import LoopThread
from tinymq.client.produce import batcher, delivery, producer_batch
from tinymq_chaos.sim.virtual.event_loop import VirtualLoop
from tinymq_chaos.sim.virtual.user_threads import Signal, SteppedLock, UserThreads

T = TypeVar("T")

LOOK_S = 0.001  # how often a thread that waits for a chunk of a scan looks, which the product does in C


class ClientLoop:
    """The loop of one client, as its LoopThread sees it. It is the world's, and does not stop with the client."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.world = loop
        self.call_soon_threadsafe = loop.call_soon_threadsafe
        self.is_closed, self.is_running = loop.is_closed, loop.is_running

    def stop(self) -> None:
        pass


class NoThread:
    """Stands for the thread that runs a client's loop. The simulation's loop runs it instead."""

    def __init__(self, **_: object) -> None:
        self.ident = 0

    def start(self) -> None:
        pass

    def join(self) -> None:
        pass


class Awaited:
    """A coroutine's future, for the thread that waits for it."""

    def __init__(self, threads: UserThreads, future: Future[Any]) -> None:
        self.cancel, self.done = future.cancel, future.done
        self._thread = threads.running
        self._future = future

    def result(self) -> Any:
        """The result of a future that has ended."""
        return self._future.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end, longer than `timeout` if need be: a LoopThread would only ask again, for signals."""
        thread = self._thread
        assert thread is not None, "the loop would wait for itself"
        self._future.add_done_callback(lambda _: thread.wake())
        thread.until(self._future.done)
        thread.step()
        return self._future.exception()


class SimLoopThread(LoopThread):
    """A LoopThread that the world's loop may call, too: workloads make producers and readers there."""

    def __init__(self, make: Callable[[], ClientCore], threads: UserThreads) -> None:
        super().__init__(make)
        self._threads = threads

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._threads.running is not None:
            return super().run(work)
        if self._loop is None:
            self._start()
        try:
            work.send(None)
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]
        raise AssertionError("the world's loop called what blocks")


class SimClient(Client):
    """A synchronous client of a world."""

    def __init__(
        self, servers: list[str], make: Callable[[], ClientCore], threads: UserThreads, **settings: Any
    ) -> None:
        super().__init__(servers, **settings)
        self._loop_thread = SimLoopThread(make, threads)


@contextmanager
def user_threads(threads: UserThreads) -> Iterator[None]:
    """Let threads of the synchronous client wait in virtual time while the block runs, and end them behind it."""

    def run_threadsafe(work: Coroutine[Any, Any, object], loop: ClientLoop) -> Awaited:
        if threads.running is not None:
            threads.running.step()
        return Awaited(threads, asyncio.run_coroutine_threadsafe(work, loop.world))

    async def settled() -> None:  # other clients' tasks run on this loop
        pass

    def take(self: Any, block: bool) -> Any:
        thread = threads.running
        while True:
            try:
                return real_take(self, False)
            except Empty:
                if not block or thread is None:
                    raise
            thread.until(bool, LOOK_S)

    real_take = scan.ChunkQueue.take
    lock = SimpleNamespace(Lock=lambda: SteppedLock(threads), get_ident=threading.get_ident)
    patches: tuple[tuple[Any, str, object], ...] = (
        (loop_thread, "asyncio", _Instead(asyncio, run_coroutine_threadsafe=run_threadsafe,
                                          new_event_loop=lambda: ClientLoop(threads.loop))),
        (loop_thread, "threading", _Instead(threading, Thread=NoThread)),
        (loop_thread, "_settle", settled),
        (batcher, "threading", lock),
        (producer_batch, "_COMPLETION", SteppedLock(threads)),
        (producer_batch, "locked", lambda: Signal(threads)),
        (producer_batch, "acquired", Signal.wait),
        (delivery, "locked", lambda: Signal(threads)),
        (delivery, "acquired", Signal.wait),
        (scan.ChunkQueue, "take", take),
    )  # fmt: skip
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    for owner, name, value in patches:
        setattr(owner, name, value)
    try:
        yield
    finally:
        threads.end()
        for owner, name, value in before:
            setattr(owner, name, value)


class _Instead:
    """A module with other values for some of its names."""

    def __init__(self, module: Any, **others: object) -> None:
        self.__dict__.update(others)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
