"""How long records, partitions and groups wait when a worker, a member or a leader goes. On tinymq alone."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from benchmarks.peers.contract import QUIET_S_MAX, REPLICAS
from benchmarks.peers.tinymq_servers import TinymqServers
from tinymq import AsyncClient, AsyncConsumer, AsyncWorker, Job

PARTITIONS = 4
STARTED = 20  # jobs in the hands of the worker that is killed
HELD = 400  # records that it holds in all
WRITE_S = 0.01  # between two records of one partition, where a member leaves
RATE = 500.0  # records per second while a leader is killed, over all partitions
HOLD_S = 0.1  # a worker holds each record for so long
BEFORE_S, AFTER_S = 2.0, 8.0  # around the kill


class WorkerKilled(NamedTuple):
    """Seconds from kill -9 until each record was handed to another worker."""

    started_s: list[float]
    prefetched_s: list[float]


class LeaderKilled(NamedTuple):
    """One kill of a broker that led a part of a topic."""

    pause_s: float  # the longest time without a record from its partitions
    redelivered: int  # records that were handed out twice, although their worker lived


async def kill_worker(servers: str, number: int) -> WorkerKilled:
    """Kill a worker that holds all records, while another one waits."""
    topic, group = f"killed-{number}", f"killed-{number}"
    async with AsyncClient(servers) as client:
        await client.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=REPLICAS)
        value = os.urandom(100)
        await asyncio.gather(*(client.send(topic, value, partition=n % PARTITIONS) for n in range(HELD)))
        victim = _victim(servers, topic, group)
        try:
            assert victim.stdout is not None
            started = {(p, o) for p, o in json.loads(await asyncio.to_thread(victim.stdout.readline))}
            async with client.worker(topic, group=group) as worker:
                assert not await worker.poll(timeout=1.0), "the other worker has all records"
                victim.kill()
                killed_s = time.perf_counter()
                found = WorkerKilled([], [])
                while len(found.started_s) + len(found.prefetched_s) < HELD:
                    for job in await worker.poll(timeout=QUIET_S_MAX):
                        times = found.started_s if (job.partition, job.offset) in started else found.prefetched_s
                        times.append(time.perf_counter() - killed_s)
                        job.ack()
                return found
        finally:
            victim.kill()
            victim.wait()


def _victim(servers: str, topic: str, group: str) -> subprocess.Popen[str]:
    """A worker in a process of its own. It says which jobs it has begun, as JSON."""
    command = [sys.executable, "-m", "benchmarks.groups.victim", "--servers", servers, "--topic", topic]
    command += ["--group", group, "--jobs", str(STARTED)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def leave_group(servers: str, number: int) -> list[float]:
    """One of two members leaves. Seconds from its `close` until the other one has a record of each partition."""
    topic, group = f"left-{number}", f"left-{number}"
    async with AsyncClient(servers) as client, AsyncClient(servers) as other:
        await client.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=REPLICAS)
        first, second = client.consumer(topic, group=group), other.consumer(topic, group=group)
        async with _written(client, topic):
            while len(first.assignment()) != PARTITIONS // 2 or len(second.assignment()) != PARTITIONS // 2:
                await asyncio.gather(first.poll(0.05), second.poll(0.05))
            moved = {at.partition for at in first.assignment()}
            closed_s = time.perf_counter()
            closing = asyncio.create_task(first.close())
            took_s: dict[int, float] = {}
            while moved - took_s.keys():
                for partition in await _partitions_polled(second):
                    if partition in moved:
                        took_s.setdefault(partition, time.perf_counter() - closed_s)
            await closing
        await second.close()
        return list(took_s.values())


async def _partitions_polled(consumer: AsyncConsumer) -> set[int]:
    found = await consumer.poll(QUIET_S_MAX)
    assert found, "no record arrives"
    return {message.partition for message in found}


@asynccontextmanager
async def _written(client: AsyncClient, topic: str) -> AsyncIterator[None]:
    """Meanwhile, each partition gets a record every WRITE_S."""

    async def write(partition: int) -> None:
        while True:
            await client.send(topic, b"x", partition=partition)
            await asyncio.sleep(WRITE_S)

    writers = [asyncio.create_task(write(partition)) for partition in range(PARTITIONS)]
    try:
        yield
    finally:
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)


async def kill_leader(servers: TinymqServers, number: int) -> LeaderKilled:
    """Kill a broker under a flow of records, whose workers live."""
    topic, group = f"led-{number}", f"led-{number}"
    seen: dict[tuple[int, int], int] = {}
    arrivals: list[tuple[float, int]] = []
    async with AsyncClient(servers.addresses) as client:
        await client.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=REPLICAS)
        workers = [client.worker(topic, group=group, prefetch_records=100) for _ in range(2)]
        await asyncio.gather(*(worker.open() for worker in workers))
        handlers = [asyncio.create_task(_hold(worker, seen, arrivals)) for worker in workers]
        sending = asyncio.create_task(_send(client, topic))
        await asyncio.sleep(BEFORE_S)
        topics = await client.admin.describe_topic(topic)
        leader = topics.partitions[0].leader
        led = {at.partition for at in topics.partitions if at.leader == leader}
        killed_s = time.perf_counter()
        await asyncio.to_thread(servers.kill, leader)
        await asyncio.sleep(AFTER_S)
        for task in (sending, *handlers):
            task.cancel()
        await asyncio.gather(sending, *handlers, *(worker._core.leave() for worker in workers), return_exceptions=True)
    await asyncio.to_thread(servers.revive, leader)
    times = sorted(at_s for at_s, partition in arrivals if partition in led and at_s > killed_s - 0.5)
    pause_s = max(later - earlier for earlier, later in itertools.pairwise(times))
    return LeaderKilled(pause_s, sum(count - 1 for count in seen.values()))


async def _send(client: AsyncClient, topic: str) -> None:
    """Offer records at a rate, whether or not they are answered."""
    async with asyncio.TaskGroup() as tasks:
        started_s, number = time.perf_counter(), 0
        while True:
            number += 1
            await asyncio.sleep(max(0.0, started_s + number / RATE - time.perf_counter()))
            tasks.create_task(_sent(client, topic, number % PARTITIONS))


async def _sent(client: AsyncClient, topic: str, partition: int) -> None:
    await client.send(topic, b"x", partition=partition)


async def _hold(worker: AsyncWorker, seen: dict[tuple[int, int], int], arrivals: list[tuple[float, int]]) -> None:
    """Hold each record for HOLD_S, then ack it."""
    loop = asyncio.get_running_loop()
    async for job in worker:
        arrivals.append((time.perf_counter(), job.partition))
        place = job.partition, job.offset
        seen[place] = seen.get(place, 0) + 1
        loop.call_later(HOLD_S, _ack, job)


def _ack(job: Job) -> None:
    job.ack()
