"""tinymq's own client: the synchronous one where one thread works, and the asynchronous one where many wait."""

from __future__ import annotations

import asyncio
import os
import time

from benchmarks.peers import pacing
from benchmarks.peers.contract import REPLICAS, Measured, Watch
from benchmarks.peers.tinymq_transactions import TinymqTransactions, one_by_one
from tinymq import AsyncClient, AsyncWorker, Client
from tinymq.base.errors import LeaseLost

WORKERS = 8  # of `passage`: each has one record in hand, and waits for its ack
PREFETCH = 1_000


class TinymqClient:
    """The workloads."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._client = Client(servers)
        self._transactions = TinymqTransactions(self._client)
        self._runner = asyncio.Runner()  # one loop for all workloads: gRPC's own threads know the first one only

    def make(self, topic: str, partitions: int) -> None:
        self._client.admin.create_topic(topic, partitions=partitions, replication_factor=REPLICAS)

    def produce(self, topic: str, records: int, size: int) -> Measured:
        value = os.urandom(size)
        with self._client.producer() as producer:
            producer.send(topic, value).result()
            send = producer.send
            with Watch() as watch:
                for _ in range(records - 1):
                    send(topic, value)
                producer.flush()
        return watch.measured(records - 1)

    def lone(self, topic: str, records: int, size: int) -> Measured:
        value, took_s = os.urandom(size), []
        self._client.send(topic, value)
        with Watch() as watch:
            for _ in range(records):
                began_s = time.perf_counter()
                self._client.send(topic, value)
                took_s.append(time.perf_counter() - began_s)
        return watch.measured(records, took_s)

    def offer(self, topic: str, records: int, size: int, rate: float) -> Measured:
        async def run() -> Measured:
            value = os.urandom(size)
            async with AsyncClient(self._servers) as client:
                return await pacing.offered(records, rate, lambda: client.send(topic, value))

        return self._runner.run(run())

    def read(self, topic: str, records: int) -> Measured:
        with self._client.reader(topic) as reader:
            next(reader)
            with Watch() as watch:
                for number, _message in enumerate(reader, 2):
                    if number == records:
                        break
        return watch.measured(records - 1)

    def group_read(self, topic: str, records: int, group: str) -> Measured:
        with self._client.consumer(topic, group=group) as consumer:
            next(consumer)  # the group is made, and its partitions are assigned
            with Watch() as watch:
                for number, _message in enumerate(consumer, 2):
                    if number == records:
                        break
                consumer.commit()
        return watch.measured(records - 1)

    def work(self, topic: str, records: int, group: str) -> Measured:
        with self._client.worker(topic, group=group, prefetch_records=PREFETCH) as worker:
            first = worker.poll(max_records=records - 1)  # what is here when the clock starts does not count
            for job in first:
                job.ack()
            with Watch() as watch:
                for number, job in enumerate(worker, len(first) + 1):
                    job.ack()
                    if number == records:
                        break
                worker.flush()
        return watch.measured(records - len(first))

    def passage(self, topic: str, records: int, size: int, rate: float, group: str) -> Measured:
        async def run() -> Measured:
            took_s: list[float] = []
            async with AsyncClient(self._servers) as client:
                workers = [client.worker(topic, group=group, prefetch_records=1) for _ in range(WORKERS)]
                await asyncio.gather(*(worker.open() for worker in workers))
                handlers = [asyncio.create_task(_handle(worker, took_s)) for worker in workers]
                measured = await pacing.passed(records, size, rate, lambda value: client.send(topic, value), took_s)
                for handler in handlers:
                    handler.cancel()
                await asyncio.gather(*handlers, *(worker._core.leave() for worker in workers), return_exceptions=True)
            return measured

        return self._runner.run(run())

    def transactions(self, topic: str, partitions: int, transactions: int, records: int, size: int) -> Measured:
        return self._runner.run(one_by_one(self._servers, topic, partitions, transactions, records, size))

    def transact(self, topic: str, records: int, size: int, batch: int) -> Measured:
        return self._transactions.transact(topic, records, size, batch)

    def flushed(self, topic: str, records: int, size: int, batch: int) -> Measured:
        return self._transactions.flushed(topic, records, size, batch)

    def tables(self, topic: str, records: int) -> Measured:
        return self._transactions.tables(topic, records)

    def process(self, source: str, target: str, records: int, batch: int) -> Measured:
        return self._transactions.process(source, target, records, batch)

    def close(self) -> None:
        self._client.close()
        self._runner.close()


async def _handle(worker: AsyncWorker, took_s: list[float]) -> None:
    """Take one job after the other, and wait for each ack. What was lost comes again, to any worker."""
    async for job in worker:
        job.ack()
        try:
            await worker.flush()
        except LeaseLost:
            continue
        took_s.append(pacing.passed_s(job.value))
