"""The gain of topics in memory and topics synced at intervals: their logs alone, and in a cluster, in turns.

    python -m benchmarks.storages [--rounds 5]

For one log it measures processor time per entry, which other work on the machine changes least; for a cluster, single
writes and whole batches.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.bench import cluster
from benchmarks.measure import BATCH_BYTES, MIB, RECORD_BYTES, Latency
from benchmarks.tinymq_rounds import BATCHES_MADE, BUFFER_BATCHES, make_batch
from tinymq import Client
from tinymq.base.clock import SystemClock
from tinymq.base.config import Limits
from tinymq.base.topic_config import make
from tinymq.base.types import GroupId, TopicId
from tinymq.format.entry import Entry, Kind, NewEntry, make_entry
from tinymq.log import InlineRunner, Log, RealFiles, Store, log_config

LONE_WRITES = 300  # per round
BATCHES = 64
STORAGES: dict[str, dict[str, str]] = {
    "storage=disk sync=always": {},
    "storage=disk sync=100": {"sync": "100"},
    "storage=memory": {"storage": "memory", "max_bytes": str(768 * MIB)},
}


def write_alone(client: Client, topic: str) -> Latency:
    value, took = os.urandom(RECORD_BYTES), []
    client.send(topic, value)
    for _ in range(LONE_WRITES):
        started = time.perf_counter()
        client.send(topic, value)
        took.append(time.perf_counter() - started)
    return Latency.of(took)


def write_bulk(client: Client, topic: str) -> float:
    """MB/s of values."""
    batches = [make_batch() for _ in range(BATCHES_MADE)]
    with client.producer(buffer_bytes_max=BUFFER_BATCHES * MIB) as producer:
        producer.send_batch(topic, batches[0].slice(0, 1)).result()  # opens the streams
        started = time.perf_counter()
        deliveries = [producer.send_batch(topic, batches[i % BATCHES_MADE]) for i in range(BATCHES)]
        for delivery in deliveries:
            delivery.result()
        return BATCHES * BATCH_BYTES / (time.perf_counter() - started) / 1e6


async def one_log(settings: dict[str, str], payload: bytes, count: int) -> float:
    """Microseconds of processor time until an entry counts, one at a time; disk work runs in the calling thread."""
    with tempfile.TemporaryDirectory(prefix="tinymq-bench-") as folder:
        limits, group = Limits(), GroupId(TopicId(b"t" * 16), 0)
        files = RealFiles(Path(folder))
        store = await Store.open(files, InlineRunner(), SystemClock(), broker_id=1, limits=limits, rng=random.Random(1))
        config = log_config(make(settings.items()), limits)
        log = (await store.open_log(group, _entry(None, b""), config)).log
        started = time.process_time()
        for _ in range(count):
            log.append([_entry(log, payload)])
            while log.durable_index < log.last_index:
                await asyncio.sleep(0)
            log.note_applied(log.last_index)
        took = time.process_time() - started
        await store.close()
    return took / count * 1e6


def _entry(log: Log | None, payload: bytes) -> Entry:
    index, crc, offset = (1, 0, 0) if log is None else (log.last_index + 1, log.last_crc, log.next_offset)
    return make_entry(
        NewEntry(Kind.CONFIG if log is None else Kind.DATA, payload, record_count=int(log is not None)),
        index=index,
        term=0,
        prev_crc=crc,
        base_offset=offset,
        append_time_us=1,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    alone: dict[str, list[Latency]] = {name: [] for name in STORAGES}
    bulk: dict[str, list[float]] = {name: [] for name in STORAGES}
    with tempfile.TemporaryDirectory(prefix="tinymq-bench-") as folder, cluster(Path(folder)) as servers:
        client = Client(servers)
        for at, settings in enumerate(STORAGES.values()):
            client.admin.create_topic(f"topic-{at}", 1, 3, settings=settings)
        for number in range(rounds + 1):
            for at, name in enumerate(STORAGES):
                results = write_alone(client, f"topic-{at}"), write_bulk(client, f"topic-{at}")
                if number:  # the first of each does not count
                    alone[name].append(results[0])
                    bulk[name].append(results[1])
        client.close()
    for name, settings in STORAGES.items():
        small, large = (
            statistics.median(asyncio.run(one_log(settings, os.urandom(size), count)) for _ in range(rounds))
            for size, count in ((300, 2000), (MIB, 64))
        )
        print(f"{name:26} one log: {small:.0f} us per entry of 300 B, {large:.0f} us per MiB")
    for name in STORAGES:
        p50, p99 = (statistics.median(getattr(each, which) for each in alone[name]) for which in ("p50_ms", "p99_ms"))
        print(f"{name:26} lone write p50 {p50:.2f} ms, p99 {p99:.2f} ms; {statistics.median(bulk[name]):.0f} MB/s")


if __name__ == "__main__":
    main()
