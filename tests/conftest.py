"""Workers of one run take the ports of their clusters from ranges of their own.

Nobody holds a port between the look whether it is free and the start of the broker that is to listen on it, nor while
that broker is down: clusters of two workers could have drawn the same.
"""

from __future__ import annotations

import os

import pytest

from tinymq.cli import devfolder
from tinymq.testing import cluster
from tinymq_chaos.real import ports


def pytest_configure(config: pytest.Config) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        number, workers = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        devfolder.PORTS = cluster.PORTS = ports.PORTS = devfolder.PORTS[number::workers]
