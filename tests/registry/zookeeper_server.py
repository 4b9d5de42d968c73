"""A real ZooKeeper server for tests: one process on a free port, with a data folder of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.registry.zookeeper_setup import classpath, java

TICK_MS = 100  # sessions may be as short as two of these
UP_S = 30.0
JVM = ("-Xms32m", "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.jmx.log4j.disable=true")
CONFIG = """\
dataDir={folder}
clientPort={port}
clientPortAddress=127.0.0.1
tickTime={tick_ms}
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
"""


class ZookeeperServer:
    """From `start` to `kill`, as often as one likes: sessions and nodes are those of the data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, chroot: str = "") -> str:
        """Of a registry nobody else uses, unless it is named."""
        return f"zookeeper://{self.address}/{chroot or secrets.token_hex(8)}"

    def start(self) -> None:
        """Return once it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "zoo.cfg"
        config.write_text(CONFIG.format(folder=self._folder / "data", port=self.port, tick_ms=TICK_MS))
        command = [java(), *JVM, "-cp", classpath(), "org.apache.zookeeper.server.ZooKeeperServerMain", str(config)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline_s = time.monotonic() + UP_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.kill()
                raise RuntimeError(f"ZooKeeper does not start: {(self._folder / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Its connections stay open, and nothing comes back."""
        assert self._process is not None, "not started"
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def _answers(self) -> bool:
        """Waits a moment for the answer: the loop around it is no busy one."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=0.5) as connection:
                connection.sendall(b"srvr")
                return b"Mode: standalone" in connection.recv(4096)
        except OSError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert self._process is not None
                self._process.wait(0.05)
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
