"""The contract of measured systems, by the one that needs no installation, and the pacing of offered records."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from benchmarks.peers import pacing
from benchmarks.peers.contract import WORKLOADS, Measured, MissingPiece
from benchmarks.peers.smoke import arguments
from benchmarks.peers.stage import Stage
from benchmarks.peers.systems import SYSTEMS


def test_a_system_runs_its_workloads_through_the_contract(tmp_path: Path) -> None:
    with Stage(tmp_path, ["bare"]) as stage:
        stage.make("bare", "t", partitions=1)
        for workload in WORKLOADS:
            if SYSTEMS["bare"].has(workload):
                found = stage.run("bare", workload, **arguments(workload, "t"))
                assert found.measured.records > 0
                assert found.measured.rate > 0
        assert len(found.measured.took_ms) in (0, found.measured.records)
        (driver,) = stage._drivers.values()
        pids = stage.servers["bare"].pids()
    assert len(pids) == 3
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert driver._process.poll() == 0


def test_a_missing_piece_ends_the_run_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path, ["bare"])

    def start(folder: Path) -> None:
        raise MissingPiece("a server: the command")

    monkeypatch.setattr(stage.servers["bare"], "start", start)
    with pytest.raises(SystemExit, match="a server: the command"), stage:
        pass


def test_our_own_adapter_has_every_workload() -> None:
    assert [workload for workload in WORKLOADS if not SYSTEMS["tinymq"].has(workload)] == []


def test_a_measurement_survives_its_way_over_a_pipe() -> None:
    measured = Measured(2, 0.5, 0.1, [1.5, 2.5])
    assert Measured.parse(measured.dump()) == measured
    assert measured.rate == 4


def test_offered_records_are_timed_from_when_they_were_due() -> None:
    """One send blocks the client. The records that were due meanwhile are late, although each of them is quick."""
    sends = 0

    async def send() -> None:
        nonlocal sends
        sends += 1
        if sends == 2:  # the first one does not count
            deadline_s = time.perf_counter() + 0.1
            while time.perf_counter() < deadline_s:
                pass

    took_ms = asyncio.run(pacing.offered(11, 100.0, send)).took_ms
    assert len(took_ms) == 11
    late = [ms for ms in took_ms if ms >= 20]
    assert len(late) >= 7  # of those due within 100 ms


def test_handled_records_say_when_they_were_due() -> None:
    took_s: list[float] = []

    async def send(value: bytes) -> None:
        assert len(value) == 100
        took_s.append(pacing.passed_s(value))

    measured = asyncio.run(pacing.passed(5, 100, 1000.0, send, took_s))
    assert measured.records == 5
    assert all(0 <= ms < 60_000 for ms in measured.took_ms)
