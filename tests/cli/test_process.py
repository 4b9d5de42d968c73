"""Processes are identified by id and start time, and only recorded processes are signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tinymq.dev import process
from tinymq.dev.process import Process

DEADLINE_S = 10.0
FOREVER = [sys.executable, "-c", "import signal; signal.pause()"]
DEAF = [
    sys.executable, "-u", "-c",
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf')\nwhile True: signal.pause()",
]  # fmt: skip


def _deadline() -> float:
    return time.monotonic() + DEADLINE_S


def test_start_and_stop(tmp_path: Path) -> None:
    started = process.start(FOREVER, tmp_path / "log")
    assert started.alive
    assert process.stop([started], DEADLINE_S) == []
    assert not started.alive
    assert not started.signal(signal.SIGTERM)


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    started = process.start(DEAF, log)
    deadline = _deadline()
    while log.read_text() != "deaf\n":
        assert time.monotonic() < deadline
    assert process.stop([started], 0.1) == [started]
    assert not started.alive


def test_the_same_number_with_another_start_time_is_not_ours(tmp_path: Path) -> None:
    with subprocess.Popen(FOREVER) as other:
        stranger = Process(other.pid, "1")
        assert not stranger.alive
        assert not stranger.signal(signal.SIGKILL)
        assert process.stop([stranger], DEADLINE_S) == []
        assert other.poll() is None
        other.kill()


def test_a_zombie_counts_as_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    deadline = _deadline()
    while process.start_time(child.pid) is not None:
        assert time.monotonic() < deadline
    assert child.wait() == 0


def test_a_process_of_ours_is_not_reached_by_the_terminals_interrupt(tmp_path: Path) -> None:
    started = process.start(FOREVER, tmp_path / "log")
    assert os.getsid(started.pid) != os.getsid(0)
    process.stop([started], DEADLINE_S)


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_waits_until_the_block_ends() -> None:
    steps = []

    def interrupted_inside() -> None:
        with process.uninterrupted():
            signal.raise_signal(signal.SIGINT)
            steps.append("went on")

    with pytest.raises(KeyboardInterrupt):
        interrupted_inside()
    assert steps == ["went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
