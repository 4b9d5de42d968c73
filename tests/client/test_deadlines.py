"""Every call ends by its deadline, whatever the brokers do: no attempt takes longer than the time that is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of, run
from tinymq.base.errors import DeadlineExceeded, OutcomeUnknown, TinymqError, Unavailable
from tinymq.client.facade.core.client_core import ClientCore

ATTEMPT_MS = 60_000.0  # a call that lasts as long as an attempt fails the test by its own deadline
ENOUGH_S = 5.0

BATCH = pa.table({"value": [b"a"]})

SILENT: dict[str, Callable[[ClientCore], Awaitable[Any]]] = {
    "send": lambda mq: mq.send("t", b""),
    "producer": lambda mq: mq.producer().send("t", b""),
    "batch": lambda mq: mq.producer().send_batch("t", BATCH),
    "poll": lambda mq: mq.reader("t").poll(),
    "create": lambda mq: mq.admin.create_topic("x"),
    "describe": lambda mq: mq.admin.describe_topic("t"),
    "offsets": lambda mq: mq.admin.offsets("t"),
    "status": lambda mq: mq.admin.cluster_status(),
}


@pytest.mark.parametrize("call", SILENT)
def test_request_timeout_bounds_a_call_on_a_cold_client(call: str) -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t")
        cluster.hung |= {1, 2, 3}
        async with client_of(cluster, attempt_timeout_ms=ATTEMPT_MS, request_timeout_ms=50) as mq:
            async with asyncio.timeout(ENOUGH_S):
                with pytest.raises(TinymqError):
                    await SILENT[call](mq)

    run(scenario())


@pytest.mark.parametrize("settings", [{"block_ms_max": 50}, {"delivery_timeout_ms": 50}, {"block_ms_max": 0}])
def test_the_producers_own_deadlines_bound_the_search_for_a_topic(settings: dict[str, Any]) -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.hung |= {1, 2, 3}
        request_ms = 50 if settings == {"block_ms_max": 0} else 60_000
        async with client_of(cluster, attempt_timeout_ms=ATTEMPT_MS, request_timeout_ms=request_ms) as mq:
            async with asyncio.timeout(ENOUGH_S):
                with pytest.raises(Unavailable):
                    await mq.producer(**settings).send("t", b"")

    run(scenario())


def test_the_lookup_of_a_topic_counts_to_the_delivery_timeout() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t")
        async with client_of(cluster, attempt_timeout_ms=ATTEMPT_MS, request_timeout_ms=60_000) as mq:
            producer = mq.producer(linger_ms=0, delivery_timeout_ms=1000)
            delivery = await producer.send("t", b"")
            (queue,) = producer.batcher.buffers.queues.values()
            batch = queue.open or (*queue.sealed, *queue.in_flight)[0]
            assert batch.deadline_s < batch.opened_s + 1.0, "from the send on, not from the batch's beginning"
            await delivery

    run(scenario())


def test_a_delivery_on_a_warm_producer_ends_by_its_deadline() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t")
        async with client_of(cluster, attempt_timeout_ms=ATTEMPT_MS) as mq:
            producer = mq.producer(linger_ms=0, delivery_timeout_ms=200)
            await (await producer.send("t", b""))
            cluster.hung |= {1, 2, 3}
            async with asyncio.timeout(ENOUGH_S):
                with pytest.raises((DeadlineExceeded, OutcomeUnknown)):
                    await (await producer.send("t", b""))

    run(scenario())
