"""The rounds of `python -m benchmarks.client_cpu`, in a process of their own: one for each tree that is compared.

Run as a file, with PYTHONPATH naming the tree whose `tinymq` is measured. So it imports nothing else of the repository,
and it uses only public names that an older tree has, too.

    line in: {"workload": NAME, "records": N}    line out: {"ns": processor time of the client per record}
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sized

from tinymq import AsyncClient, Client

SMALL_BYTES = 100
LARGE_BYTES = 1024
POLLED_RECORDS = 1000
TABLE_RECORDS = 16_000
LARGE_SHARE = 4  # a round of large records reads one of so many
LONE_SHARE = 200  # and one that waits for each record sends one of so many
CALLERS_SHARE = 10
SENT_BYTES_MAX = 1 << 28  # kept of what the rounds send

Measure = Callable[[int], "tuple[int, int]"]


class Rounds:
    """Each method is one round. It returns (nanoseconds of processor time, records)."""

    def __init__(self, servers: str, written: int) -> None:
        """`written`: records in the topics that are read."""
        self._servers = servers
        self._client = Client(servers)
        self._name = f"cpu-{os.getpid()}"
        self._groups = itertools.count()
        self._value = os.urandom(SMALL_BYTES)
        create = self._client.admin.create_topic
        sent_to = {"storage": "memory", "max_bytes": SENT_BYTES_MAX, "on_full": "drop_oldest"}
        self._sent = create(f"{self._name}-sent", replication_factor=1, settings=sent_to).name
        self._small = create(f"{self._name}-small", replication_factor=1).name
        self._large = create(f"{self._name}-large", replication_factor=1).name
        with self._client.producer() as producer:
            for number in range(written):
                producer.send(self._small, self._value)
                if number % LARGE_SHARE == 0:
                    producer.send(self._large, os.urandom(LARGE_BYTES))

    def send(self, records: int) -> tuple[int, int]:
        """Producer.send, until the last acknowledgement."""
        return self._send(records, lambda send, topic, value: [send(topic, value) and None for _ in range(records)])

    def send_keyed(self, records: int) -> tuple[int, int]:
        """The same with keys."""
        keys = [b"key-%d" % number for number in range(records)]
        return self._send(records, lambda send, topic, value: [send(topic, value, key=key) and None for key in keys])

    def _send(self, records: int, work: Callable[..., object]) -> tuple[int, int]:
        with self._client.producer() as producer:
            producer.send(self._sent, self._value).result()
            started = time.process_time_ns()
            work(producer.send, self._sent, self._value)
            producer.flush()
            return time.process_time_ns() - started, records

    def lone(self, records: int) -> tuple[int, int]:
        """Client.send, one record at a time."""
        count = max(1, records // LONE_SHARE)
        self._client.send(self._sent, self._value)
        started = time.process_time_ns()
        for _ in range(count):
            self._client.send(self._sent, self._value)
        return time.process_time_ns() - started, count

    def iterate(self, records: int) -> tuple[int, int]:
        """`for message in reader`."""
        with self._client.reader(self._small) as reader:
            started, found = time.process_time_ns(), 0
            for _ in reader:
                found += 1
                if found == records:
                    break
            return time.process_time_ns() - started, found

    def poll(self, records: int) -> tuple[int, int]:
        """Reader.poll by 1,000."""
        with self._client.reader(self._small) as reader:
            return self._polled(records, lambda: reader.poll(max_records=POLLED_RECORDS))

    def queue_poll(self, records: int) -> tuple[int, int]:
        """Queue.poll by 1,000, with its commits."""
        with self._client.queue(self._small, channel=f"c{next(self._groups)}") as queue:
            return self._polled(records, lambda: queue.poll(POLLED_RECORDS, timeout=None))

    def group(self, records: int) -> tuple[int, int]:
        """`for message in consumer`, of a stream group, with its commits."""
        with self._client.consumer(self._small, group=f"{self._name}-{next(self._groups)}") as consumer:
            started, found = time.process_time_ns(), 0
            for _ in consumer:
                found += 1
                if found == records:
                    break
            return time.process_time_ns() - started, found

    def group_poll(self, records: int) -> tuple[int, int]:
        """Consumer.poll by 1,000."""
        with self._client.consumer(self._small, group=f"{self._name}-{next(self._groups)}") as consumer:
            return self._polled(records, lambda: consumer.poll(max_records=POLLED_RECORDS))

    def _polled(self, records: int, poll: Callable[[], Sized]) -> tuple[int, int]:
        started, found = time.process_time_ns(), 0
        while found < records:
            found += len(poll())
        return time.process_time_ns() - started, found

    def arrow(self, records: int) -> tuple[int, int]:
        """Reader.to_arrow of 1 KiB records, by 16,000; the tables are dropped."""
        count, found = records // LARGE_SHARE, 0
        with self._client.reader(self._large) as reader:
            started = time.process_time_ns()
            while found < count:
                found += reader.to_arrow(limit=TABLE_RECORDS).num_rows
            return time.process_time_ns() - started, found

    def async_send(self, records: int) -> tuple[int, int]:
        """AsyncProducer.send, until the last acknowledgement."""

        async def sent(client: AsyncClient) -> tuple[int, int]:
            async with client.producer() as producer:
                await (await producer.send(self._sent, self._value))
                started = time.process_time_ns()
                for _ in range(records):
                    await producer.send(self._sent, self._value)
                await producer.flush()
                return time.process_time_ns() - started, records

        return self._async(sent)

    def async_64(self, records: int) -> tuple[int, int]:
        """64 tasks that call AsyncClient.send one after another."""
        return self._called(records // CALLERS_SHARE, 64)

    def async_1000(self, records: int) -> tuple[int, int]:
        """1,000 tasks that do."""
        return self._called(records // CALLERS_SHARE, 1000)

    def _called(self, records: int, callers: int) -> tuple[int, int]:
        async def called(client: AsyncClient) -> tuple[int, int]:
            each = max(1, records // callers)

            async def caller() -> None:
                for _ in range(each):
                    await client.send(self._sent, self._value)

            await client.send(self._sent, self._value)
            started = time.process_time_ns()
            await asyncio.gather(*(caller() for _ in range(callers)))
            return time.process_time_ns() - started, each * callers

        return self._async(called)

    def async_iterate(self, records: int) -> tuple[int, int]:
        """`async for message in reader`."""

        async def iterated(client: AsyncClient) -> tuple[int, int]:
            async with client.reader(self._small) as reader:
                started, found = time.process_time_ns(), 0
                async for _ in reader:
                    found += 1
                    if found == records:
                        break
                return time.process_time_ns() - started, found

        return self._async(iterated)

    def _async(self, work: Callable[[AsyncClient], Awaitable[tuple[int, int]]]) -> tuple[int, int]:
        async def run() -> tuple[int, int]:
            async with AsyncClient(self._servers) as client:
                return await work(client)

        return asyncio.run(run())

    def close(self) -> None:
        self._client.close()


def main() -> None:
    """Run the rounds that standard input names, until it ends."""
    rounds = Rounds(sys.argv[1], int(sys.argv[2]))
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            measure: Measure = getattr(rounds, asked["workload"])
            ns, records = measure(asked["records"])
            print(json.dumps({"ns": ns / records}), flush=True)
    finally:
        rounds.close()


if __name__ == "__main__":
    main()
