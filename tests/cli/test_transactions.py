"""Transactions by the command line, against a real cluster: listed, described and rolled back."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tinymq import Client
from tinymq.base.errors import TransactionAborted
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.testing import Cluster

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("servers")


def shown(capfd: Capture, *words: str) -> Any:
    capfd.readouterr()
    assert run(["transaction", *words, "-o", "json"]) == Exit.OK
    return json.loads(capfd.readouterr().out)


def test_transactions_are_listed_described_and_rolled_back(cluster: Cluster, topic: str, capfd: Capture) -> None:
    assert shown(capfd, "list") == {"transactional_ids": []}
    with cluster.client() as mq:
        with mq.transaction("done") as tx:
            tx.send(topic, b"v")
        still = open_transaction(mq, topic)

        first, second = shown(capfd, "list")["transactional_ids"]
        (found,) = first["transactions"]
        assert (first["transactional_id"], first["committed"]) == ("billing-1", None)
        assert (found["number"], found["state"]) == (1, "open")
        assert found["partitions"] == [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 1}]
        ends_in = datetime.fromisoformat(found["until"]) - datetime.now(UTC)
        assert timedelta(minutes=5) < ends_in <= timedelta(minutes=10)
        assert (second["transactional_id"], second["transactions"], second["committed"]) == ("done", [], True)
        assert shown(capfd, "describe", "billing-1") == first

        assert run(["transaction", "list"]) == Exit.OK
        header, billing, done = capfd.readouterr().out.splitlines()
        assert header.split() == ["transactional", "id", "epoch", "newest", "partitions", "ends", "in", "used"]
        assert billing.split()[:4] == ["billing-1", "0", "open", "2"]
        assert done.split()[:5] == ["done", "0", "committed", "0", "-"]
        assert run(["transaction", "describe", "billing-1"]) == Exit.OK
        assert f"{topic}/0, {topic}/1" in capfd.readouterr().out
        assert run(["transaction", "describe", "done"]) == Exit.OK
        assert "its newest one: committed" in capfd.readouterr().err

        assert run(["transaction", "abort", "billing-1", "--dry-run"]) == Exit.OK
        assert "would be rolled back" in capfd.readouterr().err
        assert run(["transaction", "abort", "billing-1"]) == Exit.USAGE, "a script has to pass --yes"
        assert shown(capfd, "abort", "billing-1", "--yes") == {
            "transactional_id": "billing-1", "number": 1, "aborted": True,
        }  # fmt: skip
        with pytest.raises(TransactionAborted):
            still.commit()
        for name, hint in (("billing-1", "describe billing-1"), ("missing", "transaction list")):
            assert run(["transaction", "abort", name, "--yes"]) == Exit.NOT_FOUND
            assert hint in capfd.readouterr().err
        assert run(["transaction", "list"]) == Exit.OK
        assert "rolled back" in capfd.readouterr().out


def open_transaction(mq: Client, topic: str) -> Any:
    tx = mq.transaction("billing-1", transaction_timeout_ms=600_000)
    tx.begin()
    for partition in (0, 1):
        tx.send(topic, b"v", partition=partition).result(10)
    return tx
