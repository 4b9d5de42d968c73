"""The bare limit of benchmarks/bare.py behind the contract: bytes to three disks, and no logic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks import bare
from benchmarks.bare_roles import FETCH_BYTES
from benchmarks.measure import BATCH_BYTES, RECORD_BYTES, Round
from benchmarks.peers.contract import Measured


class BareServers:
    """A leader and two followers."""

    name = "bare limit"
    synced = True

    def __init__(self) -> None:
        self.settings = {
            "messages": "1 MiB for `produce` and `read`, 1 KiB for `lone`; gRPC to the leader, TCP between the three"
        }
        self.addresses = ""
        self._processes: bare.BareProcesses | None = None

    def start(self, folder: Path) -> None:
        (folder / "bare").mkdir()
        self._processes = bare.BareProcesses(folder / "bare")
        self.addresses = str(self._processes.start())

    def pids(self) -> list[int]:
        return self._processes.pids if self._processes else []

    def stop(self) -> None:
        if self._processes is not None:
            self._processes.stop()


class BarePeer:
    """The workloads: the bytes of so many records, in messages of its own size. It has no topics."""

    def __init__(self, servers: str) -> None:
        self._port = int(servers)

    def make(self, topic: str, partitions: int) -> None:
        """It has none."""

    def produce(self, topic: str, records: int, size: int) -> Measured:
        messages = max(1, records * size // BATCH_BYTES)
        return self._run(lambda limit: limit.write_bulk(messages), messages * BATCH_BYTES // size)

    def lone(self, topic: str, records: int, size: int) -> Measured:
        assert size == RECORD_BYTES, "the bare limit writes records of 1 KiB"
        return self._run(lambda limit: limit.write_alone(records), records)

    def read(self, topic: str, records: int) -> Measured:
        messages = max(1, records * RECORD_BYTES // FETCH_BYTES)
        return self._run(lambda limit: limit.read(messages), messages * FETCH_BYTES // RECORD_BYTES)

    def _run(self, run: Callable[[bare.BareClient], Awaitable[Round]], records: int) -> Measured:
        async def connected() -> Measured:
            async with bare.BareClient(self._port) as limit:
                cpu_s, began_s = time.process_time(), time.perf_counter()
                found = await run(limit)
                elapsed_s = time.perf_counter() - began_s
                return Measured(records, elapsed_s, time.process_time() - cpu_s, found.took_ms)

        return asyncio.run(connected())

    def close(self) -> None:
        """Nothing stays open between workloads."""
