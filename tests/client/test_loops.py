"""An AsyncClient belongs to the event loop that used it first. On every other loop its calls raise at once."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of
from tinymq.base.errors import Closed, InvalidRequest, WrongEventLoop
from tinymq.client import Delivery
from tinymq.client.consume.reader import ReaderCore
from tinymq.client.facade.core.client_core import ClientCore
from tinymq.client.produce.producer import ProducerCore
from tinymq.client.queue.queue import QueueCore

LATE_S = 2.0  # a call that takes longer hangs


class Opened:
    """Every kind of object that a client makes, each used once on the client's loop."""

    client: ClientCore
    producer: ProducerCore
    reader: ReaderCore
    queue: QueueCore
    lingering: Delivery

    async def open(self) -> None:
        cluster = FakeCluster()
        cluster.add_topic("t")
        self.client = client_of(cluster)
        await self.client.send("t", b"0")
        self.producer = self.client.producer(linger_ms=60_000)
        self.lingering = await self.producer.send("t", b"1")
        self.reader = self.client.reader("t")
        assert len(await self.reader.poll(5)) == 1
        self.queue = self.client.queue("t")
        self.scan = self.client.scan("t", 0, 0, 1)
        self.hold = self.client.admin.hold("t", 0, 0)
        self.admin = self.client.admin


async def made(make: Callable[[], object]) -> None:
    make()


async def closed(client: ClientCore) -> None:
    """Close the client, and wait for the tasks that it has cancelled: the loop ends with none."""
    await client.close()
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


USES: dict[str, Callable[[Opened], Awaitable[Any]]] = {
    "send": lambda all: all.client.send("t", b"2"),
    "close": lambda all: all.client.close(),
    "admin": lambda all: made(lambda: all.client.admin),
    "a new producer": lambda all: made(all.client.producer),
    "a new reader": lambda all: made(lambda: all.client.reader("t")),
    "list_topics": lambda all: all.admin.list_topics(),
    "producer.send": lambda all: all.producer.send("t", b"2"),
    "producer.send to another topic": lambda all: all.producer.send("u", b"2"),
    "producer.flush": lambda all: all.producer.flush(),
    "producer.close": lambda all: all.producer.close(),
    "reader.poll": lambda all: all.reader.poll(1.0),
    "reader.close": lambda all: all.reader.close(),
    "queue.poll": lambda all: all.queue.poll(timeout=1.0),
    "queue.push": lambda all: all.queue.push(b"2"),
    "queue.close": lambda all: all.queue.close(),
    "scan": lambda all: all.scan.__anext__(),
    "hold": lambda all: all.hold.acquire(),
}


async def refused(use: Awaitable[Any]) -> WrongEventLoop:
    async with asyncio.timeout(LATE_S):
        with pytest.raises(WrongEventLoop) as raised:
            await use
    return raised.value


@pytest.fixture
def running() -> Iterator[Opened]:
    """The objects of a client whose loop runs in another thread."""
    loop, opened = asyncio.new_event_loop(), Opened()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(opened.open(), loop).result(10)
        yield opened
        asyncio.run_coroutine_threadsafe(closed(opened.client), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_second_loop_gets_an_error_that_the_first_one_has_ended() -> None:
    opened = Opened()
    asyncio.run(opened.open())

    async def use_all() -> None:
        for name, use in USES.items():
            error = await refused(use(opened))
            assert "has ended" in error.message, name
            assert "asyncio.run" in error.hint
            assert isinstance(error, InvalidRequest)
            assert not error.retriable
        async with asyncio.timeout(LATE_S):
            with pytest.raises(Closed, match="loop"):
                await opened.lingering

    asyncio.run(use_all())
    with pytest.raises(Closed, match="loop"):
        opened.lingering.result(LATE_S)


def test_a_loop_in_another_thread_gets_an_error_and_the_client_keeps_working(running: Opened) -> None:
    async def use_all() -> None:
        for name, use in USES.items():
            assert "another thread" in (await refused(use(running))).message, name

    asyncio.run(use_all())
    home = running.producer.loop
    assert asyncio.run_coroutine_threadsafe(running.client.send("t", b"2"), home).result(10).offset == 1


def test_a_delivery_may_be_awaited_on_any_loop(running: Opened) -> None:
    async def wait() -> int:
        async with asyncio.timeout(10):
            return (await running.lingering).offset

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(asyncio.run, wait())
        asyncio.run_coroutine_threadsafe(running.producer.flush(), running.producer.loop).result(10)
        assert waiting.result(10) == 1


def test_an_unused_client_may_be_used_on_any_loop() -> None:
    cluster = FakeCluster()
    cluster.add_topic("t")
    client = ClientCore(cluster.servers, connector=cluster, rng=random.Random(1))

    async def use() -> int:
        async with client:
            return (await client.send("t", b"0")).offset

    assert asyncio.run(use()) == 0
