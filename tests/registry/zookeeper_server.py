"""A real ZooKeeper server for tests: one process on a free port, with its own data directory."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.registry.zookeeper_setup import classpath, java

PR_SET_PDEATHSIG = 1  # of prctl(2)
TICK_MS = 100  # sessions may be as short as two of these
UP_S = 30.0
JVM = ("-Xms32m", "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no")
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
    """The server may run from `start` to `kill` several times: its data directory keeps sessions and nodes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, chroot: str = "") -> str:
        """Return the URL of a fresh registry, unless `name` is given."""
        return f"zookeeper://{self.address}/{chroot or secrets.token_hex(8)}"

    def start(self) -> None:
        """Return once the server answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "zoo.cfg"
        config.write_text(CONFIG.format(folder=self._folder / "data", port=self.port, tick_ms=TICK_MS))
        command = [java(), *JVM, "-cp", classpath(), "org.apache.zookeeper.server.ZooKeeperServerMain", str(config)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, preexec_fn=_die_with_the_tests
            )
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

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the server: its connections stay open, and it answers nothing."""
        assert self._process is not None, "not started"
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # all of its threads: any one of them might still answer
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def _answers(self) -> bool:
        """Waits a moment for the answer, so the loop around it does not spin."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=0.5) as connection:
                connection.sendall(b"srvr")
                return b"Mode: standalone" in connection.recv(4096)
        except OSError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert self._process is not None
                self._process.wait(0.05)
            return False


@functools.cache
def shared_server() -> ZookeeperServer:
    """One server for all tests of a process."""
    server = ZookeeperServer(Path(tempfile.mkdtemp(prefix="tinymq-zookeeper-")))
    atexit.register(server.remove)
    server.start()
    return server


def _die_with_the_tests() -> None:
    """Runs in the child: the kernel kills the server when the test run ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
