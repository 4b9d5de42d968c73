"""The parts of a benchmark's figures: percentiles, medians with their spread, and touched memory. Independent of the
measured system.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

MIB = 1 << 20
RECORD_BYTES = 1024
BATCH_RECORDS = 1000  # the number of 1 KiB records that fit into a batch of 1 MiB, with its overhead
BATCH_BYTES = BATCH_RECORDS * RECORD_BYTES
BULK_BATCHES = 192  # written, and read, per round
LONE_WRITES = 500  # per round
AGED_SHARE = 0.97  # of the memory: new files take what is free first, so little may be left
AGING_S_MAX = 60.0
READ_BYTES = 8 * MIB


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of one round, in milliseconds."""

    p50_ms: float
    p99_ms: float
    p999_ms: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        """Percentiles of all times; exact, because a round has thousands at most."""
        ranked = sorted(seconds)

        def at(share: float) -> float:
            return ranked[min(len(ranked) - 1, int(share * len(ranked)))] * 1000

        return cls(at(0.50), at(0.99), at(0.999))


@dataclass(frozen=True, slots=True)
class Round:
    """One timed run of one workload."""

    rate: float  # in the workload's own unit per second
    latency: Latency | None = None  # from handing over to the answer
    took_ms: tuple[float, ...] = ()  # of single records, where a histogram is drawn of them

    @classmethod
    def parse(cls, line: str) -> Round:
        """The inverse of `dump`."""
        values = json.loads(line)
        latency = values["latency"]
        return cls(values["rate"], Latency(**latency) if latency else None, tuple(values["took_ms"]))

    def dump(self) -> str:
        """As one line."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Summary:
    """Several rounds of one workload: the median, and its spread."""

    rate: float
    rate_min: float
    rate_max: float
    latency: Latency | None
    rounds: int

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> Summary:
        rates = [r.rate for r in rounds]
        latencies = [r.latency for r in rounds if r.latency is not None]
        latency = None
        if latencies:
            latency = Latency(
                statistics.median(x.p50_ms for x in latencies),
                statistics.median(x.p99_ms for x in latencies),
                statistics.median(x.p999_ms for x in latencies),
            )
        return cls(statistics.median(rates), min(rates), max(rates), latency, len(rounds))

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return asdict(self)


def memory_bytes() -> int:
    """Of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextmanager
def aged_memory(folder: Path, share: float = AGED_SHARE) -> Iterator[float]:
    """Touch almost all memory once, by reading a sparse file of that size, and keep it until the end.

    A virtual machine gets its memory from its host at first touch, at seconds per GB, so the first round would pay for
    it: writing 1 GB took 1.8 s of system time before, 0.3 s after. Yields the seconds that it took.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        size = int(memory_bytes() * share)
        os.truncate(file.fileno(), size)
        buffer = bytearray(READ_BYTES)
        started = time.perf_counter()
        for position in range(0, size, READ_BYTES):
            os.preadv(file.fileno(), [buffer], position)
            if time.perf_counter() - started > AGING_S_MAX:
                break
        yield time.perf_counter() - started
