"""Fixtures for tests of the command line: a cluster for each module, a topic for each test, and `tinymq broker`.

All of them run inside this process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tinymq.cli.common import broker_log, tuning
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        yield running


@pytest.fixture
def servers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make commands without --servers talk to that cluster."""
    monkeypatch.setenv("TINYMQ_SERVERS", cluster.servers)


@pytest.fixture
def topic(request: pytest.FixtureRequest, servers: None) -> str:
    """A new topic of two partitions, named after the test."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    assert run(["topic", "create", name, "--partitions", "2"]) == Exit.OK
    return name


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own handling of Ctrl-C: Spark replaces it, and a job in a script's background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit code and the stderr of a command."""

    returncode: int
    stderr: str


RunBroker = Callable[[list[str]], Ended]


@pytest.fixture
def run_broker(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> RunBroker:
    """Run `tinymq broker` inside this process, because a separate process costs a second. It must end by itself.

    It changes nothing of this process: neither its log, nor its allocator, nor its environment.
    """
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(broker_log, "set_up", lambda log_format, names: None)
    monkeypatch.setattr(tuning, "tune", lambda: None)
    monkeypatch.setattr(tuning, "raise_open_files", lambda connections_max: None)

    def call(options: list[str]) -> Ended:
        before = dict(os.environ)
        capfd.readouterr()
        try:
            code = run(["broker", *options])
        finally:
            os.environ.clear()
            os.environ.update(before)
        return Ended(code, capfd.readouterr().err)

    return call
