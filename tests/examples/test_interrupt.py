"""Ctrl-C in the middle of `make run` leaves no process behind. Its flights are invented: reading the real ones takes
longer than the rest.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

from tinymq.cli.common.exits import Exit
from tinymq.dev import dev_directory

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(".tinymq") / "flights"
DEADLINE_S = 90.0
MAIN = """
import sys
from examples.flights import __main__, source

source.find_data = lambda: None
source.load = lambda path: [source.Flight(b"UA1", b"{}" * 100, 0)] * 300_000
sys.exit(__main__.main())
"""


def test_no_broker_outlives_an_interrupt(tmp_path: Path) -> None:
    job = subprocess.Popen(
        [sys.executable, "-u", "-c", MAIN],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert job.stdout is not None
    deadline = time.monotonic() + DEADLINE_S
    output = selectors.DefaultSelector()  # this process may have more than 1,024 descriptors
    output.register(job.stdout, selectors.EVENT_READ)
    said = b""
    while b"producing every flight" not in said:
        assert output.select(deadline - time.monotonic()), said
        read = os.read(job.stdout.fileno(), 65536)
        assert read, said
        said += read
    output.close()
    cluster = dev_directory.load(tmp_path / FOLDER)
    brokers = [cluster.process(broker.id) for broker in cluster.brokers]
    # Like a terminal: the whole foreground group gets the signal, perhaps twice.
    os.killpg(job.pid, signal.SIGINT)
    os.killpg(job.pid, signal.SIGINT)
    rest, _ = job.communicate(timeout=DEADLINE_S)
    assert job.returncode == Exit.INTERRUPTED, said + rest
    assert len(brokers) == 3
    assert not [broker for broker in brokers if broker is None or broker.alive]
    assert [cluster.process(broker.id) for broker in cluster.brokers] == [None] * 3
    assert b"Traceback" not in rest
