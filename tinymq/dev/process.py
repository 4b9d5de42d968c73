"""Processes of ours: started, told from others with the same number, signalled, waited for.

A process id alone names nobody: the system gives it to the next one. With the time at which the process
started it does, and nothing here signals a process whose start time is not the one written down.
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
    """One process, for good: its id and when it started."""

    pid: int
    started: str  # opaque; equal only for the same process

    @property
    def alive(self) -> bool:
        """Whether it runs. One that has ended and was not yet waited for counts as gone."""
        return start_time(self.pid) == self.started

    def signal(self, number: signal.Signals) -> bool:
        """Send `number`; False when the process is gone, and then nobody gets it."""
        if not self.alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_gone(self, deadline: float) -> bool:
        """Whether it ended before `deadline` (of time.monotonic)."""
        while self.alive:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True


def start(command: Sequence[str], log: Path) -> Process:
    """Run `command` in a session of its own, so that this terminal's Ctrl-C does not reach it; its output
    is appended to `log`. It outlives this process, and sees no TINYMQ_ variables, because they configure other
    processes. Raises UnsafePath when `log` is a symbolic link."""
    with os.fdopen(open_private(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("TINYMQ_")},
        )
    # Popen warns about a child that outlives its object; this one is meant to. The system reaps it when we end.
    child.returncode = 0
    return Process(child.pid, start_time(child.pid) or "gone")


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the block ends: between a start and its being written down, say."""
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
    """When the process `pid` started, as an opaque text; None when there is none, or it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self").exists() else _start_time_by_ps(pid)
    # The name, in parentheses, may hold anything; what follows its last parenthesis is split by blanks.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _start_time_by_ps(pid: int) -> str | None:
    result = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = result.stdout.strip().partition(" ")
    return started.strip() if started and not state.startswith("Z") else None


def stop(processes: Sequence[Process], wait_s: float) -> list[Process]:
    """Ask all of them to end (SIGTERM), wait up to `wait_s`, then end the rest (SIGKILL); return the rest."""
    for process in processes:
        process.signal(signal.SIGTERM)
    deadline = time.monotonic() + wait_s
    late = [process for process in processes if not process.wait_gone(deadline)]
    for process in late:
        process.signal(signal.SIGKILL)
    for process in late:
        process.wait_gone(time.monotonic() + wait_s)
    return late
