"""Measures how long an ordinary client waits while another one attacks its broker, within the documented limits or
beyond.

    python -m benchmarks.hostile [--attack NAME ...] [--seconds 15]

The benchmark starts three brokers, with one topic of one partition. The measured client sends one record every 50 ms.
Each attack runs in a process of its own, against the broker that leads the partition. The report shows the longest gap
between two successful sends, and whether a group changed its leader. `nothing` measures without an attack.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc

from benchmarks.hostile_client import ATTACKS
from tinymq import AsyncClient
from tinymq.base.errors import TinymqError
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc

TOPIC = "measured"
PERIOD_S = 0.05
WARM_S = 2.0  # sending before an attack opens streams and warms caches
GOAL_MS = 250.0
RSS_PERIOD_S = 0.1
CALL_S = 60.0

Leaders = dict[tuple[bytes, int], tuple[int, int]]  # (leader, term) by topic id and partition


@dataclass(slots=True)
class Outcome:
    """The result of the measured client."""

    gap_ms: float  # the longest gap between two successful sends
    p50_ms: float  # the median time of one send
    sent: int
    failed: int
    moved: int  # groups whose leader or term has changed
    rss_mb: float  # the highest resident memory of any broker


@contextmanager
def cluster(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """Start three brokers through the public command line, and yield what `dev status` reports of each. They end with
    the block."""
    command = [sys.executable, "-m", "tinymq.cli.main", "dev"]
    where = ["--dir", str(folder / "cluster")]
    try:
        subprocess.run([*command, "up", "-n", "3", *where], check=True, stdout=subprocess.DEVNULL)
        status = subprocess.run([*command, "status", "-o", "json", *where], check=True, capture_output=True, text=True)
        yield json.loads(status.stdout)["brokers"]
    finally:
        subprocess.run([*command, "down", "--purge", *where], check=False, stdout=subprocess.DEVNULL)


async def leaders(addresses: Sequence[str]) -> Leaders:
    """Return the leader and term of every group, as the leaders report them. Waits for a broker that is still
    stalled."""
    result: Leaders = {}
    for address in addresses:
        async with grpc.aio.insecure_channel(address) as channel:
            admin: Any = pb_grpc.AdminStub(channel)
            with contextlib.suppress(grpc.aio.AioRpcError):
                status = await admin.ClusterStatus(pb.ClusterStatusRequest(), timeout=CALL_S)
                for replica in status.replicas:
                    if replica.role == "leader":
                        result[replica.topic_id, replica.partition] = status.broker_id, replica.term
    return result


async def measure(client: AsyncClient, seconds: float) -> tuple[list[float], list[float], int]:
    """Return (when each successful send ended, how long it took, how many sends failed)."""
    ended, took, failed = [], [], 0
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        began_s = time.perf_counter()
        try:
            await client.send(TOPIC, b"x", partition=0)
        except TinymqError:
            failed += 1
        else:
            ended.append(time.perf_counter())
            took.append(ended[-1] - began_s)
        await asyncio.sleep(max(0.0, PERIOD_S - (time.perf_counter() - began_s)))
    return ended, took, failed


async def watch_memory(pids: Sequence[int], highest: list[float]) -> None:
    while True:
        highest[0] = max(highest[0], *map(resident_mb, pids))
        await asyncio.sleep(RSS_PERIOD_S)


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def attack_by(name: str, addresses: Sequence[str]) -> Iterator[None]:
    """Run the attack as long as the block."""
    command = [sys.executable, "-m", "benchmarks.hostile_client", name, ",".join(addresses), TOPIC]
    attack = subprocess.Popen(command) if name in ATTACKS else None
    try:
        yield
    finally:
        if attack is not None:
            attack.kill()
            attack.wait()


async def attacked(name: str, seconds: float, brokers: Sequence[dict[str, Any]]) -> Outcome:
    addresses = [broker["address"] for broker in brokers]
    async with AsyncClient(",".join(addresses)) as client:
        await client.admin.create_topic(TOPIC, 1, 3)
        await measure(client, WARM_S)
        before = await leaders(addresses)
        highest = [0.0]
        watching = asyncio.create_task(watch_memory([broker["pid"] for broker in brokers], highest))
        with attack_by(name, addresses):
            ended, took, failed = await measure(client, seconds)
        watching.cancel()
        after = await leaders(addresses)
    gaps = [later - earlier for earlier, later in pairwise(ended)]
    moved = sum(after.get(group) != leader for group, leader in before.items())
    p50_ms = statistics.median(took) * 1e3 if took else float("inf")
    gap_ms = max(gaps) * 1e3 if gaps else float("inf")
    return Outcome(gap_ms, p50_ms, len(ended), failed, moved, highest[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["nothing", *ATTACKS]
    parser.add_argument("--attack", choices=names, nargs="*", default=names)
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    print(
        f"{'attack':10} {'longest gap':>12} {'p50':>9} {'sent':>6} {'failed':>6} {'leaders moved':>13} {'RSS max':>9}"
    )
    for name in options.attack:
        with tempfile.TemporaryDirectory(prefix="tinymq-bench-") as folder, cluster(Path(folder)) as brokers:
            result = asyncio.run(attacked(name, options.seconds, brokers))
        verdict = "" if result.gap_ms < GOAL_MS and not result.moved else "  over the goal"
        print(
            f"{name:10} {result.gap_ms:9.0f} ms {result.p50_ms:6.1f} ms {result.sent:6} {result.failed:6}"
            f" {result.moved:13}"
            f" {result.rss_mb:6.0f} MB{verdict}",
            flush=True,
        )


if __name__ == "__main__":
    main()
