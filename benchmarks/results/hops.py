"""A lone write's way through tinymq, hop by hop: from the brokers' own metrics, while a client writes one by one.

They have sums and counts, so the hops are means; the client's own mean stands beside them.
"""

from __future__ import annotations

import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.peers.contract import Measured

READ_S_MAX = 10.0
STAGES = ("tinymq_produce_seconds", "tinymq_commit_seconds", "tinymq_sync_seconds")


class Hops(NamedTuple):
    """Means of one round, in milliseconds. Each contains the next one."""

    client: float  # from the call to its return
    arrived: float  # from the batch's arrival at the leader to its acknowledgement
    appended: float  # from the append until a majority has synced it
    synced: float  # one sync, at any broker


def read(addresses: Sequence[str]) -> Mapping[str, float]:
    """The sums and counts of the stages, over all brokers. Raises OSError."""
    found: Counter[str] = Counter()
    names = {f"{stage}_{kind}" for stage in STAGES for kind in ("sum", "count")}
    for address in addresses:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=READ_S_MAX) as page:
            for line in page.read().decode().splitlines():
                name = line.partition("{")[0].partition(" ")[0]
                if name in names:
                    found[name] += float(line.rpartition(" ")[2])  # type: ignore[assignment]
    return found


def between(before: Mapping[str, float], after: Mapping[str, float], client: Measured) -> Hops:
    """The hops of what was written between two readings."""

    def mean_ms(stage: str) -> float:
        count = after[f"{stage}_count"] - before[f"{stage}_count"]
        return (after[f"{stage}_sum"] - before[f"{stage}_sum"]) / max(1.0, count) * 1000

    return Hops(sum(client.took_ms) / len(client.took_ms), *(mean_ms(stage) for stage in STAGES))
