"""The synchronous client for workloads, which are coroutines: each of its calls blocks a thread of its own.

Workloads call it as they call an `AsyncClient`. A coroutine method of an asynchronous class becomes a blocking call of
the synchronous class in a thread; any other method and every property stays in the calling thread, as in an
application.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Self

from tinymq.client import AsyncClient, Client
from tinymq.client.cluster.cluster import Cluster
from tinymq.client.facade.consumer import Consumer
from tinymq.client.facade.generated.admin import Admin
from tinymq.client.facade.generated.hold import Hold
from tinymq.client.facade.producer import Producer
from tinymq.client.facade.queue import Queue
from tinymq.client.facade.reader import Reader
from tinymq.client.facade.scan import Scan
from tinymq.client.facade.worker import Worker
from tinymq.client.produce.delivery import BatchDelivery, Delivery
from tinymq_chaos.real.processes.threads import in_thread

SYNCHRONOUS = (Admin, Consumer, Hold, Producer, Queue, Reader, Scan, Worker)


class ThreadedObject:
    """An object of the synchronous client: the client itself, a producer, a reader, ..."""

    def __init__(self, synchronous: Any) -> None:
        self._sync = synchronous

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._sync!r}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        asynchronous = self._sync._async
        if not inspect.iscoroutinefunction(getattr(type(asynchronous), name, None)):
            found = getattr(self._sync, name)
            return partial(_called, found) if inspect.ismethod(found) else _wrapped(found)
        if hasattr(type(self._sync), name):
            return partial(_blocking, getattr(self._sync, name))
        # Not for applications, so the synchronous class lacks it. It crosses as the generated methods do.
        loop_thread = self._sync._loop_thread
        return partial(_blocking, lambda *args, **named: loop_thread.run(getattr(asynchronous, name)(*args, **named)))

    async def within(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        """Run work on the asynchronous object, on the client's own loop."""
        await in_thread(partial(self._sync._loop_thread.run, work(self._sync._async)))

    async def __aenter__(self) -> Self:
        await in_thread(self._sync.__enter__)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await in_thread(partial(self._sync.__exit__, *error))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        found = await in_thread(lambda: next(self._sync, None))  # no future takes a StopIteration
        if found is None:
            raise StopAsyncIteration
        return found


class ThreadedClient(ThreadedObject):
    """A `Client`. Settings are those of `AsyncClient`; the random source is left out, because `Client` takes none."""

    def __init__(self, servers: str, **settings: Any) -> None:
        rng = settings.pop("rng", None)
        super().__init__(Client(servers, **settings))
        self._make_router = partial(AsyncClient, servers, rng=rng, **settings)
        self._router: AsyncClient | None = None

    def cluster(self) -> Cluster:
        """Return the routing of an asynchronous client, for workloads that speak the protocol themselves."""
        if self._router is None:
            self._router = self._make_router()
        return self._router.cluster()

    async def close(self) -> None:
        await in_thread(self._sync.close)
        if self._router is not None:
            await self._router.close()


class ThreadedDelivery:
    """A Delivery or BatchDelivery whose end a coroutine awaits. Call it on a running loop."""

    def __init__(self, delivery: Any) -> None:
        self._delivery = delivery

    def __await__(self) -> Generator[Any, None, Any]:
        return in_thread(self._delivery.result).__await__()

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


async def _blocking(call: Callable[..., Any], *args: Any, **named: Any) -> Any:
    return _wrapped(await in_thread(partial(call, *args, **named)))


def _called(call: Callable[..., Any], *args: Any, **named: Any) -> Any:
    return _wrapped(call(*args, **named))


def _wrapped(found: Any) -> Any:
    """Return what a workload gets instead of a synchronous object."""
    if isinstance(found, Delivery | BatchDelivery):
        return ThreadedDelivery(found)
    return ThreadedObject(found) if isinstance(found, SYNCHRONOUS) else found
