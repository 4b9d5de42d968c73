"""Jobs become results while brokers are killed at random: each job has exactly one result."""

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
PARTITIONS = 2
JOBS = 200
LEFT_S = 120.0
SETTINGS = {
    "lease_ms": 4000,
    "ask_ms": 500,
    "session_ms": 3000,
    "rejoin_ms": 1000,
    "retry_ms": [10],
    "deliveries_max": 1000,
}

LeaderOf = Callable[[Cluster, int], int]
"""Finds the broker to kill. The arguments: the cluster, and a random number."""


def of_jobs(cluster: Cluster, number: int) -> int:
    return cluster.wait_leader("jobs", number % PARTITIONS)


def of_results(cluster: Cluster, number: int) -> int:
    return cluster.wait_leader("results", number % PARTITIONS)


def of_transactions(cluster: Cluster, number: int) -> int:
    return cluster.wait_leader("__coordinator", crc32(b"worker-%d" % (number % 2)) % 16)


def work(client: Client, name: str, done: threading.Event, rng: random.Random) -> None:
    """One worker. It is started again, as a supervisor would, when it fails. Sometimes it gives up half way."""
    while not done.is_set():
        try:
            with client.worker("jobs", group="workers", group_settings=SETTINGS) as worker:
                while not done.is_set():
                    jobs = worker.poll(timeout=0.5, max_records=7)
                    with client.transaction(name, transaction_timeout_ms=10_000) as tx:
                        tx.ack(*jobs)
                        for job in jobs:
                            tx.send("results", job.value, key=job.value)
                        if rng.random() < 0.1:
                            raise ValueError("half way")
        except (TinymqError, ValueError):
            continue


def test_each_job_has_one_result_whatever_is_killed(cluster: Cluster, mq: Client) -> None:
    rng, done = random.Random(5), threading.Event()
    for topic in ("jobs", "results"):
        mq.admin.create_topic(topic, partitions=PARTITIONS)
    for number in range(JOBS):
        mq.send("jobs", b"%d" % number, partition=number % PARTITIONS)
    mq.admin.create_group("workers", "jobs", kind="queue", settings=SETTINGS, exist_ok=True)
    clients = [cluster.client(attempt_timeout_ms=1000) for _ in range(2)]
    workers = [
        threading.Thread(target=work, args=(client, f"worker-{number}", done, random.Random(number)), daemon=True)
        for number, client in enumerate(clients)
    ]
    for worker in workers:
        worker.start()
    until_s = time.monotonic() + LEFT_S
    for leader_of in rng.sample([of_jobs, of_results, of_transactions] * 2, 6):
        killed = leader_of(cluster, rng.randrange(10))
        cluster.kill(killed)
        threading.Event().wait(rng.uniform(0.0, 1.0))
        cluster.start(killed)
    while sum(partition.lag for partition in mq.admin.group_lag("workers")):
        assert time.monotonic() < until_s, "the workers are stuck"
    done.set()
    for worker, client in zip(workers, clients, strict=True):
        worker.join(30.0)
        client.close()
    with mq.reader("results", end="latest") as reader:
        found = sorted(int(message.value or b"-1") for message in reader)
    assert found == list(range(JOBS))
