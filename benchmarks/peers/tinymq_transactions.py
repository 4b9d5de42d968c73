"""tinymq's transactions, and the same steps without them: records one by one, as most programs send them."""

from __future__ import annotations

import asyncio
import os
import time

from benchmarks.peers.contract import QUIET_S_MAX, Measured, Watch
from tinymq import AsyncClient, AsyncReader, Client

TABLE_RECORDS = 16_000
POLLED = 1_000


class TinymqTransactions:
    """The workloads of transactions, on the client of TinymqClient. Each topic has a transactional id of its name."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def transact(self, topic: str, records: int, size: int, batch: int) -> Measured:
        """Records in transactions of `batch`, one after the other. A first one, of one record, does not count."""
        client, value = self._client, os.urandom(size)
        with client.transaction(topic) as tx:
            tx.send(topic, value)
        with Watch() as watch:
            for sent in range(0, records, batch):
                with client.transaction(topic) as tx:
                    send = tx.send
                    for _ in range(min(batch, records - sent)):
                        send(topic, value)
        return watch.measured(records)

    def flushed(self, topic: str, records: int, size: int, batch: int) -> Measured:
        """The same without transactions: after each `batch`, wait until all is acknowledged."""
        value = os.urandom(size)
        with self._client.producer() as producer:
            producer.send(topic, value).result()
            send = producer.send
            with Watch() as watch:
                for sent in range(0, records, batch):
                    for _ in range(min(batch, records - sent)):
                        send(topic, value)
                    producer.flush()
        return watch.measured(records)

    def tables(self, topic: str, records: int) -> Measured:
        """Read as Arrow tables, which are counted and dropped."""
        found = 0
        with self._client.reader(topic) as reader:
            first = reader.to_arrow(limit=1).num_rows
            with Watch() as watch:
                while found < records - first:
                    found += reader.to_arrow(limit=TABLE_RECORDS).num_rows
        return watch.measured(found)

    def process(self, source: str, target: str, records: int, batch: int) -> Measured:
        """Copy a topic, `batch` records in a transaction with their offsets. The first one does not count: the
        partitions are assigned in it.
        """
        client = self._client
        with client.consumer(source, group=target, auto_commit=False) as consumer:

            def run(count: int) -> None:
                with client.transaction(target) as tx:
                    tx.commit_offsets(consumer)
                    send, taken = tx.send, 0
                    while taken < count:
                        messages = consumer.poll(QUIET_S_MAX, min(POLLED, count - taken))
                        assert messages, "no record arrives"
                        for message in messages:
                            send(target, message.value, key=message.key)
                        taken += len(messages)

            run(batch)
            with Watch() as watch:
                for done in range(batch, records, batch):
                    run(min(batch, records - done))
        return watch.measured(records - batch)


async def one_by_one(servers: str, topic: str, partitions: int, transactions: int, records: int, size: int) -> Measured:
    """Transactions of `records`, each timed until a reader has all of its records. The first does not count."""
    value, took_s = os.urandom(size), []
    async with AsyncClient(servers) as client, client.reader(topic) as reader:
        await _seen(client, reader, topic, partitions, records, value)
        with Watch() as watch:
            for _ in range(transactions):
                began_s = time.perf_counter()
                await _seen(client, reader, topic, partitions, records, value)
                took_s.append(time.perf_counter() - began_s)
    return watch.measured(transactions * records, took_s)


async def _seen(
    client: AsyncClient, reader: AsyncReader, topic: str, partitions: int, records: int, value: bytes
) -> None:
    """One transaction, until the reader has its records. The decision is enough: the reader waits for the rest."""
    tx = client.transaction(topic)
    await tx.begin()
    for row in range(records):
        await tx.send(topic, value, partition=row % partitions)
    await tx.commit(wait="decided")
    found = 0
    async with asyncio.timeout(QUIET_S_MAX):
        while found < records:
            found += len(await reader.poll())
