"""tinymq's rounds, through its public client. `make bench` runs them through driver.py. Every round of bulk writes has
its own topic, which the next round of reads reads back; nothing is deleted between rounds. Batches are created before
the clock starts, like the bare limit's messages.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from benchmarks.driver import serve
from benchmarks.measure import BATCH_RECORDS, MIB, RECORD_BYTES, Latency, Round
from tinymq import AsyncClient, BatchDelivery, Client, Delivery, Message

BUFFER_BATCHES = 8  # not yet acknowledged, as at the bare limit
READ_RECORDS = 16_000  # in one table
SMALL_RECORD_BYTES = 100
POLLED_RECORDS = 1000  # in one poll, at most
SAMPLED_EVERY = 1000  # small records whose acknowledgement is timed
BATCHES_MADE = 4  # different ones, sent in turn

T = TypeVar("T")


def make_batch() -> pa.RecordBatch:
    """Create 1,000 records of 1 KiB that do not compress, without keys."""
    values = pa.array([os.urandom(RECORD_BYTES) for _ in range(BATCH_RECORDS)], pa.binary())
    return pa.RecordBatch.from_arrays([values], ["value"])


class Rounds:
    """Each method is one round, on the synchronous client. Topics have one partition, three replicas."""

    def __init__(self, servers: str, *, switch_interval_ms: float | None = None) -> None:
        self._client = Client(servers, switch_interval_ms=switch_interval_ms)
        self._suffix = "" if switch_interval_ms is None else f"-{switch_interval_ms:g}ms"  # of its topics
        self._batches = [make_batch() for _ in range(BATCHES_MADE)]
        self._written: list[str] = []  # topics of bulk rounds; the last one is read back
        self._alone = self._topic("alone")
        self._small = self._topic("small")
        self._channels = 0

    def write_bulk(self, batches: int) -> Round:
        """Send whole Arrow batches by send_batch. Measures MB/s of values, and the time from each call to its
        acknowledgement.
        """
        topic = self._topic(f"bulk-{len(self._written)}")
        self._written.append(topic)
        took: list[float] = []

        def timed(started: float) -> Callable[[BatchDelivery], None]:
            return lambda delivery: took.append(time.perf_counter() - started)

        with self._client.producer(buffer_bytes_max=BUFFER_BATCHES * MIB) as producer:
            producer.send_batch(topic, self._batches[0].slice(0, 1)).result()  # opens the streams
            started = time.perf_counter()
            deliveries = []
            for i in range(batches):
                called = time.perf_counter()
                delivery = producer.send_batch(topic, self._batches[i % BATCHES_MADE])
                delivery.add_done_callback(timed(called))
                deliveries.append(delivery)
            parts = [delivery.result() for delivery in deliveries]
            elapsed = time.perf_counter() - started
        assert all(len(part) == 1 for part in parts), (
            "the producer split a batch, so the round would measure something else"
        )
        return Round(batches * BATCH_RECORDS * RECORD_BYTES / elapsed / 1e6, Latency.of(took))

    def write_alone(self, records: int) -> Round:
        """Client.send, one record at a time. Measures records per second."""
        value = os.urandom(RECORD_BYTES)
        self._client.send(self._alone, value)
        took = []
        for _ in range(records):
            started = time.perf_counter()
            self._client.send(self._alone, value)
            took.append(time.perf_counter() - started)
        return Round(records / sum(took), Latency.of(took))

    def read(self, batches: int) -> Round:
        """Read the topic that was written last, as Arrow tables that are counted and dropped. Measures MB/s of values.
        It builds no single table, because the bare limit keeps nothing either, and new memory costs more than reading.
        """
        expected, found = batches * BATCH_RECORDS + 1, 0
        started = time.perf_counter()
        with self._client.reader(self._written[-1]) as reader:
            while found < expected:
                rows = reader.to_arrow(limit=READ_RECORDS).num_rows
                assert rows, f"{found} records read, {expected} written"
                found += rows
        elapsed = time.perf_counter() - started
        assert found == expected, f"{found} records read, {expected} written"
        return Round(found * RECORD_BYTES / elapsed / 1e6)

    def write_small(self, records: int) -> Round:
        """Producer.send of 100 B, until the last acknowledgement. Measures records per second."""
        value = os.urandom(SMALL_RECORD_BYTES)
        took: list[float] = []

        def timed(started: float) -> Callable[[Delivery], None]:
            return lambda delivery: took.append(time.perf_counter() - started)

        with self._client.producer() as producer:
            producer.send(self._small, value).result()
            send, topic = producer.send, self._small
            started = time.perf_counter()
            for start in range(0, records, SAMPLED_EVERY):
                send(topic, value).add_done_callback(timed(time.perf_counter()))
                for _ in range(min(SAMPLED_EVERY, records - start) - 1):
                    send(topic, value)
            producer.flush()
            elapsed = time.perf_counter() - started
        return Round(records / elapsed, Latency.of(took))

    def read_small(self, records: int) -> Round:
        """Read these records back as messages, by Reader.poll. Measures records per second."""
        with self._client.reader(self._small) as reader:
            return self._polled(records, lambda: reader.poll(max_records=POLLED_RECORDS))

    def poll_small(self, records: int) -> Round:
        """The same by Queue.poll with a new channel, whose commits run in the background. Measures records
        per second.
        """
        self._channels += 1
        with self._client.queue(self._small, channel=f"c{self._channels}") as queue:
            return self._polled(records, lambda: queue.poll(POLLED_RECORDS, timeout=None))

    def _polled(self, records: int, poll: Callable[[], list[Message]]) -> Round:
        found, started = 0, time.perf_counter()
        while found < records:
            found += len(poll())
        return Round(found / (time.perf_counter() - started))

    def _topic(self, name: str) -> str:
        return self._client.admin.create_topic(name + self._suffix, partitions=1, replication_factor=3).name

    def close(self) -> None:
        self._client.close()


async def write_alone_async(servers: str, records: int) -> Round:
    """Like Rounds.write_alone, but on AsyncClient: without the change to another thread and back."""
    value = os.urandom(RECORD_BYTES)
    took = []
    async with AsyncClient(servers) as client:
        await client.send("alone", value)
        for _ in range(records):
            started = time.perf_counter()
            await client.send("alone", value)
            took.append(time.perf_counter() - started)
    return Round(records / sum(took), Latency.of(took))


async def run(args: argparse.Namespace) -> None:
    if args.asynchronous:
        await serve({"write_alone": lambda count: write_alone_async(args.servers, count)})
        return
    rounds = await asyncio.to_thread(Rounds, args.servers, switch_interval_ms=args.switch_interval_ms)

    def on_thread(method: Callable[[int], Round]) -> Callable[[int], asyncio.Future[Round]]:
        return lambda count: asyncio.ensure_future(asyncio.to_thread(method, count))

    try:
        bulk, small = (rounds.write_bulk, rounds.read), (rounds.write_small, rounds.read_small, rounds.poll_small)
        methods = (*bulk, rounds.write_alone, *small)
        await serve({method.__name__: on_thread(method) for method in methods})
    finally:
        await asyncio.to_thread(rounds.close)


def main() -> None:
    parser = argparse.ArgumentParser(description="tinymq's rounds; started by benchmarks.bench.")
    parser.add_argument("--servers", required=True)
    parser.add_argument("--serve", action="store_true", help="run what standard input names, round by round")
    parser.add_argument("--asynchronous", action="store_true", help="on AsyncClient")
    parser.add_argument("--switch-interval-ms", type=float, help="of the synchronous client; Python's own by default")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
