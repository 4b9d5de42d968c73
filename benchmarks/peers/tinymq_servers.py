"""Three brokers of `tinymq dev`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.contract import BROKERS
from tinymq import __version__

BLOCK_BYTES = 512  # of st_blocks


class TinymqServers:
    """Brokers through the public command line. `env`: the environment of another build of tinymq."""

    synced = True

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self.name = f"tinymq {__version__}"
        self.addresses = ""
        self.settings = {
            "topics": "3 replicas, storage=disk, sync=always",
            "clients": "defaults; `work`: one Worker, prefetch_records=1000; `passage`: 8 AsyncWorkers, "
            'prefetch_records=1; `transactions`: AsyncClient, commit(wait="decided")',
        }
        self._folder: Path | None = None
        self._env = env

    def start(self, folder: Path) -> None:
        self._folder = folder / "tinymq"
        self._dev("up", "-n", str(len(BROKERS)))
        self.addresses = ",".join(broker["address"] for broker in self._status())

    def pids(self) -> list[int]:
        return [broker["pid"] for broker in self._status() if broker["pid"]]

    def metrics_addresses(self) -> list[str]:
        """Where each broker serves its metrics."""
        return [broker["metrics"] for broker in self._status()]

    def stored_bytes(self) -> list[int]:
        """The bytes on disk of each broker's files."""
        assert self._folder is not None, "the servers are started"
        folders = [self._folder / f"broker-{broker}" for broker in BROKERS]
        return [sum(file.stat().st_blocks * BLOCK_BYTES for file in folder.rglob("*")) for folder in folders]

    def kill(self, broker: int) -> None:
        """Kill a broker, as kill -9 does."""
        self._dev("kill", str(broker))

    def revive(self, broker: int) -> None:
        """Start a killed broker again, and wait until it serves."""
        self._dev("start", str(broker))

    def stop(self) -> None:
        if self._folder is not None:
            self._dev("down", "--purge")
            self._folder = None

    def _status(self) -> list[dict[str, Any]]:
        return list(json.loads(self._dev("status", "-o", "json"))["brokers"])

    def _dev(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "tinymq.cli.main", "dev", *arguments, "--dir", str(self._folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self._env)
        if done.returncode:
            raise RuntimeError(f"tinymq dev {arguments[0]}: {done.stderr[-500:]}")
        return done.stdout


@contextmanager
def started(folder: Path) -> Iterator[TinymqServers]:
    """Brokers with a folder of their own, until the block ends."""
    servers = TinymqServers()
    try:
        servers.start(folder)
        yield servers
    finally:
        servers.stop()
