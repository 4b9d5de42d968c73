"""Runs our programs under spark-submit: the command, its environment, and its end.

A submitted program has several processes: Java, Python, Python's workers. They run in a session of their own, so that a
terminal's Ctrl-C reaches only the process that started them. They end together.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

PROGRAMS = Path(__file__).parent
CORES = 2
STOP_S_MAX = 15.0  # Spark has that long to end by itself
LOG_LINES = 25  # of its log that are shown when it fails
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # for a minute's run: compiling well costs more than it gains
NO_CONF: Mapping[str, str] = MappingProxyType({})


class SubmitFailed(Exception):
    """A submitted program ended with another code than 0; the text has the end of its log."""


def command(program: str, arguments: Sequence[str], conf: Mapping[str, str]) -> list[str]:
    """`spark-submit PROGRAM ARGUMENTS` with `conf`, in this machine's own processes; a task is tried three times."""
    submit = Path(sys.prefix) / "bin" / "spark-submit"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": JVM,
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "WARN",
        **conf,
    }
    options = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    return [str(submit), "--master", f"local[{CORES},3]", *options, str(PROGRAMS / program), *arguments]


def environment(folder: Path) -> dict[str, str]:
    """Return this process's environment with our Python and our modules, and `folder` for Spark's temporary files."""
    paths = [str(PROGRAMS.parent), str(PROGRAMS.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(paths),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder.absolute()),
    }


class Submitted:
    """A program under spark-submit, with its output in a file. Leaving the `with` block ends its processes."""

    def __init__(self, program: str, arguments: Sequence[str], log: Path, conf: Mapping[str, str] = NO_CONF) -> None:
        """Start it, with `conf` for Spark. `log` is appended to, and its folder takes Spark's temporary files."""
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command(program, arguments, conf),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment(log.parent),
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def session(self) -> int:
        """The id of the session that all of its processes are in."""
        return self._process.pid

    def wait(self, timeout_s: float) -> int:
        """Wait for the end, and return the exit code. Raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout_s)

    def check(self) -> None:
        """Raise SubmitFailed if the program has ended with another code than 0."""
        code = self._process.poll()
        if code:
            last = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            raise SubmitFailed("\n".join([f"spark-submit ended with {code}; the end of {self.log}:", *last]))

    def kill(self) -> None:
        """Kill Java and Python at once, as `kill -9` does. The workers end when they notice."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Ask the program to end, and kill it if it does not. A second call does nothing."""
        if self.running:
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
        self._signal(signal.SIGKILL)

    def __enter__(self) -> Submitted:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return  # all its processes have ended
