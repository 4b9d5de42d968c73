"""Workers of one run take the ports of their clusters from ranges of their own, and whole files of tests.

Nobody holds a port between the look whether it is free and the start of the broker that is to listen on it, nor while
that broker is down: clusters of two workers could have drawn the same.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tinymq.cli import devfolder
from tinymq.testing import cluster
from tinymq_chaos.real import ports

TESTS = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        number, workers = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        devfolder.PORTS = cluster.PORTS = ports.PORTS = devfolder.PORTS[number::workers]


@pytest.hookimpl(tryfirst=True)  # before xdist looks for the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file stays in one worker, for its fixtures are shared; so do all of Spark's, which have one session."""
    for item in items:
        home = item.path.relative_to(TESTS)
        item.add_marker(pytest.mark.xdist_group("spark" if home.parts[0] == "spark" else str(home)))
