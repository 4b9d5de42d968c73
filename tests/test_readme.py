"""The README's commands work, pasted from top to bottom, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinymq.base.errors import NotFound
from tinymq.dev import dev_cluster, dev_directory, process
from tinymq.net import loopback_ports

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
ADDRESS = "127.0.0.1:7070"
RECORDS = {"emails": 1000, "orders": 1003}  # that the README has sent when it handles them
COMMAND_S_MAX = 60.0
END_S_MAX = 20.0  # of a command that is given up: brokers that it was starting are stopped again
PASTING_S_MAX = 300.0  # some thirty processes, one after the other, beside whatever else the machine does


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The directory in which the test pastes; no broker runs there afterwards."""
    yield tmp_path
    with contextlib.suppress(NotFound):  # as the README leaves it
        dev_cluster.down(tmp_path / dev_directory.DEFAULT, purge=True)


def _run(command: list[str], folder: Path, timeout_s: float = COMMAND_S_MAX, python: str = sys.executable) -> str:
    left_out = ("TINYMQ_", "PYTHONPATH")  # an installed tinymq is not the one of this tree
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    environment["PATH"] = f"{Path(python).parent}:{environment['PATH']}"
    if python == sys.executable:
        environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as running:  # fmt: skip
        try:
            output, errors = running.communicate(timeout=timeout_s)
        except BaseException:
            _give_up(running)
            raise
    assert running.returncode == 0, (command, errors)
    return output


def _give_up(running: subprocess.Popen[str]) -> None:
    """End a command and its children except brokers: otherwise it would continue and start more of them."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(running.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.communicate(timeout=END_S_MAX)
            return


def _handle(python: str, program: str, folder: Path, records: int) -> None:
    """Run a program of handlers until it has handled so many records, and interrupt it."""
    left_out = ("TINYMQ_", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    if python == sys.executable:
        environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    handled: set[tuple[str, ...]] = set()
    with subprocess.Popen(
        [python, "-c", program], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        guard = threading.Timer(COMMAND_S_MAX, running.kill)
        guard.start()
        try:
            assert running.stdout is not None
            for line in running.stdout:
                handled.add(tuple(line.split()[:2]))
                if len(handled) == records:
                    break
            running.send_signal(signal.SIGINT)
            running.communicate()
        finally:
            guard.cancel()
    assert (len(handled), running.returncode) == (records, 0)


def _commands(block: str) -> list[str]:
    """The lines of a block, adapted to the test: the environment exists, and ports are free ones."""
    lines = [line.split("  #")[0].strip() for line in block.splitlines()]
    ours = [line for line in lines if not line.startswith((". ", "make ", "python -m pip "))]
    return [line.replace("dev up", f"dev up --port {dev_directory.ANY_PORT}") for line in ours]


@pytest.mark.timeout(PASTING_S_MAX)
def test_pasting_all_of_it_works_and_leaves_nothing_so_that_it_may_be_pasted_again(folder: Path) -> None:
    paste(folder, sys.executable)


def paste(folder: Path, python: str) -> None:
    """Run each block of the README in `folder`, with this interpreter and the commands beside it."""
    printed: list[str] = []
    for language, block in BLOCKS:
        if language == "python":
            servers = dev_directory.load(folder / dev_directory.DEFAULT).servers
            assert ADDRESS in block
            if "mq.run()" in block:
                records = next(count for topic, count in RECORDS.items() if f'"{topic}"' in block)
                _handle(python, block.replace(ADDRESS, servers), folder, records)
                continue
            printed += _run([python, "-c", block.replace(ADDRESS, servers)], folder, python=python).splitlines()
        else:
            for command in _commands(block):
                output = _run(["bash", "-c", command], folder, python=python)
                if " consume " in command:
                    assert sorted(int(line.split()[2]) for line in output.splitlines()) == list(range(1, 1001))
    first, *rest = [line for line in printed if "billed" not in line]
    assert "topic='orders'" in first
    assert len(rest) == 1001
    of_partition_0 = sum(line.startswith("0 ") for line in rest)
    billed = [line.split() for line in printed if "billed" in line]
    assert sum(int(count) for count, *_ in billed) == of_partition_0 + 1
    assert int(billed[-1][-1]) == of_partition_0, "up to the last one"
    assert sum(line.endswith("b'order 999'") for line in rest) == 1
    assert [path for path in folder.rglob("*") if not path.is_dir()] == [], "as it was before"


def test_a_command_that_takes_too_long_ends_with_what_it_started(folder: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        _run(["bash", "-c", "sleep 1000 & echo $! > sleeper; wait"], folder, timeout_s=1.0)
    sleeper, deadline, pause = int((folder / "sleeper").read_text()), time.monotonic() + END_S_MAX, threading.Event()
    while process.start_time(sleeper) is not None:  # its brokers may still be stopping
        assert time.monotonic() < deadline
        pause.wait(0.01)


def test_the_example_names_the_address_at_which_a_cluster_listens_by_itself() -> None:
    assert f"{loopback_ports.HOST}:{dev_directory.FIRST_PORT}" == ADDRESS
    assert "ports 7070 to 7072 and 7170 to 7172" in " ".join(README.split())


def test_the_two_commands_come_first() -> None:
    first_block = README.split("```")[1]
    assert [line.split("#")[0].strip() for line in first_block.strip().splitlines()] == ["make run", "make test"]
