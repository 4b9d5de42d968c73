"""All measured systems at once, each with its servers and its client's process, until the block ends.

They stay while others are measured, so that rounds can take turns; a system that is not measured has nothing to do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.driver import Driver
from benchmarks.peers.contract import Measured, MissingPiece, Servers, cpu_s
from benchmarks.peers.systems import SYSTEMS


@dataclass(frozen=True, slots=True)
class Outcome:
    """One round: what the client measured, the processor time of the servers, and how busy the machine was."""

    measured: Measured
    servers_cpu_s: float
    load: float  # the machine's load average of the last minute, at the end

    @property
    def client_cpu_us(self) -> float:
        """Per record."""
        return self.measured.cpu_s / self.measured.records * 1e6

    @property
    def servers_cpu_us(self) -> float:
        """Per record, of all servers together."""
        return self.servers_cpu_s / self.measured.records * 1e6


def run_round(driver: Driver, servers: Servers, workload: str, **arguments: object) -> Outcome:
    """Run a workload on these servers, by this client. Raises RuntimeError when the client's process has ended."""
    pids = servers.pids()
    before_s = cpu_s(pids)
    measured = Measured.parse(driver.ask(workload, **arguments))
    return Outcome(measured, cpu_s(pids) - before_s, os.getloadavg()[0])


class Stage:
    """The systems that are measured, by name."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.servers: dict[str, Servers] = {name: SYSTEMS[name].servers() for name in names}
        self._folder = folder
        self._drivers: dict[str, Driver] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Raises a SystemExit that names the commands for what is missing."""
        missing = []
        with ExitStack() as starting:
            starting.callback(self._stop)
            for servers in self.servers.values():
                print(f"starting {servers.name}", file=sys.stderr)
                try:
                    servers.start(self._folder)
                except MissingPiece as error:
                    missing.append(str(error))
            if missing:
                sys.exit("benchmarks: something is not installed:\n  " + "\n  ".join(missing))
            for name, servers in self.servers.items():
                driver = Driver("benchmarks.peers.client", name, "--servers", servers.addresses)
                self._drivers[name] = self._stack.enter_context(driver)
            starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def make(self, name: str, topic: str, partitions: int) -> None:
        """A topic, with three replicas."""
        self._drivers[name].ask("make", topic=topic, partitions=partitions)

    def run(self, name: str, workload: str, **arguments: object) -> Outcome:
        """One round. Raises RuntimeError when the client's process has ended."""
        return run_round(self._drivers[name], self.servers[name], workload, **arguments)

    def _stop(self) -> None:
        """Clients first; then every system, whatever the others' ends raise."""
        with ExitStack() as last:
            for servers in self.servers.values():
                last.callback(servers.stop)
            self._stack.close()
