"""Processes that end when the harness ends, however it ends. They are started, signalled and waited for here.

On Linux the system itself ends them (PR_SET_PDEATHSIG): after SIGKILL, too, when nobody is left to tidy up. It does so
when the *thread* ends that started them, so one thread starts them all, and lives as long as this process. Each is
started as a small program that asks for that and becomes the wanted one: what could be asked for between fork and exec
here is not safe in a process with threads, of which gRPC has many. Besides, and on other systems: at exit, and on
SIGTERM and SIGHUP, unless somebody else handles those.

Each leads a process group of its own: a terminal's Ctrl-C does not reach it, and signals go to the whole group.
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
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import FrameType

GONE_S_MAX = 10.0  # after SIGKILL
POLL_S = 0.005

_TIED = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):  # it ended before that was asked for
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class Child:
    """One process of ours."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._reaping = threading.Lock()  # nobody signals while another thread gives the process id back to the system

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Is it there? A stopped one is."""
        return self.exit_status is None

    @property
    def exit_status(self) -> int | None:
        """None while it runs; below 0: the signal that ended it."""
        with self._reaping:
            return self._process.poll()

    def signal(self, number: signal.Signals) -> bool:
        """To it and all that it started. False: it is gone."""
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
        """Whether it ends within so many seconds."""
        deadline = time.monotonic() + within_s
        while self.alive:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    def end_now(self) -> None:
        """SIGKILL without waiting, not even for a lock: for signal handlers."""
        if self._process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)


def spawn(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> Child:
    """Run `command`; its output is appended to `log`. `env`: all of its environment; None: this process's own.

    A command that is not there ends with status 1 and a word in the log: it is not raised here.
    """
    return _starter().start_child(command, log, env)


def end(*children: Child) -> None:
    """SIGKILL to all, before one is waited for. Raises RuntimeError for one that stays."""
    for child in children:
        child.signal(signal.SIGKILL)
    for child in children:
        if not child.wait(GONE_S_MAX):
            raise RuntimeError(f"process {child.pid} is still there {GONE_S_MAX:.0f} s after SIGKILL")


class _Starter(threading.Thread):
    """Starts processes, one after the other, and never ends."""

    def __init__(self) -> None:
        super().__init__(name="starts processes", daemon=True)
        self.children: list[Child] = []
        self.owner = os.getpid()
        self._wanted: queue.SimpleQueue[tuple[Future[Child], Sequence[str], Path, Mapping[str, str] | None]] = (
            queue.SimpleQueue()
        )

    def start_child(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None) -> Child:
        wanted: Future[Child] = Future()
        self._wanted.put((wanted, command, log, env))
        return wanted.result()

    def run(self) -> None:
        while True:
            wanted, command, log, env = self._wanted.get()
            try:
                child = _start(command, log, env)
            except OSError as error:
                wanted.set_exception(error)
                continue
            self.children = [other for other in self.children if other.alive]
            self.children.append(child)
            wanted.set_result(child)

    def end_all(self) -> None:
        """No lock is waited for: this runs in signal handlers, too."""
        if os.getpid() == self.owner:  # else it is a fork of the harness: they are not its children
            for child in self.children:
                child.end_now()

    def at_exit(self) -> None:
        self.end_all()
        for child in self.children if os.getpid() == self.owner else ():
            child.wait(GONE_S_MAX)


def _start(command: Sequence[str], log: Path, env: Mapping[str, str] | None) -> Child:
    if sys.platform == "linux":
        command = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command]
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=env
        )
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
    """Whoever has a handler already, or sets one later, ends orderly by it: then there is atexit."""
    if threading.current_thread() is not threading.main_thread():
        return

    def ended(number: int, _frame: FrameType | None) -> None:
        starter.end_all()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, ended)
