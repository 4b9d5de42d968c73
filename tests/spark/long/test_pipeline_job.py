"""`make pipeline` prints ok and writes a page, reports differences, and leaves no process behind after Ctrl-C."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from examples.flights import source
from pipelines import job, load, reference
from pipelines.job import Job
from tests.spark.pipeline_runs import left_of
from tinymq.cli.common.exits import Exit
from tinymq.dev import dev_cluster, dev_directory

ROOT = Path(__file__).resolve().parents[3]
CLUSTER = Path(".tinymq") / "pipeline" / "cluster"
DEADLINE_S = 600.0
FEW = 6_000


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """The job on the first days of the year, with the reference of the same days."""
    flights = source.load(source.find_data())[:FEW]
    last = max(flight.timestamp_us for flight in flights) // 1_000_000
    of_all = reference.delays

    def of_few(path: Path) -> object:
        found = of_all(path)
        return found[found["hour"].map(lambda hour: hour.timestamp()) <= last]

    whole_hours = [flight for flight in source.load(source.find_data()) if flight.timestamp_us // 1_000_000 <= last]
    monkeypatch.setattr(load, "flights", lambda: whole_hours)
    monkeypatch.setattr(reference, "delays", of_few)
    return Job(tmp_path / "pipeline", Console(file=io.StringIO(), width=200))


def _said(job: Job) -> list[str]:
    assert isinstance(job.console.file, io.StringIO)
    return job.console.file.getvalue().splitlines()


@pytest.mark.timeout(1800)
def test_it_says_ok_twice_and_leaves_a_page_and_no_broker(few: Job) -> None:
    for _ in range(2):
        assert few.run(), _said(few)
        assert _said(few)[-1].startswith("ok: ")
        assert "0 dropped, 0 differences" in _said(few)[-1]
        assert (few.folder / "delays.html").read_text().startswith("<!doctype html>")
        assert not (few.folder / "cluster").exists()


@pytest.mark.timeout(900)
def test_differences_are_printed(few: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference with different figures."""
    of_few = reference.delays
    monkeypatch.setattr(reference, "delays", lambda path: of_few(path).iloc[1:])
    monkeypatch.setattr(job, "BATCH_RECORDS", FEW)
    assert not few.run()
    said = _said(few)
    assert any(line.startswith("not ok: ") for line in said)
    assert not any(line.startswith("ok: ") for line in said)
    assert any(line.startswith("differs: Parquet: foreign") for line in said)
    assert any(line.startswith("differs: topic delays: foreign") for line in said)
    assert [state.state for state in dev_cluster.status(few.folder / "cluster")] == ["stopped"] * 3


@pytest.mark.timeout(900)
def test_no_process_outlives_an_interrupt(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-u", "-m", "pipelines"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "spark"), str(ROOT)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert run.stdout is not None
    deadline = time.monotonic() + DEADLINE_S
    said = b""
    while b"windows 0:" not in said:
        ready, _, _ = select.select([run.stdout], [], [], deadline - time.monotonic())
        assert ready, said
        read = os.read(run.stdout.fileno(), 65536)
        assert read, said
        said += read
    cluster = dev_directory.load(tmp_path / CLUSTER)
    brokers = [cluster.process(broker.id) for broker in cluster.brokers]
    (spark,) = [child for child in _children(run.pid) if child not in {b.pid for b in brokers if b is not None}]
    assert left_of(spark), "Spark runs in a session of its own"
    # Like a terminal: the whole foreground group gets the signal, perhaps twice.
    os.killpg(run.pid, signal.SIGINT)
    os.killpg(run.pid, signal.SIGINT)
    rest, _ = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == Exit.INTERRUPTED, said + rest
    assert not [broker for broker in brokers if broker is None or broker.alive]
    while left_of(spark):  # Spark's workers notice that their parent has ended
        assert time.monotonic() < deadline, left_of(spark)
        select.select([], [], [], 0.05)
    assert b"Traceback" not in rest
    assert b"neither Spark nor a broker is left running" in rest


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
