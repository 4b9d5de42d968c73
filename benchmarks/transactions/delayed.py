"""Many messages that wait for their time: memory, disk, and how fast brokers come back with them. On tinymq alone."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import defaultdict
from datetime import timedelta
from typing import NamedTuple

from benchmarks.peers.contract import BROKERS, QUIET_S_MAX, REPLICAS, memory_mb
from benchmarks.peers.tinymq_servers import TinymqServers
from tinymq import Client, Producer

TOPIC = "later"
PARTITIONS = 20  # each of them takes 100,000 messages at most
SIZE = 1024
DELAY = timedelta(days=1)
DELIVERY_MS_MAX = 600_000.0  # the producer's buffer is minutes long on a busy machine
LOOK_S = 0.05
SAID_EVERY = 100_000


class Returns(NamedTuple):
    """Each broker was killed and started again, one after the other. Seconds, by broker."""

    failover_s: list[float]  # from the kill until every partition has acknowledged a record
    restart_s: list[float]  # from the start of the process until it serves and has caught up


class Delayed(NamedTuple):
    """What brokers need for messages that wait. Lists are by broker."""

    messages: int
    sent_s: float
    memory_before_mb: list[float]  # after a restart, as the last one
    memory_sent_mb: list[float]
    memory_restarted_mb: list[float]
    disk_bytes: list[int]  # that the messages added
    before: Returns
    after: Returns

    @property
    def disk_share(self) -> float:
        """Of the broker that has most, to the values' bytes."""
        return max(self.disk_bytes) / (self.messages * SIZE)


def measure(servers: TinymqServers, messages: int) -> Delayed:
    """Restart and failover come before and after the messages, on the same brokers."""
    with Client(servers.addresses) as client:
        client.admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=REPLICAS)
        before = _returns(servers, client)
        memory_before_mb, disk_before = memory_mb(servers.pids()), servers.stored_bytes()
        began_s = time.perf_counter()
        _send(client, messages)
        sent_s = time.perf_counter() - began_s
        memory_sent_mb, disk_sent = memory_mb(servers.pids()), servers.stored_bytes()
        after = _returns(servers, client)
    return Delayed(
        messages=messages,
        sent_s=sent_s,
        memory_before_mb=memory_before_mb,
        memory_sent_mb=memory_sent_mb,
        memory_restarted_mb=memory_mb(servers.pids()),
        disk_bytes=[sent - empty for sent, empty in zip(disk_sent, disk_before, strict=True)],
        before=before,
        after=after,
    )


def _send(client: Client, messages: int) -> None:
    """Raises NotDelivered unless all of them are stored."""
    value = os.urandom(SIZE)
    with client.producer(delivery_timeout_ms=DELIVERY_MS_MAX, block_ms_max=DELIVERY_MS_MAX) as producer:
        for number in range(messages):
            producer.send(TOPIC, value, delay=DELAY, partition=number % PARTITIONS)
            if number and number % SAID_EVERY == 0:
                print(f"{number:,} of {messages:,} delayed messages", file=sys.stderr)


def _returns(servers: TinymqServers, client: Client) -> Returns:
    found = Returns([], [])
    for broker, pid in zip(BROKERS, servers.pids(), strict=True):
        _wait_caught_up(client)
        with client.producer() as producer:
            _touch_all(producer)  # its connections are open
            killed_s = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            _touch_all(producer)
            found.failover_s.append(time.perf_counter() - killed_s)
        started_s = time.perf_counter()
        servers.revive(broker)
        _wait_caught_up(client)
        found.restart_s.append(time.perf_counter() - started_s)
    return found


def _touch_all(producer: Producer) -> None:
    """A record in every partition, acknowledged."""
    deliveries = [producer.send(TOPIC, b"x", partition=partition) for partition in range(PARTITIONS)]
    for delivery in deliveries:
        delivery.result(QUIET_S_MAX)


def _wait_caught_up(client: Client) -> None:
    """Until all replicas of the topic have the same end, durably."""
    deadline_s = time.monotonic() + QUIET_S_MAX
    while True:
        ends: dict[int, list[int]] = defaultdict(list)
        for broker in client.admin.cluster_status().brokers:
            for replica in broker.replicas:
                if replica.topic == TOPIC:
                    ends[replica.partition].append(replica.durable_index)
        if len(ends) == PARTITIONS and all(len(of) == REPLICAS and len(set(of)) == 1 for of in ends.values()):
            return
        assert time.monotonic() < deadline_s, f"replicas do not catch up: {dict(ends)}"
        time.sleep(LOOK_S)
