"""Processes that end when the harness ends, however it ends. This module starts, signals and reaps them.

On Linux the system itself ends them (PR_SET_PDEATHSIG), even after SIGKILL of the harness. It does so when the *thread*
ends that started them, so one thread starts them all and lives as long as this process. Each child starts as a small
program that requests that signal and then becomes the wanted one: to request it between fork and exec is not safe in a
process with threads, of which gRPC has many. In addition, and on other systems, they end at exit, and on SIGTERM and
SIGHUP, unless the process handles those.

Each child leads a process group of its own: a terminal's Ctrl-C does not reach it, and signals go to the whole group.
The system does not end processes that a child starts: it is for commands that start none, as brokers do.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import FrameType

from tinymq.base.private_files import open_private

GONE_S_MAX = 10.0  # after SIGKILL
POLL_S = 0.005

_TIED = """\
import ctypes, os, signal, sys
parent, report = int(sys.argv[1]), int(sys.argv[2])
os.set_inheritable(report, False)
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != parent:  # it ended before that was asked for
    sys.exit(1)
try:
    os.execvp(sys.argv[3], sys.argv[3:])
except OSError as error:
    os.write(report, str(error).encode())
    sys.exit(1)
"""


class Child:
    """One child process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._reaping = threading.Lock()  # no thread signals while another one reaps the process id

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Return whether the process exists; it may be stopped."""
        return self.exit_status is None

    @property
    def exit_status(self) -> int | None:
        """Return None while it runs; below 0: the signal that ended it."""
        with self._reaping:
            return self._process.poll()

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to the process and its group. Return False if it is gone."""
        with self._reaping:
            if self._process.poll() is not None:
                return False
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                return False
            except PermissionError:  # between its start and its own group, on some systems
                self._process.send_signal(number)
            return True

    def wait(self, within_s: float) -> bool:
        """Return whether the process ends within so many seconds."""
        deadline = time.monotonic() + within_s
        while self.alive:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    def end_now(self) -> None:
        """Send SIGKILL and wait for nothing, not even a lock: for signal handlers."""
        if self._process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)


def spawn(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> Child:
    """Run `command` and append its output to `log`. `env` is its complete environment; None: this process's own.

    On return it runs, and its end is tied to this process's. Raises OSError if it cannot run.
    """
    read, write = os.pipe()
    try:
        try:
            child = _starter().start_child(command, log, env, write)
        finally:
            os.close(write)
        refused = b"".join(iter(lambda: os.read(read, 4096), b""))  # the pipe ends when `command` runs
    finally:
        os.close(read)
    if refused:
        child.wait(GONE_S_MAX)
        raise OSError(f"cannot run {command[0]}: {refused.decode()}")
    return child


def end(*children: Child) -> None:
    """Send SIGKILL to all, and then wait for them. Raises RuntimeError for one that stays."""
    for child in children:
        child.signal(signal.SIGKILL)
    for child in children:
        if not child.wait(GONE_S_MAX):
            raise RuntimeError(f"process {child.pid} is still there {GONE_S_MAX:.0f} s after SIGKILL")


class _Starter(threading.Thread):
    """The thread that starts all processes, one after the other, and never ends."""

    def __init__(self) -> None:
        super().__init__(name="starts processes", daemon=True)
        self.children: list[Child] = []
        self.owner = os.getpid()
        self._wanted: queue.SimpleQueue[tuple[Future[Child], Callable[[], Child]]] = queue.SimpleQueue()

    def start_child(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None, report: int) -> Child:
        wanted: Future[Child] = Future()
        self._wanted.put((wanted, lambda: _start(command, log, env, report)))
        return wanted.result()

    def run(self) -> None:
        while True:
            wanted, start = self._wanted.get()
            try:
                child = start()
            except OSError as error:
                wanted.set_exception(error)
                continue
            self.children = [other for other in self.children if other.alive]
            self.children.append(child)
            wanted.set_result(child)

    def end_all(self) -> None:
        """End all children without a lock: signal handlers call it, too."""
        if os.getpid() == self.owner:  # otherwise this is a fork of the harness, and they are not its children
            for child in self.children:
                child.end_now()

    def at_exit(self) -> None:
        self.end_all()
        for child in self.children if os.getpid() == self.owner else ():
            child.wait(GONE_S_MAX)


def _start(command: Sequence[str], log: Path, env: Mapping[str, str] | None, report: int) -> Child:
    """Start a process.

    `report` is the end of a pipe that closes when the process has become `command`; otherwise the pipe carries the
    error.
    """
    tied = sys.platform == "linux"
    if tied:
        command = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), str(report), *command]
    with os.fdopen(open_private(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env,
            pass_fds=(report,) if tied else (), start_new_session=True,
        )  # fmt: skip
    return Child(process)


_only: _Starter | None = None
_making = threading.Lock()


def _starter() -> _Starter:
    global _only
    with _making:
        if _only is None or _only.owner != os.getpid():
            _only = _Starter()
            _only.start()
            atexit.register(_only.at_exit)
            _end_on_signals(_only)
        return _only


def _end_on_signals(starter: _Starter) -> None:
    """End the children on signals.

    A process with a handler of its own ends orderly by it, and atexit ends the children.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def ended(number: int, _frame: FrameType | None) -> None:
        starter.end_all()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, ended)
