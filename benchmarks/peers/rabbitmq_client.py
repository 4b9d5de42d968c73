"""aio-pika: each workload has a connection and an event loop of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aio_pika

from benchmarks.peers import pacing
from benchmarks.peers.contract import QUIET_S_MAX, Measured, Watch

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

INFLIGHT_MAX = 1_000  # publishes without a confirm
PREFETCH = 1_000
HANDLERS = 8  # of `passage`
ARGUMENTS = {"x-queue-type": "quorum"}


class RabbitClient:
    """The workloads. A topic is one quorum queue, whatever its partitions. A queue has no reader: `work` reads it."""

    def __init__(self, servers: str) -> None:
        self._server = servers.split(",")[0]

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AbstractChannel]:
        connection = await aio_pika.connect(self._server)
        try:
            yield await connection.channel(publisher_confirms=True)
        finally:
            await connection.close()

    def make(self, topic: str, partitions: int) -> None:
        async def run() -> None:
            async with self._connected() as channel:
                await channel.declare_queue(topic, durable=True, arguments=ARGUMENTS)

        asyncio.run(run())

    def produce(self, topic: str, records: int, size: int) -> Measured:
        async def run() -> Measured:
            async with self._connected() as channel:
                value, room = os.urandom(size), asyncio.Semaphore(INFLIGHT_MAX)

                async def one() -> None:
                    try:
                        await _publish(channel, topic, value)
                    finally:
                        room.release()

                await _publish(channel, topic, value)
                with Watch() as watch:
                    async with asyncio.TaskGroup() as tasks:
                        for _ in range(records - 1):
                            await room.acquire()
                            tasks.create_task(one())
                return watch.measured(records - 1)

        return asyncio.run(run())

    def lone(self, topic: str, records: int, size: int) -> Measured:
        async def run() -> Measured:
            async with self._connected() as channel:
                value = os.urandom(size)
                return await pacing.one_by_one(records, lambda: _publish(channel, topic, value))

        return asyncio.run(run())

    def offer(self, topic: str, records: int, size: int, rate: float) -> Measured:
        async def run() -> Measured:
            async with self._connected() as channel:
                value = os.urandom(size)
                return await pacing.offered(records, rate, lambda: _publish(channel, topic, value))

        return asyncio.run(run())

    def work(self, topic: str, records: int, group: str) -> Measured:
        async def run() -> Measured:
            async with self._connected() as channel:
                await channel.set_qos(prefetch_count=PREFETCH)
                queue = await channel.get_queue(topic, ensure=False)
                done, found = asyncio.Event(), 0

                async def handle(message: AbstractIncomingMessage) -> None:
                    nonlocal found
                    await message.ack()
                    found += 1
                    if found == records:
                        done.set()

                with Watch() as watch:
                    await queue.consume(handle)
                    await asyncio.wait_for(done.wait(), QUIET_S_MAX * 5)
                    await channel.close()  # answered after the acks before it
                return watch.measured(records)

        return asyncio.run(run())

    def passage(self, topic: str, records: int, size: int, rate: float, group: str) -> Measured:
        async def run() -> Measured:
            took_s: list[float] = []

            async def handle(message: AbstractIncomingMessage) -> None:
                await message.ack()
                took_s.append(pacing.passed_s(message.body))

            async with self._connected() as channel, await aio_pika.connect(self._server) as taking:
                for _ in range(HANDLERS):
                    taker = await taking.channel()
                    await taker.set_qos(prefetch_count=1)
                    await (await taker.get_queue(topic, ensure=False)).consume(handle)
                return await pacing.passed(records, size, rate, lambda value: _publish(channel, topic, value), took_s)

        return asyncio.run(run())

    def close(self) -> None:
        """Nothing stays open between workloads."""


async def _publish(channel: AbstractChannel, topic: str, value: bytes) -> None:
    message = aio_pika.Message(value, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    await channel.default_exchange.publish(message, topic)
