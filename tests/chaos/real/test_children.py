"""Processes of the harness end when the harness ends, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinymq.dev.process import Process, start_time
from tinymq_chaos.real.processes.children import Child, end, spawn

CHAOS = Path(__file__).parents[3] / "chaos"
DEADLINE_S = 20.0
LONG = ("sleep", "1000")
HARNESS = """
import asyncio, os, signal, sys, threading
from pathlib import Path
from tinymq_chaos.real.processes.children import spawn

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored below nohup
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a script

def begin(log):
    running, stopped = spawn(["sleep", "1000"], log), spawn(["sleep", "1000"], log)
    stopped.signal(signal.SIGSTOP)
    print(running.pid, stopped.pid, flush=True)

if sys.argv[2] == "thread":
    threading.Thread(target=begin, args=[Path(sys.argv[1])]).start()  # which ends at once
else:
    begin(Path(sys.argv[1]))
how = sys.stdin.readline().strip()
if how == "raise":
    raise RuntimeError("a harness with a bug")
if how == "exit at once":
    os._exit(3)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def child(log: Path) -> Iterator[Child]:
    child = spawn(LONG, log)
    yield child
    end(child)


def wait_gone(*processes: Process) -> None:
    deadline = time.monotonic() + DEADLINE_S
    assert all(process.wait_gone(deadline) for process in processes)


def named(pid: int) -> Process:
    started = start_time(pid)
    assert started is not None, f"{pid} does not run"
    return Process(pid, started)


def harness(log: Path, thread: str = "main") -> tuple[subprocess.Popen[str], list[Process]]:
    """A process that has started two others, of which one is stopped."""
    ours = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(log), thread], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, env={"PYTHONPATH": str(CHAOS)},
    )  # fmt: skip
    assert ours.stdout is not None
    return ours, [named(int(pid)) for pid in ours.stdout.readline().split()]


def finish(ours: subprocess.Popen[str], text: str) -> None:
    with ours:
        ours.communicate(text, timeout=DEADLINE_S)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_processes_end_when_a_signal_ends_the_harness(log: Path, number: signal.Signals) -> None:
    ours, children = harness(log)
    ours.send_signal(number)
    finish(ours, "")
    wait_gone(*children)
    assert ours.returncode in (-number, 1), "Python makes an exception of SIGINT"


@pytest.mark.parametrize(("how", "code"), [("", 0), ("raise", 1), ("exit at once", 3)])
def test_processes_end_when_the_harness_ends_by_itself(log: Path, how: str, code: int) -> None:
    ours, children = harness(log)
    assert all(process.alive for process in children)
    finish(ours, f"{how}\n")
    wait_gone(*children)
    assert ours.returncode == code


def test_processes_outlive_the_thread_that_requested_them(log: Path) -> None:
    began: list[Child] = []
    asking = threading.Thread(target=lambda: began.append(spawn(LONG, log)))
    asking.start()
    asking.join()
    ours, children = harness(log, "thread")
    try:
        assert not began[0].wait(0.3)
        assert all(process.alive for process in children)
    finally:
        end(*began)
        finish(ours, "")
    wait_gone(*children)


def test_all_processes_are_signalled_before_the_first_wait(log: Path) -> None:
    children = [spawn(LONG, log) for _ in range(3)]
    children[0].signal(signal.SIGSTOP)
    end(*children)
    assert [child.exit_status for child in children] == [-signal.SIGKILL] * 3
    end(*children)


def test_a_signal_reaches_the_children_of_a_process(log: Path) -> None:
    child = spawn(["sh", "-c", "sleep 1000 & echo $!; wait"], log)
    deadline = time.monotonic() + DEADLINE_S
    while not (text := log.read_text()).endswith("\n"):
        assert time.monotonic() < deadline
        child.wait(0.01)
    grandchild = named(int(text))
    end(child)
    wait_gone(grandchild)


def test_a_process_that_is_gone_gets_no_signal(child: Child) -> None:
    assert child.alive
    assert child.exit_status is None
    assert child.signal(signal.SIGTERM)
    assert child.wait(DEADLINE_S)
    assert (child.alive, child.exit_status) == (False, -signal.SIGTERM)
    assert not child.signal(signal.SIGTERM)


def test_a_missing_command_and_an_unwritable_log_are_errors(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot run no-such-command: .*No such file"):
        spawn(["no-such-command"], tmp_path / "log")
    with pytest.raises(OSError, match="no-such-folder"):
        spawn(LONG, tmp_path / "no-such-folder" / "log")
    child = spawn(LONG, tmp_path / "log")  # the thread that starts processes still exists
    assert child.alive
    end(child)


def test_a_child_has_exactly_the_given_environment(log: Path) -> None:
    child = spawn(["/usr/bin/env"], log, {"ONLY": "this"})
    assert child.wait(DEADLINE_S)
    assert "ONLY=this" in log.read_text().split()
    assert "PATH=" not in log.read_text()
