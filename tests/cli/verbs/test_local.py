"""`tinymq doctor` and `tinymq bench`: what they find, and what they measure."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tinymq.base.errors import BrokerUnreachable, InvalidRequest
from tinymq.base.version import VERSION
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.cli.verbs.local import bench, doctor
from tinymq.net import loopback_ports
from tinymq.proto import tinymq_pb2 as pb

Capture = pytest.CaptureFixture[str]


def document(capfd: Capture, *command: str, code: int = Exit.OK) -> dict[str, Any]:
    capfd.readouterr()
    assert run([*command, "-o", "json"]) == code
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


# ---- doctor ---------------------------------------------------------------------------------------------------------


def test_a_healthy_cluster_is_well(servers: None, tmp_path: Path, capfd: Capture) -> None:
    findings = document(capfd, "doctor", "--data-dir", str(tmp_path))["findings"]
    assert [each for each in findings if each["verdict"] == "wrong"] == []
    assert sum(each["found"].endswith(f"of version {VERSION} is running") for each in findings) == 3
    assert {"versions", "disk space", "disk sync", "clock", "open files"} <= {each["what"] for each in findings}
    assert list(tmp_path.iterdir()) == [], "its file is gone"


def test_an_address_where_nothing_listens_is_wrong(tmp_path: Path, capfd: Capture) -> None:
    with socket.socket() as taken:  # bound, and not listening: no other process can take the port
        taken.bind((loopback_ports.HOST, 0))
        address = f"{loopback_ports.HOST}:{taken.getsockname()[1]}"
        command = ["doctor", "--data-dir", str(tmp_path), "-s", address]
        findings = document(capfd, *command, code=Exit.FAILED)["findings"]
        assert (findings[-1]["what"], findings[-1]["found"]) == (address, "nothing listens there")
        assert run(command) == Exit.FAILED
    assert capfd.readouterr().out.startswith("1 wrong, ")


def test_answers_of_brokers_are_judged() -> None:
    def judged(**values: Any) -> tuple[str, str]:
        finding = doctor.broker("a:1", pb.ClusterStatusReply(broker_id=1, **values))
        return finding.verdict, finding.do

    assert judged(state="running", version=VERSION) == ("ok", "")
    assert judged(state="running", version="0.0.1") == ("warning", "upgrade the older one")
    assert judged(state="unformed", version=VERSION) == ("wrong", "form the cluster: tinymq cluster init")
    assert judged(state="failed", version=VERSION)[0] == "wrong"
    refused = doctor.broker("a:1", BrokerUnreachable("a:1: an HTTP server listens there"))
    assert (refused.verdict, refused.found) == ("wrong", "an HTTP server listens there")


def test_limits_and_clocks_are_judged(tmp_path: Path) -> None:
    assert doctor.open_files(1024, 1 << 20).verdict == "ok", "a broker raises the soft limit itself"
    assert doctor.open_files(1024, 4096).verdict == "warning"
    assert [doctor.clock(status).verdict for status in (0, 0x40, None)] == ["ok", "warning", "warning"]
    setting = tmp_path / "somaxconn"
    assert doctor.backlog(setting).verdict == "warning"
    setting.write_text("128\n")
    assert "net.core.somaxconn" in doctor.backlog(setting).do
    setting.write_text("4096\n")
    assert doctor.backlog(setting).verdict == "ok"
    (missing,) = doctor.disk(tmp_path / "missing")
    assert missing.verdict == "wrong"


def test_a_slow_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for took_ms, verdict in ((0.5, "ok"), (100.0, "warning")):
        monkeypatch.setattr(doctor, "sync_times_ms", lambda directory, took_ms=took_ms: [took_ms, took_ms, 3 * took_ms])
        _, sync = doctor.disk(tmp_path)
        assert (sync.verdict, "a faster disk" in sync.do) == (verdict, verdict == "warning")


# ---- bench ----------------------------------------------------------------------------------------------------------


def test_records_are_produced_consumed_and_timed(topic: str, capfd: Capture) -> None:
    sent = document(capfd, "bench", "produce", topic, "-n", "500", "--size", "10", "--rate", "5000")
    assert (sent["records"], sent["failed"]) == (500, 0)
    assert 0 < sent["p50_ms"] <= sent["p99_ms"] <= sent["max_ms"]
    read = document(capfd, "bench", "consume", topic)
    assert read["records"] == 500
    both = document(capfd, "bench", "e2e", topic, "-n", "50", "--rate", "500")
    assert both["records"] == 50
    assert 0 < both["p50_ms"] <= both["p99.9_ms"]


def test_a_stall_counts_for_every_record_that_was_due_during_it() -> None:
    """Ten records, one each second; the client stands still for five of them."""
    now = [0.0]
    latencies = []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def send(number: int, due: float) -> None:
        if number == 2:
            now[0] += 5.0
        latencies.append(now[0] - due)

    bench.offer(10, 1.0, send, clock=lambda: now[0], sleep=sleep)
    assert latencies == [0.0, 0.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0]


def test_percentiles_of_known_numbers() -> None:
    found = bench.percentiles([number / 1000 for number in range(1001)])
    assert {name: round(value, 6) for name, value in found.items()} == {
        "p50": 500.0, "p90": 900.0, "p99": 990.0, "p99.9": 999.0, "max": 1000.0,
    }  # fmt: skip
    assert bench.percentiles([]) == {}


def test_numbers_out_of_range_are_refused() -> None:
    for records, size, rate in ((0, 1, 0.0), (1, -1, 0.0), (1, 1, -1.0), (1, 1, float("nan"))):
        with pytest.raises(InvalidRequest, match="out of range"):
            bench.check(records, size, rate)
