"""Each worker of a run takes the ports of its clusters from a range of its own, and runs whole files of tests. Between
the check that a port is free and the start of its broker, and while the broker is down, no process holds the port. Two
workers with a common range could therefore draw the same port.

Spark's tests come first, because they keep more than one core busy. Beside them run the tests in virtual time, which do
not depend on the load, and then the others. In both parts the longest files come first, so that no worker starts one
when the others have finished. durations.json, which `make durations` writes, has the time of each file; a file that is
not in it comes first. test_budget.py compares it with the share of each room.

A test that is marked `long` runs in `make test-long` only.
"""

from __future__ import annotations

import gc
import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tinymq.net import loopback_ports

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # of every process that uses gRPC, and forks: tinymq/rpc

TESTS = Path(__file__).parent
DURATIONS = TESTS / "durations.json"  # seconds by group
SPARK = "spark"
VIRTUAL = ("raft/", "chaos/test_", "broker/", "log/")  # but for some files in them


def worker() -> str | None:
    """None: there are no workers, or this process only controls them. Known once pytest is configured."""
    return os.environ.get("PYTEST_XDIST_WORKER")


def group_of(path: Path) -> str:
    """The tests that stay in one worker: those of a file, which share fixtures, and all of Spark's, which share a
    session.
    """
    home = path.relative_to(TESTS)
    return SPARK if home.parts[0] == SPARK else home.as_posix()


def group_of_test(root: Path, nodeid: str) -> str:
    """The same by a test's name, not its path: a library's test lies in the library."""
    return group_of(root / nodeid.partition("::")[0])


@pytest.fixture(scope="module", autouse=True)
def _config_home() -> Iterator[None]:
    """Give each file of tests a directory of configuration of its own: `tinymq dev up` names its cluster there, and
    commands without --servers use it. No test writes into the user's directory.
    """
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="tinymq-config-") as home:
        patch.setenv("XDG_CONFIG_HOME", home)
        yield


class Groups(LoadScopeScheduling):
    """Gives each worker whole groups. xdist's own groups need names that pytest 9.2 no longer has."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of_test(self.config.rootpath, nodeid)


class Stopwatch:
    """A plug-in that writes the time of each group of this run. Other groups keep the times of earlier runs."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[group_of_test(self._root, report.nodeid)] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        took_s = json.loads(DURATIONS.read_text()) | {group: round(s, 1) for group, s in self._seconds.items()}
        left = {group: took_s[group] for group in sorted(took_s) if (TESTS / group).exists()}
        DURATIONS.write_text(json.dumps(left, indent=0) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-durations", action="store_true", help=f"write {DURATIONS.name} at the end of the run")


def pytest_configure(config: pytest.Config) -> None:
    if (name := worker()) is not None:
        number, workers = int(name.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        if loopback_ports.PORTS.step == 1:  # not yet: tests of mutants run pytest many times in one process
            loopback_ports.PORTS = loopback_ports.PORTS[number::workers]
    elif config.getoption("write_durations"):
        config.pluginmanager.register(Stopwatch(config.rootpath))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Workers get groups in the order of their first tests (--no-loadscope-reorder)."""
    if worker() is None:
        return
    took_s: dict[str, float] = json.loads(DURATIONS.read_text())
    groups = {path: group_of(path) for path in {item.path for item in items}}

    def place(item: pytest.Item) -> tuple[bool, bool, float]:
        group = groups[item.path]
        return group != SPARK, not group.startswith(VIRTUAL), -took_s.get(group, math.inf)

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return Groups(config, log)


def pytest_collection_finish() -> None:
    """Freeze the present objects: the simulator collects garbage before and after a run, and would visit
    all of them.
    """
    gc.collect()
    gc.freeze()
