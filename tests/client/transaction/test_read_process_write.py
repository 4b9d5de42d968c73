"""Orders become enriched orders while brokers are killed at random: each one is there once, and totals are equal."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from zlib import crc32

import pytest

from tinymq import Client
from tinymq.base.errors import TinymqError
from tinymq.testing import Cluster

pytestmark = pytest.mark.long
PARTITIONS = 3
ORDERS = 300
LEFT_S = 120.0

LeaderOf = Callable[[Cluster, int], int]
"""Finds the broker to kill. The arguments: the cluster, and a random number."""


def of_input(cluster: Cluster, number: int) -> int:
    return cluster.wait_leader("raw", number % PARTITIONS)


def of_output(cluster: Cluster, number: int) -> int:
    return cluster.wait_leader("enriched", number % PARTITIONS)


def of_transactions(cluster: Cluster, number: int) -> int:
    return cluster.wait_leader("__coordinator", crc32(b"enricher-%d" % (number % 2)) % 16)


def of_group(cluster: Cluster, number: int) -> int:
    return cluster.wait_leader("__coordinator", crc32(b"enricher") % 16)


def enrich(client: Client, name: str, done: threading.Event) -> None:
    """One member: it is restarted, as a supervisor would, when it fails."""
    while not done.is_set():
        try:
            with client.consumer("raw", group="enricher", auto_commit=False) as consumer:
                while not done.is_set():
                    with client.transaction(name, transaction_timeout_ms=10_000) as tx:
                        tx.commit_offsets(consumer)
                        for message in consumer.poll(timeout=0.5, max_records=7):
                            order, amount = (message.value or b"").split(b":")
                            tx.send("enriched", b"%b:%d" % (order, 2 * int(amount)), key=order)
        except TinymqError:
            continue


def test_totals_are_equal_whatever_is_killed(cluster: Cluster, mq: Client) -> None:
    rng, done = random.Random(9), threading.Event()
    for topic in ("raw", "enriched"):
        mq.admin.create_topic(topic, partitions=PARTITIONS)
    amounts = [rng.randrange(1, 1000) for _ in range(ORDERS)]
    for number, amount in enumerate(amounts):
        mq.send("raw", b"%d:%d" % (number, amount), partition=number % PARTITIONS)
    mq.admin.create_group("enricher", "raw", kind="stream", exist_ok=True)
    clients = [cluster.client(attempt_timeout_ms=1000) for _ in range(2)]
    members = [
        threading.Thread(target=enrich, args=(client, f"enricher-{number}", done), daemon=True)
        for number, client in enumerate(clients)
    ]
    for member in members:
        member.start()
    until_s = time.monotonic() + LEFT_S
    for leader_of in rng.sample([of_input, of_output, of_transactions, of_group] * 2, 8):
        killed = leader_of(cluster, rng.randrange(10))
        cluster.kill(killed)
        threading.Event().wait(rng.uniform(0.0, 1.0))
        cluster.start(killed)
    while sum(partition.lag for partition in mq.admin.group_lag("enricher")):
        assert time.monotonic() < until_s, "the members are stuck"
    done.set()
    for member, client in zip(members, clients, strict=True):
        member.join(30.0)
        client.close()
    found: list[tuple[int, int]] = []
    with mq.reader("enriched", end="latest") as reader:
        for message in reader:
            order, amount = (message.value or b"").split(b":")
            found.append((int(order), int(amount)))
    assert sorted(found) == [(number, 2 * amount) for number, amount in enumerate(amounts)]
