"""The synchronous client for workloads: its calls block threads, and its callbacks run where workloads expect them."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator

import pytest

from tests.chaos.real.stand_in import StandIn
from tinymq.client import Message
from tinymq.testing.cluster import Cluster
from tinymq_chaos.real.product.system import ProductSystem, threaded_client
from tinymq_chaos.workloads.clients.threaded_client import ThreadedClient


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1) as cluster:
        yield cluster


def test_calls_block_threads_and_callbacks_run_on_the_loop(cluster: Cluster) -> None:
    seen: list[threading.Thread] = []

    async def main() -> None:
        client = threaded_client(cluster.servers, request_timeout_ms=10_000, rng=random.Random(1))
        await client.admin.create_topic("called", 1, 1)
        producer, ended = client.producer(linger_ms=0), asyncio.Event()
        delivery = await producer.send("called", b"one", partition=0)

        def note(done: object) -> None:
            seen.append(threading.current_thread())
            ended.set()

        delivery.add_done_callback(note)
        await ended.wait()
        assert (await delivery).offset == 0
        async with client.reader("called", start="earliest", end="latest") as reader:
            found: list[Message] = [message async for message in reader]
        assert [message.value for message in found] == [b"one"]
        await client.close()

    asyncio.run(main())
    assert seen == [threading.main_thread()]


def test_both_kinds_of_clients_are_drawn() -> None:
    target = StandIn()
    target.servers = "localhost:1"  # type: ignore[attr-defined]
    target.client = lambda **settings: None  # type: ignore[attr-defined]
    system = ProductSystem(target)  # type: ignore[arg-type]
    drawn = [type(system.client(rng=random.Random(seed))) for seed in range(20)]
    assert 5 <= drawn.count(ThreadedClient) <= 15
