"""The synchronous client for workloads, which are coroutines: each of its calls blocks a thread of its own.

Workloads call it as they call an `AsyncClient`. A coroutine method of an asynchronous class becomes a blocking call of
the synchronous class in a thread; any other method and every property stays in the calling thread, as in an
application.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Self

from tinymq.client import Client
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.facade.consumer import Consumer
from tinymq.client.facade.core.client_core import ClientCore
from tinymq.client.facade.generated.admin import Admin
from tinymq.client.facade.generated.hold import Hold
from tinymq.client.facade.generated.transactions.checker import Checker
from tinymq.client.facade.generated.transactions.half_message import HalfMessage
from tinymq.client.facade.producer import Producer
from tinymq.client.facade.queue import Queue
from tinymq.client.facade.reader import Reader
from tinymq.client.facade.scan import Scan
from tinymq.client.facade.transaction import Transaction
from tinymq.client.facade.worker import Worker
from tinymq.client.produce.delivery import BatchDelivery, Delivery

SYNCHRONOUS = (Admin, Checker, Consumer, HalfMessage, Hold, Producer, Queue, Reader, Scan, Transaction, Worker)


InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Returns what a call returns in a thread, or raises what it raises."""


class ThreadedObject:
    """An object of the synchronous client: the client itself, a producer, a reader, ..."""

    def __init__(self, synchronous: Any, in_thread: InThread) -> None:
        self._sync = synchronous
        self._in_thread = in_thread

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._sync!r}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        asynchronous = self._sync._async
        if not inspect.iscoroutinefunction(getattr(type(asynchronous), name, None)):
            found = getattr(self._sync, name)
            return partial(self._called, found) if inspect.ismethod(found) else self._wrapped(found)
        if hasattr(type(self._sync), name):
            return partial(self._blocking, getattr(self._sync, name))
        # Not for applications, so the synchronous class lacks it. It crosses as the generated methods do.
        loop_thread = self._sync._loop_thread
        crossing = lambda *args, **named: loop_thread.run(getattr(asynchronous, name)(*args, **named))  # noqa: E731
        return partial(self._blocking, crossing)

    async def within(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        """Run work on the asynchronous object, on the client's own loop."""
        await self._in_thread(partial(self._sync._loop_thread.run, work(self._sync._async)))

    async def __aenter__(self) -> Self:
        await self._in_thread(self._sync.__enter__)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._in_thread(partial(self._sync.__exit__, *error))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        found = await self._in_thread(lambda: next(self._sync, None))  # no future takes a StopIteration
        if found is None:
            raise StopAsyncIteration
        return found

    async def _blocking(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        own = [each._sync if isinstance(each, ThreadedObject) else each for each in args]
        return self._wrapped(await self._in_thread(partial(call, *own, **named)))

    def _called(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return self._wrapped(call(*args, **named))

    def _wrapped(self, found: Any) -> Any:
        """Return what a workload gets instead of a synchronous object."""
        if isinstance(found, Delivery | BatchDelivery):
            return ThreadedDelivery(found, self._in_thread)
        return ThreadedObject(found, self._in_thread) if isinstance(found, SYNCHRONOUS) else found


class ThreadedClient(ThreadedObject):
    """A `Client`. `make_router` makes an asynchronous one, for workloads that speak the protocol themselves."""

    def __init__(self, client: Client, make_router: Callable[[], ClientCore], in_thread: InThread) -> None:
        super().__init__(client, in_thread)
        self._make_router = make_router
        self._router: ClientCore | None = None

    def cluster(self) -> Cluster:
        """Return the routing of an asynchronous client, for workloads that speak the protocol themselves."""
        if self._router is None:
            self._router = self._make_router()
        return self._router.cluster()

    async def close(self) -> None:
        await self._in_thread(self._sync.close)
        if self._router is not None:
            await self._router.close()


class ThreadedDelivery:
    """A Delivery or BatchDelivery whose end a coroutine awaits. Call it on a running loop."""

    def __init__(self, delivery: Any, in_thread: InThread) -> None:
        self._delivery = delivery
        self._in_thread = in_thread

    def __await__(self) -> Generator[Any, None, Any]:
        return self._in_thread(self._delivery.result).__await__()

    def result(self, timeout: float | None = None) -> Any:
        return self._delivery.result(timeout)

    def exception(self, timeout: float | None = None) -> Any:
        return self._delivery.exception(timeout)

    def add_done_callback(self, call: Callable[[Any], object]) -> None:
        """Call `call` on this loop, because the client calls it in its own thread."""
        loop = asyncio.get_running_loop()

        def ended(delivery: Any) -> None:
            with suppress(RuntimeError):  # the loop is closed: the run has ended
                loop.call_soon_threadsafe(call, delivery)

        self._delivery.add_done_callback(ended)


def cluster_of(client: Any) -> Cluster:
    """Return the routing of a workload's client, for workloads that speak the protocol themselves."""
    found: Cluster = (client if isinstance(client, ThreadedClient) else client._core).cluster()
    return found


async def leave(opened: Any) -> None:
    """End a consumer, worker or queue as an exception of its application does: what was handed out is not done."""
    await (opened if isinstance(opened, ThreadedObject) else opened._core).leave()
