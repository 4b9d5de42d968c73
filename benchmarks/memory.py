"""Measures a broker's memory under many busy partitions over time, and the processor time that this load costs.

    python -m benchmarks.memory [--brokers 1] [--partitions 1000] [--mib 10] [--batch-kib 100] [--settle-s 30]

Every partition gets the same bytes, in turns: `--batch-kib` to each partition, and again, until each has `--mib`. The
report shows anonymous memory (RssAnon of /proc/PID/status), because the system can take back mapped files and the page
cache. The disk holds brokers × partitions × mib until the run ends (10 GB with the defaults).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from benchmarks.measure import MIB
from tinymq import BatchDelivery, Client

KIB = 1024
RECORD_BYTES = 1000
UNACKNOWLEDGED_MAX = 64  # batches
BUFFER_BYTES = 64 * MIB  # of the producer: large enough that it never waits for room
CREATE_MS = 300_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def cluster(folder: Path, brokers: int) -> Iterator[tuple[str, list[int]]]:
    """Start brokers through the public command line, and yield (their addresses, their process ids). They end with the
    block."""
    command = [sys.executable, "-m", "tinymq.cli.main", "dev"]
    where = ["--dir", str(folder / "cluster")]
    try:
        up = [*command, "up", "-n", str(brokers), "--port", "0", *where]
        subprocess.run(up, check=True, stdout=subprocess.DEVNULL)
        status = subprocess.run([*command, "status", "-o", "json", *where], check=True, capture_output=True, text=True)
        found = json.loads(status.stdout)["brokers"]
        yield ",".join(broker["address"] for broker in found), [broker["pid"] for broker in found]
    finally:
        subprocess.run([*command, "down", "--purge", *where], check=False, stdout=subprocess.DEVNULL)


def anonymous_mb(pid: int) -> float:
    """The anonymous memory of a process, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * KIB / 1e6
    raise AssertionError(f"no RssAnon of process {pid}")


def processor_s(pid: int) -> float:
    """The processor time that a process has used, including system calls."""
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / _TICKS_PER_S


def make_batch(size: int) -> pa.RecordBatch:
    """Make records that do not compress, with `size` bytes of values."""
    values = pa.array([os.urandom(RECORD_BYTES) for _ in range(max(1, size // RECORD_BYTES))], pa.binary())
    return pa.RecordBatch.from_arrays([values], ["value"])


def report(what: str, began_s: float, pids: list[int]) -> None:
    memory = "  ".join(f"{anonymous_mb(pid):7.0f}" for pid in pids)
    processor = "  ".join(f"{processor_s(pid):6.1f}" for pid in pids)
    print(f"{time.monotonic() - began_s:7.1f} s  {what:28}  MB {memory}   processor s {processor}", flush=True)


def load(client: Client, topic: str, options: argparse.Namespace, began_s: float, pids: list[int]) -> None:
    """Send every partition its share, one batch to each in turn."""
    batch = make_batch(options.batch_kib * KIB)
    turns = max(1, options.mib * MIB // (options.batch_kib * KIB))
    unacknowledged: deque[BatchDelivery] = deque()
    with client.producer(buffer_bytes_max=BUFFER_BYTES) as producer:
        for turn in range(turns):
            for partition in range(options.partitions):
                unacknowledged.append(producer.send_batch(topic, batch, partition=partition))
                if len(unacknowledged) > UNACKNOWLEDGED_MAX:
                    unacknowledged.popleft().result()
            if (turn + 1) % max(1, turns // 10) == 0:
                report(f"{(turn + 1) * options.batch_kib / KIB:.1f} MiB per partition", began_s, pids)
        for delivery in unacknowledged:
            delivery.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--mib", type=int, default=10)
    parser.add_argument("--batch-kib", type=int, default=100)
    parser.add_argument("--settle-s", type=int, default=30)
    parser.add_argument("--set", action="append", default=[], help="a topic's setting, name=value")
    options = parser.parse_args()
    settings = dict(each.split("=", 1) for each in options.set)
    with (
        tempfile.TemporaryDirectory(prefix="tinymq-bench-") as folder,
        cluster(Path(folder), options.brokers) as (servers, pids),
        Client(servers, request_timeout_ms=CREATE_MS) as client,
    ):
        began_s = time.monotonic()
        report("brokers without topics", began_s, pids)
        client.admin.create_topic("memory", options.partitions, options.brokers, settings=settings)
        report(f"{options.partitions} empty partitions", began_s, pids)
        load(client, "memory", options, began_s, pids)
        report("all acknowledged", began_s, pids)
        for _ in range(max(1, options.settle_s // 10)):
            time.sleep(10)
            report("at rest", began_s, pids)


if __name__ == "__main__":
    main()
