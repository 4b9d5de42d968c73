"""What every measured system offers: servers that a benchmark starts, and a client in a process of its own.

A client's methods are the workloads. Each opens its own connections before its clock starts, and returns a `Measured`.
A system that lacks something (a queue has no stream group) has no such method: `WORKLOADS` are looked up by name.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

BROKERS = (1, 2, 3)
REPLICAS = 3
WORKLOADS = (
    *("produce", "lone", "offer", "read", "group_read", "work", "passage"),
    *("transactions", "transact", "flushed", "tables", "process"),
)
BATCH = 500  # messages in one fetch of a client that fetches
QUIET_S_MAX = 60.0  # a workload that gets nothing for so long has failed
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class MissingPiece(Exception):
    """Something of a system is not installed. The text has the one command to run."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One timed run of one workload in a client's process."""

    records: int
    elapsed_s: float
    cpu_s: float  # of the client's process, Java's included
    took_ms: Sequence[float] = ()  # of single records, for workloads that time them

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.elapsed_s

    def dump(self) -> str:
        """As one line."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, line: str) -> Measured:
        """The inverse of `dump`."""
        return cls(**json.loads(line))


class Watch:
    """Takes the time and the processor time of this process between `with` and `measured`."""

    def __enter__(self) -> Self:
        self._cpu_s, self._started_s = time.process_time(), time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._elapsed_s, self._cpu_s = time.perf_counter() - self._started_s, time.process_time() - self._cpu_s

    def measured(self, records: int, took_s: Sequence[float] = ()) -> Measured:
        """What the block took."""
        return Measured(records, self._elapsed_s, self._cpu_s, [round(s * 1000, 4) for s in took_s])


class Servers(Protocol):
    """Three servers on loopback, in a folder that the benchmark owns. `start` waits until they serve."""

    @property
    def name(self) -> str:
        """For tables, with the version."""
        ...

    @property
    def settings(self) -> Mapping[str, str]:
        """Everything that was set, on servers and client, for the page of figures."""
        ...

    @property
    def synced(self) -> bool:
        """Whether a write is on disks before it is answered."""
        ...

    @property
    def addresses(self) -> str:
        """Where clients connect."""
        ...

    def start(self, folder: Path) -> None:
        """Raises MissingPiece with the command to run, and RuntimeError when a server does not come up."""
        ...

    def pids(self) -> list[int]:
        """The processes of the servers, one for each."""
        ...

    def stop(self) -> None:
        """End all processes. Their data is not needed. Harmless when nothing runs."""
        ...


def cpu_s(pids: Sequence[int]) -> float:
    """The processor time that these processes have used, in seconds."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])  # utime, stime
    return total / CLOCK_TICKS


def memory_mb(pids: Sequence[int]) -> list[float]:
    """Anonymous memory of each process: the page cache of the logs does not count."""
    found = []
    for pid in pids:
        (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon")]
        found.append(int(line.split()[1]) / 1024)
    return found
