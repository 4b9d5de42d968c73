"""`tinymq cluster status` while brokers die: a dead broker is shown as missing until it returns."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tinymq.base.config import Timing
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.testing import Cluster

DEADLINE_S = 40.0
TIMING = Timing(registration_lease_s=1.0, registration_renew_s=0.2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three brokers, unregistered a second after they died."""
    with Cluster(nodes=3, timing=TIMING) as running:
        yield running


class Status:
    """Calls `tinymq cluster status` repeatedly."""

    def __init__(self, cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
        self._where = ["-s", cluster.servers]
        self._capfd = capfd

    def __call__(self) -> tuple[int, dict[str, Any]]:
        self._capfd.readouterr()
        code = run(["cluster", "status", *self._where, "-o", "json"])
        document: dict[str, Any] = json.loads(self._capfd.readouterr().out)
        assert document["healthy"] == (code == Exit.OK)
        return code, document

    def until_missing(self, number: int) -> dict[str, Any]:
        """From the death of the broker on, every call exits with 1."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            code, document = self()
            assert code == Exit.FAILED, document
            state = next((b["state"] for b in document["brokers"] if b["id"] == number), None)
            if state == "missing":
                return document
            assert state in ("running", "unreachable"), "a broker that has just died may still be listed as before"
            threading.Event().wait(0.05)
        raise AssertionError(f"broker {number} is not missed: {document}")

    def until_well(self) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            code, document = self()
            if code == Exit.OK:
                return document
            threading.Event().wait(0.05)
        raise AssertionError(document)


def broker(document: dict[str, Any], number: int) -> dict[str, Any]:
    found: dict[str, Any] = next(b for b in document["brokers"] if b["id"] == number)
    return found


def absent(document: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(r["topic"], r["partition"], r["broker"]) for r in document["replicas"] if r["role"] == "missing"]


def test_a_dead_broker_is_missing_until_it_is_back(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    status = Status(cluster, capfd)
    cluster.client().admin.create_topic("t", partitions=2, replication_factor=3)
    status.until_well()
    cluster.kill(2)
    dead = status.until_missing(2)
    assert absent(dead) == [("(metadata)", 0, 2), ("t", 0, 2), ("t", 1, 2)]
    found = broker(dead, 2)
    assert (found["registered"], found["address"], found["votes"]) == (False, None, True)
    assert 0.5 < found["last_heard_s"] < DEADLINE_S
    capfd.readouterr()
    assert run(["cluster", "status", "-s", cluster.servers]) == Exit.FAILED
    printed = capfd.readouterr()
    assert "broker 2 is missing: it votes on the metadata and has replicas, and is not registered; last heard" in (
        printed.err
    )
    assert any(
        line.split()[:3] == ["t", "0", "2"] and "broker 2 is missing" in line for line in printed.out.split("\n")
    )
    cluster.start(2)
    assert broker(status.until_well(), 2)["state"] == "running"


def test_a_dead_observer_is_missing_only_if_it_has_replicas(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    status = Status(cluster, capfd)
    added = cluster.add()
    status.until_well()
    cluster.stop(added)
    status.until_well()  # a stopped broker without a vote or a replica of a topic is not missing
    cluster.start(added)
    cluster.client().admin.create_topic("u", partitions=1, replication_factor=4)
    status.until_well()
    cluster.stop(added)
    document = status.until_missing(added)
    assert absent(document) == [("u", 0, added)]
    assert "has replicas" in broker(document, added)["reason"]
