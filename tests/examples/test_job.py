"""The whole job on few flights: it prints ok, or the differences."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from examples.flights import produce, source
from examples.flights.fault import Fault
from examples.flights.job import Job
from examples.flights.source import Flight
from tinymq.client import Client
from tinymq.dev import dev_cluster

FLIGHTS = [Flight(b"UA%d" % (i % 97), b'{"flight":%d}' % i, 1_357_034_400_000_000 + i) for i in range(4000)]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(source, "find_data", lambda: tmp_path)
    monkeypatch.setattr(source, "load", lambda _: list(FLIGHTS))
    return Job(tmp_path / "flights", Console(file=io.StringIO(), width=200))


def _said(job: Job) -> list[str]:
    assert isinstance(job.console.file, io.StringIO)
    return job.console.file.getvalue().splitlines()


def test_all_is_well(job: Job) -> None:
    assert job.run(), _said(job)
    said = _said(job)
    assert said[-1] == "ok: 4000 flights acknowledged, 4000 read from followers, 0 lost, 0 twice"
    assert any("kill -9 of broker" in line for line in said)
    assert any(line.startswith("replicas equal") and "18 of 18" in line for line in said)
    assert not job.folder.exists()


def test_differences_are_printed_and_nothing_is_left_running(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client writes a flight a second time, and a bit flips on a stopped broker's disk."""
    produce_all = produce.produce

    def and_one_again(client: Client, topic: str, *args: object) -> produce.Production:
        production = produce_all(client, topic, *args)  # type: ignore[arg-type]
        client.send(topic, FLIGHTS[7].value, key=FLIGHTS[7].key, timestamp=FLIGHTS[7].timestamp_us)
        return production

    stop_all = dev_cluster.down

    def and_flip_a_bit(path: Path, *, purge: bool) -> object:
        stopped = stop_all(path, purge=purge)
        topics = sorted((path / "broker-2" / "groups").glob("*/0/*.log"), key=lambda p: p.stat().st_size)
        if topics:
            data = bytearray(topics[-1].read_bytes())
            data[1000] ^= 1
            topics[-1].write_bytes(data)
        return stopped

    monkeypatch.setattr(produce, "produce", and_one_again)
    monkeypatch.setattr(dev_cluster, "down", and_flip_a_bit)
    assert not job.run()
    said = _said(job)
    assert any(line.startswith("not ok: 4000 flights acknowledged, 4001 read") for line in said)
    assert any("read 2 times: flight 7" in line for line in said)
    assert any("on broker 2" in line and "checksum" in line for line in said)
    assert [s.state for s in dev_cluster.status(job.folder)] == ["stopped"] * 3


@pytest.mark.long  # test_replicas.py has the line that says it, and the test above that the job passes such lines on
def test_a_broker_that_does_not_come_back_is_reported(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.flights.job.CATCH_UP_S_MAX", 1.0)
    monkeypatch.setattr(Fault, "restart", lambda self: None)
    monkeypatch.setattr(dev_cluster, "wait_ready", lambda *_: None)
    assert not job.run()
    assert any("2 of 3 replicas answer" in line for line in _said(job))
