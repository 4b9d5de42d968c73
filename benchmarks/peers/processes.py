"""Processes of servers: started with a log each, watched until their ports answer, and killed at the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

READY_S_MAX = 180.0
LOOK_S = 0.2
STOP_S_MAX = 15.0
LOG_BYTES_SHOWN = 800


def end_on_sigterm() -> None:
    """Have SIGTERM end this program as Ctrl-C does, so that the servers that it has started end, too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


class Processes:
    """The processes of one system. Each leads a process group of its own, which `stop` kills as a whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._running.values()]

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        with self._log(name).open("wb") as log:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder,
                env={**os.environ, **(env or {})}, process_group=0,
            )  # fmt: skip

    def wait_for_ports(self, ports: Sequence[int]) -> None:
        """Raises a RuntimeError with the end of a log when a process ends or no port opens."""
        deadline_s = time.monotonic() + READY_S_MAX
        waiting = list(ports)
        while waiting:
            self.check()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", waiting[-1])) == 0:
                    waiting.pop()
                    continue
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"nothing listens on port {waiting[-1]} after {READY_S_MAX:g} s: {self.folder}")
            time.sleep(LOOK_S)

    def check(self) -> None:
        """Raises a RuntimeError with the end of its log when a process has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                last = self._log(name).read_bytes()[-LOG_BYTES_SHOWN:].decode(errors="replace")
                raise RuntimeError(f"{name} ended with {process.returncode}: {last}")

    def stop(self) -> None:
        for process in self._running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._running.values():
            process.wait(STOP_S_MAX)
        self._running.clear()

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"
