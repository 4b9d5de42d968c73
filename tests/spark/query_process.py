"""Runs exactly_once_query.py: a driver, its Java and its workers, in a session of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.spark import java_setup
from tests.spark.killed_sink import FOLDER
from tests.test_tidy import ROOT

MODULES = os.pathsep.join([str(ROOT), str(ROOT / "spark")])  # PYTHONPATH


@contextlib.contextmanager
def query_process(
    servers: str, folder: Path, sink: str, log: Path, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """The query with this sink, with its checkpoint in `folder`. At the end, its remaining processes are killed."""
    env = os.environ | environment | {
        FOLDER: str(folder),
        "PYTHONPATH": MODULES,
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": str(java_setup.home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.spark.exactly_once_query", servers, str(folder / "checkpoint"), sink]
    with log.open("ab") as output:
        query = subprocess.Popen(command, env=env, cwd=folder, stdout=output, stderr=output, start_new_session=True)
    try:
        yield query
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(query.pid, signal.SIGKILL)
        query.wait()
