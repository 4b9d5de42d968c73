"""Many idle groups, and many records that wait for their retry: processor time, memory, lateness. On tinymq alone."""

from __future__ import annotations

import asyncio
import os
import time
from typing import NamedTuple

from benchmarks.peers.contract import QUIET_S_MAX, REPLICAS, cpu_s, memory_mb
from benchmarks.peers.tinymq_servers import TinymqServers
from tinymq import AsyncClient, Client, Worker
from tinymq.base.errors import LeaseLost

GROUPS = 1_000
IDLE_S = 10.0
MAKING_MAX = 32  # groups that are made at the same time
PARTITIONS = 128
SIZE = 100
POLLED = 5_000


class IdleGroups(NamedTuple):
    """Processor time of each broker, in parts of a core."""

    before: list[float]
    after: list[float]
    made_s: float  # until all groups were there


class Waiting(NamedTuple):
    """Records that all wait for their retry at the same time, and come back."""

    records: int
    nacked_s: float
    nack_rate: float
    rss_before_mb: list[float]  # per broker
    rss_waiting_mb: list[float]
    late_s: list[float]  # of some records: from when each was due until it was handed out
    early: int  # handed out before their time
    lost: int  # leases that the worker lost meanwhile


async def idle_groups(servers: TinymqServers) -> IdleGroups:
    """Make GROUPS queue groups on one topic, without workers."""
    async with AsyncClient(servers.addresses) as client:
        await client.admin.create_topic("idle", partitions=1, replication_factor=REPLICAS)
        before = await _shares(servers.pids())
        room = asyncio.Semaphore(MAKING_MAX)

        async def make(number: int) -> None:
            async with room:
                await client.admin.create_group(f"idle-{number}", "idle", kind="queue", timeout=QUIET_S_MAX)

        began_s = time.perf_counter()
        await asyncio.gather(*(make(number) for number in range(GROUPS)))
        made_s = time.perf_counter() - began_s
        await asyncio.sleep(2.0)  # the making's last commits are no idleness
        return IdleGroups(before, await _shares(servers.pids()), made_s)


async def _shares(pids: list[int]) -> list[float]:
    used = [cpu_s([pid]) for pid in pids]
    await asyncio.sleep(IDLE_S)
    return [(cpu_s([pid]) - at) / IDLE_S for pid, at in zip(pids, used, strict=True)]


def waiting(servers: TinymqServers, records: int, delay_s: float) -> Waiting:
    """Nack `records` records with a delay, and take them again."""
    with Client(servers.addresses) as client:
        client.admin.create_topic("waiting", partitions=PARTITIONS, replication_factor=REPLICAS)
        value = os.urandom(SIZE)
        with client.producer(partitioner="round_robin") as producer:
            for _ in range(records):
                producer.send("waiting", value)
            producer.flush()
        before = memory_mb(servers.pids())
        due_s: dict[tuple[int, int], float] = {}
        with client.worker("waiting", group="waiting") as worker:
            began_s = time.perf_counter()
            while len(due_s) < records:
                for job in worker.poll(QUIET_S_MAX, POLLED):
                    due_s[job.partition, job.offset] = time.perf_counter() + delay_s
                    job.nack(delay=delay_s)  # again, if it comes back before all others are nacked
            nacked_s = time.perf_counter() - began_s
            lost = _flushed(worker)
            held = memory_mb(servers.pids())
            late_s, early = [], 0
            while len(late_s) < records:
                now_s = time.perf_counter()
                for job in worker.poll(QUIET_S_MAX, POLLED):
                    late_s.append(time.perf_counter() - due_s[job.partition, job.offset])
                    early += late_s[-1] < 0
                    job.ack()
                assert time.perf_counter() - now_s < QUIET_S_MAX, f"{records - len(late_s)} records do not come back"
            lost += _flushed(worker)
        return Waiting(
            records=records,
            nacked_s=nacked_s,
            nack_rate=records / nacked_s,
            rss_before_mb=before,
            rss_waiting_mb=held,
            late_s=late_s,
            early=early,
            lost=lost,
        )


def _flushed(worker: Worker) -> int:
    """How many leases were lost since the last flush. Their records come again at once."""
    try:
        worker.flush(QUIET_S_MAX)
    except LeaseLost as error:
        return int(error.message.split()[0])
    return 0
