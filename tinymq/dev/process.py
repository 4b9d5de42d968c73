"""Child processes: start them, identify them reliably, signal them, wait for them.

A process id alone identifies no process, because the system reuses ids. The id together with the start time does. This
module never signals a process whose start time differs from the recorded one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tinymq.base.private_files import open_private

POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Process:
    """The permanent identity of one process: its id and its start time."""

    pid: int
    started: str  # opaque; equal only for the same process

    @property
    def alive(self) -> bool:
        """Whether the process runs. A zombie counts as gone."""
        return start_time(self.pid) == self.started

    def signal(self, number: signal.Signals) -> bool:
        """Send signal `number`. Returns False, and signals no process, if this process is gone."""
        if not self.alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_gone(self, deadline: float) -> bool:
        """Wait until the process has ended. Returns False at `deadline` (of time.monotonic)."""
        while self.alive:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True


def start(command: Sequence[str], log: Path) -> Process:
    """Start `command` in its own session and append its output to `log`.

    Ctrl-C in this terminal does not reach the new process, and it outlives this process. It gets no TINYMQ_ variables,
    because they configure other processes. Raises UnsafePath if `log` is a symbolic link.
    """
    with os.fdopen(open_private(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("TINYMQ_")},
        )
    # Popen warns about a child that outlives its object, which this child does on purpose. A return code silences it.
    # The system reaps the child when this process has ended.
    child.returncode = 0
    return Process(child.pid, start_time(child.pid) or "gone")


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM until the block ends, for example from a process's start until its id is recorded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda number, _frame: pending.append(number))
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
        for late in pending:
            signal.raise_signal(late)


def start_time(pid: int) -> str | None:
    """Return the start time of process `pid` as an opaque text, or None if the process does not exist or has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self").exists() else _start_time_by_ps(pid)
    # The name, in parentheses, can contain anything. After its last parenthesis, the fields are separated by blanks.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _start_time_by_ps(pid: int) -> str | None:
    result = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = result.stdout.strip().partition(" ")
    return started.strip() if started and not state.startswith("Z") else None


def stop(processes: Sequence[Process], wait_s: float) -> list[Process]:
    """Stop processes with SIGTERM, and after `wait_s` the remaining ones with SIGKILL. Returns the killed processes."""
    for process in processes:
        process.signal(signal.SIGTERM)
    deadline = time.monotonic() + wait_s
    late = [process for process in processes if not process.wait_gone(deadline)]
    for process in late:
        process.signal(signal.SIGKILL)
    for process in late:
        process.wait_gone(time.monotonic() + wait_s)
    return late
