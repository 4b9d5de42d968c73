"""A standalone Spark cluster on loopback: a master and workers in processes of their own, and programs for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pyspark

from tests.spark import java_setup
from tinymq.net.loopback_ports import free_ports

HOST = "127.0.0.1"
SPARK_HOME = Path(pyspark.__file__).parent
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # short runs: compiling well costs more than it gains
EXECUTOR = b"CoarseGrainedExecutorBackend"  # its main class
DAEMON = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": JVM}  # the master and workers
READY_S = 120.0
END_S = 20.0
LOOK_S = 0.1


def environment(**more: str) -> dict[str, str]:
    """The environment of a user's shell for spark-submit: no path leads to this tree."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "JAVA_HOME": str(java_setup.home()),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": HOST,
        **more,
    }


def submit(
    program: Path | str, *words: str, folder: Path, python: str, master: str, log: Path, options: tuple[str, ...] = ()
) -> subprocess.Popen[bytes]:
    """Run `spark-submit` of a program, or of `spark-internal`, in `folder`; `log` gets its output."""
    small = ("--driver-memory", "512m", "--driver-java-options", JVM)
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": JVM,
        "spark.sql.shuffle.partitions": "2",
    }.items():
        small += ("--conf", f"{name}={value}")
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master, *small, *options, str(program), *words]
    return _start(command, folder, environment(PYSPARK_PYTHON=python), log)


def _start(command: list[str], folder: Path, env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as said:
        return subprocess.Popen(
            command, cwd=folder, env=env, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """End it and all its children."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
            break
    with contextlib.suppress(ProcessLookupError):  # children that outlived it
        os.killpg(process.pid, signal.SIGKILL)


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = READY_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        threading.Event().wait(LOOK_S)


class Standalone:
    """Run a master and workers with one core each until the block ends."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        """`folder` gets the logs, and one directory per worker (`works`), where its executors run."""
        self._folder = folder
        self.works = [folder / f"work{number}" for number in range(1, workers + 1)]
        self._processes: list[subprocess.Popen[bytes]] = []
        port, self._web_port = free_ports(2)
        self.url = f"spark://{HOST}:{port}"

    def __enter__(self) -> Standalone:
        try:
            port = self.url.rpartition(":")[2]
            self._start("master", "master.Master", "--port", port, "--webui-port", str(self._web_port))
            wait_until(self._answers, "the master's page")
            for work in self.works:
                more = ("--cores", "1", "--memory", "600M", "--work-dir", str(work), "--webui-port", "0")
                self._start(work.name, "worker.Worker", *more, self.url)
            wait_until(lambda: self._alive() == len(self.works), "all workers registered")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in reversed(self._processes):
            end(process)

    def executors(self) -> list[int]:
        """Process ids of the executors that run now: children of workers."""
        workers = {process.pid for process in self._processes[1:]}
        return [pid for pid, parent in _parents() if parent in workers and EXECUTOR in _command(pid)]

    def _start(self, name: str, what: str, *words: str) -> None:
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", "--host", HOST, *words]
        self._processes.append(_start(command, self._folder, environment(**DAEMON), self._folder / f"{name}.log"))

    def _answers(self) -> bool:
        return self._alive() is not None

    def _alive(self) -> int | None:
        """The number of workers that the master counts; None if it does not answer yet."""
        for process in self._processes:
            assert process.poll() is None, "a process of the standalone cluster has ended"
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._web_port}/json/", timeout=END_S) as answer:
                return int(json.load(answer)["aliveworkers"])
        except OSError:
            return None


def _parents() -> list[tuple[int, int]]:
    """(process, parent) of all running processes."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            found.append((int(folder.name), int(fields[1])))
    return found


def _command(pid: int) -> bytes:
    """Empty if it has ended, even if its parent has not waited for it yet."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
