"""The cost of metrics: one broker in this process writes with its meter on and off in turns, and the meter runs alone.

    python -m benchmarks.metering [--rounds 15]

The figures are processor time of client and broker together, which other programs on the machine change least. With a
single broker they contain little else; with followers the meter's share is smaller.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from tinymq.base.clock import SystemClock
from tinymq.base.meter import Meter, Unmetered
from tinymq.metrics.measures import Measures
from tinymq.testing import Cluster

LONE = 300  # writes per round, one at a time
BATCHES = 1500  # of one record each per round, in flight together
CALLS = 200_000
TOPIC = "t"
NAMES = ("off", "on")


def alone(meter: Meter) -> float:
    """Microseconds of the meter per batch: two readings of the clock, and the reports."""
    topic = os.urandom(16)
    started = time.process_time()
    for _ in range(CALLS):
        arrived_s, appended_s = meter.now(), meter.now()
        meter.produced(topic, 1024, 1, arrived_s, appended_s)
    return (time.process_time() - started) / CALLS * 1e6


def write(cluster: Cluster, meter: Meter) -> tuple[float, float]:
    """µs per lone write, and per batch of many; with a new client, because a stream keeps its meter."""
    cluster.brokers[1].serving.meter = meter
    client = cluster.client()
    value = os.urandom(1024)
    client.send(TOPIC, value)
    started = time.process_time()
    for _ in range(LONE):
        client.send(TOPIC, value)
    lone_s = time.process_time() - started
    with client.producer(linger_ms=0, batch_bytes_max=1) as producer:  # every record is a batch
        producer.send(TOPIC, b"").result()
        started = time.process_time()
        for _ in range(BATCHES):
            producer.send(TOPIC, b"")
        producer.flush()
        many_s = time.process_time() - started
    client.close()
    return lone_s / LONE * 1e6, many_s / BATCHES * 1e6


def _in_turns(cluster: Cluster, meters: list[Meter], first: int) -> list[tuple[float, float]]:
    """Run one round with each meter, in the given order."""
    done = {which: write(cluster, meters[which]) for which in (first, 1 - first)}
    return [done[which] for which in range(len(meters))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    makers: tuple[Callable[[], Meter], ...] = (Unmetered, lambda: Measures(CollectorRegistry(), SystemClock()))
    meters = [make() for make in makers]
    costs = [[alone(meter) for meter in meters] for _ in range(5)]
    with Cluster(1) as cluster:
        cluster.client().admin.create_topic(TOPIC, partitions=1, replication_factor=1)
        for meter in meters:  # warm
            write(cluster, meter)
        taken = [_in_turns(cluster, meters, first=round_ % 2) for round_ in range(rounds)]
    for which, name in enumerate(NAMES):
        lone, many = ([each[which][what] for each in taken] for what in (0, 1))
        print(
            f"meter {name:3}: {statistics.median(each[which] for each in costs):5.2f} µs of its own; "
            f"a lone write {statistics.median(lone):6.1f} µs ({min(lone):.1f} to {max(lone):.1f}), "
            f"a batch of many {statistics.median(many):6.1f} µs ({min(many):.1f} to {max(many):.1f})"
        )
    more = [statistics.median(each[1][what] / each[0][what] for each in taken) for what in (0, 1)]
    print(f"on / off, median of {rounds} pairs: a lone write {more[0]:.3f}, a batch of many {more[1]:.3f}")


if __name__ == "__main__":
    main()
