"""nats-py: each workload has a connection and an event loop of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import nats
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from benchmarks.peers import pacing
from benchmarks.peers.contract import BATCH, QUIET_S_MAX, REPLICAS, Measured, Watch

if TYPE_CHECKING:
    from nats.js import JetStreamContext

PENDING_MAX = 4_000  # publishes without an answer, nats-py's own bound
PENDING_ACKS_MAX = 20_000
HANDLERS = 8  # of `passage`
POLL_S = 0.005


class NatsClient:
    """The workloads. A topic is one stream, whatever its partitions."""

    def __init__(self, servers: str) -> None:
        self._servers = servers.split(",")

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[JetStreamContext]:
        connection = await nats.connect(self._servers)
        try:
            yield connection.jetstream(timeout=QUIET_S_MAX, publish_async_max_pending=PENDING_MAX)
        finally:
            await connection.close()

    def make(self, topic: str, partitions: int) -> None:
        async def run() -> None:
            async with self._connected() as stream:
                await stream.add_stream(StreamConfig(name=topic, subjects=[topic], num_replicas=REPLICAS))

        asyncio.run(run())

    def produce(self, topic: str, records: int, size: int) -> Measured:
        async def run() -> Measured:
            async with self._connected() as stream:
                value = os.urandom(size)
                await stream.publish(topic, value)
                with Watch() as watch:
                    for _ in range(records - 1):
                        await stream.publish_async(topic, value, wait_stall=QUIET_S_MAX)
                    await stream.publish_async_completed()
                return watch.measured(records - 1)

        return asyncio.run(run())

    def lone(self, topic: str, records: int, size: int) -> Measured:
        async def run() -> Measured:
            async with self._connected() as stream:
                value = os.urandom(size)
                return await pacing.one_by_one(records, lambda: stream.publish(topic, value))

        return asyncio.run(run())

    def offer(self, topic: str, records: int, size: int, rate: float) -> Measured:
        async def run() -> Measured:
            async with self._connected() as stream:
                value = os.urandom(size)
                return await pacing.offered(records, rate, lambda: stream.publish(topic, value))

        return asyncio.run(run())

    def read(self, topic: str, records: int) -> Measured:
        """By an ordered push consumer, which acks nothing."""

        async def run() -> Measured:
            async with self._connected() as stream:
                found = await stream.subscribe(topic, ordered_consumer=True)
                await found.next_msg(QUIET_S_MAX)
                with Watch() as watch:
                    for _ in range(records - 1):
                        await found.next_msg(QUIET_S_MAX)
                return watch.measured(records - 1)

        return asyncio.run(run())

    def group_read(self, topic: str, records: int, group: str) -> Measured:
        """One ack for all of a fetch: a cumulative one."""
        return asyncio.run(self._pull(topic, records, group, AckPolicy.ALL))

    def work(self, topic: str, records: int, group: str) -> Measured:
        return asyncio.run(self._pull(topic, records, group, AckPolicy.EXPLICIT))

    async def _pull(self, topic: str, records: int, group: str, policy: AckPolicy) -> Measured:
        async with self._connected() as stream:
            config = ConsumerConfig(ack_policy=policy, max_ack_pending=PENDING_ACKS_MAX)
            pulled = await stream.pull_subscribe(topic, durable=group, config=config)
            (first,) = await pulled.fetch(1, QUIET_S_MAX)
            await first.ack_sync()
            found = 1
            with Watch() as watch:
                while found < records:
                    messages = await pulled.fetch(min(BATCH, records - found), QUIET_S_MAX)
                    found += len(messages)
                    for message in messages if policy is AckPolicy.EXPLICIT else messages[-1:]:
                        await message.ack()
                while (await pulled.consumer_info()).num_ack_pending:
                    await asyncio.sleep(POLL_S)
            return watch.measured(found - 1)

    def passage(self, topic: str, records: int, size: int, rate: float, group: str) -> Measured:
        async def run() -> Measured:
            took_s: list[float] = []

            async def handle() -> None:
                pulled = await stream.pull_subscribe(topic, durable=group)
                while True:
                    try:
                        (message,) = await pulled.fetch(1, 1.0)
                    except NatsTimeoutError:
                        continue
                    await message.ack_sync()
                    took_s.append(pacing.passed_s(message.data))

            async with self._connected() as stream:
                await stream.pull_subscribe(topic, durable=group)
                handlers = [asyncio.create_task(handle()) for _ in range(HANDLERS)]
                measured = await pacing.passed(records, size, rate, lambda value: stream.publish(topic, value), took_s)
                for handler in handlers:
                    handler.cancel()
                await asyncio.gather(*handlers, return_exceptions=True)
                return measured

        return asyncio.run(run())

    def close(self) -> None:
        """Nothing stays open between workloads."""
