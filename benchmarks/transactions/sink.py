"""Spark's sink with `exactlyOnce`, beside the plain one: the same rows, by turns."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.peers.contract import REPLICAS
from benchmarks.spark import scans
from benchmarks.transactions.plan import turned
from tests.spark import java_setup
from tinymq import Client

PARTITIONS = 4
TASKS = 4
SIZE = 1024
PLAIN, DEFAULT, EXACTLY_ONCE = "plain", "plain, with places", "exactly once"
KINDS = {  # with options; places are headers of 70 bytes, which the plain sink writes unless told otherwise
    PLAIN: {"includePlace": "false"},
    DEFAULT: {},
    EXACTLY_ONCE: {"exactlyOnce": "true"},
}

Sinks = dict[str, list[float]]  # rows/s of each kind, by round


def measure(servers: str, folder: Path, rows: int, rounds: int) -> Sinks:
    """A batch of `rows`, written to a new topic by each kind in each round. The first round does not count."""
    found: Sinks = {kind: [] for kind in KINDS}
    spark = scans.session(folder, java_setup.home(), "")
    try:
        digit = f"cast(repeat(cast(id % 10 AS string), {SIZE}) AS binary) AS value"
        data = spark.range(0, rows, 1, TASKS).selectExpr(digit)
        with Client(servers) as client:
            for number in range(rounds + 1):
                print(f"round {number} of {rounds}: Spark's sink", file=sys.stderr)
                for place, kind in enumerate(turned(list(KINDS), number)):
                    topic = f"sink-{number}-{place}"
                    client.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=REPLICAS)
                    writing = data.write.format("tinymq").options(servers=servers, topic=topic, **KINDS[kind])
                    began_s = time.perf_counter()
                    writing.mode("append").save()
                    took_s = time.perf_counter() - began_s
                    assert _records(client, topic) == rows, f"{kind}: not all rows are in {topic}"
                    if number:
                        found[kind].append(rows / took_s)
    finally:
        spark.stop()
    return found


def _records(client: Client, topic: str) -> int:
    return sum(at.high_watermark for at in client.admin.offsets(topic).values())
