"""The brokers that served a scan, by the command line, against a real cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.testing import Cluster

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        yield running


def document(capfd: Capture, *argv: str) -> Any:
    capfd.readouterr()
    assert run([*argv, "-o", "json"]) == Exit.OK, capfd.readouterr().err
    return json.loads(capfd.readouterr().out)


def test_a_scan_is_listed_and_described(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    monkeypatch.setenv("TINYMQ_SERVERS", cluster.servers)
    assert document(capfd, "scan", "list") == {"scans": []}
    assert run(["topic", "create", "t"]) == Exit.OK
    assert run(["queue", "push", "t/0", *"abcdef"]) == Exit.OK
    leader = cluster.wait_leader("t")
    follower = next(broker for broker in (1, 2, 3) if broker != leader)
    with cluster.client() as mq:
        for broker in (follower, leader):
            with mq.scan("t", 0, 1, 5, scan_id=f"query-{broker}", replicas=((broker,),)) as scan:
                assert sum(batch.num_rows for batch in scan) == 4

    for broker, role in ((follower, "follower"), (leader, "leader")):
        found = document(capfd, "scan", "describe", f"query-{broker}")
        (served,) = found["served"]
        assert (served["topic"], served["partition"], served["broker"], served["role"]) == ("t", 0, broker, role)
        assert (served["records"], served["bytes"]) == (4, found[f"{role}_bytes"])
        assert (found["silent"], found["leader_bytes"] == 0) == ([], role == "follower")
    listed = document(capfd, "scan", "list")["scans"]
    assert [(scan["scan"], scan["brokers"]) for scan in listed] == [
        (f"query-{leader}", [leader]), (f"query-{follower}", [follower]),
    ]  # fmt: skip
    assert [scan["leader_bytes"] for scan in listed] == [listed[0]["bytes"], 0]

    capfd.readouterr()
    assert run(["scan", "describe", f"query-{follower}"]) == Exit.OK
    out, err = capfd.readouterr()
    assert "follower" in out
    assert f"{listed[1]['bytes']} bytes by followers, 0 by leaders" in err
    assert run(["scan", "list"]) == Exit.OK
    assert "by leaders" in capfd.readouterr().out
    assert run(["scan", "describe", "never"]) == Exit.NOT_FOUND
    assert "tinymq scan list" in capfd.readouterr().err
    assert run(["scan", "describe", "no name!"]) == Exit.USAGE
    cluster.kill(follower)
    assert document(capfd, "scan", "list")["scans"][0]["scan"] == f"query-{leader}"
    assert run(["scan", "describe", f"query-{follower}"]) == Exit.NOT_FOUND, "the stopped broker lost its counts"
