"""Transactions whose coordinator has lost their record: found and resolved by the command line, on a real cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tinymq import Client
from tinymq.base.errors import Fenced
from tinymq.broker.groups.groups import COORDINATOR_TOPIC, COORDINATORS
from tinymq.broker.members.coordinator_replica import CoordinatorReplica
from tinymq.broker.transactions import led_transactions
from tinymq.broker.transactions.commands import NoteLoss
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.testing import Cluster

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("servers")
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def impatient_leaders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(led_transactions, "ASK_EVERY_S", 0.05)
        yield


def shown(capfd: Capture, *words: str) -> Any:
    capfd.readouterr()
    assert run(["transaction", *words, "-o", "json"]) == Exit.OK
    return json.loads(capfd.readouterr().out)


def lose_all(cluster: Cluster) -> None:
    """Have each partition of `__coordinator` note that it lost a part of its log."""
    fresh = cluster.run(cluster.registry(1).take_producer_ids(1)).start  # those from before the loss are lower
    for number in range(COORDINATORS):
        leader = cluster.wait_leader(COORDINATOR_TOPIC, number)
        cluster.run(led(cluster, leader, number).decide("", NoteLoss(0, fresh)))


def led(cluster: Cluster, broker_id: int, number: int) -> CoordinatorReplica:
    broker = cluster.brokers[broker_id].serving.running()
    topic = broker.registry.get_topic(COORDINATOR_TOPIC)
    assert topic is not None
    return broker.replica_host.internal[(topic.topic_id, number)]


def open_transaction(mq: Client, name: str, topic: str) -> Any:
    tx = mq.transaction(name)
    tx.begin()
    for partition in (0, 1):
        tx.send(topic, name.encode(), partition=partition).result(10)
    return tx


def wait_hung(mq: Client, count: int) -> None:
    until_s = time.monotonic() + WAIT_S
    while len(mq.admin.list_hung_transactions()) != count:
        assert time.monotonic() < until_s


def read(mq: Client, topic: str, count: int) -> list[bytes | None]:
    with mq.reader(topic) as reader:
        found: list[bytes | None] = []
        while len(found) < count:
            found += [message.value for message in reader.poll(timeout=10.0)]
    return found


def test_what_a_coordinator_lost_is_found_and_resolved(cluster: Cluster, topic: str, capfd: Capture) -> None:
    with cluster.client() as mq:
        first, second = open_transaction(mq, "billing-1", topic), open_transaction(mq, "billing-2", topic)
        names = {
            name: f"{mq.admin.describe_transactional_id(name).producer_id}-0-1" for name in ("billing-1", "billing-2")
        }
        assert shown(capfd, "list", "--hung") == {"hung": []}, "the coordinator knows them: they are open"
        for words in (["--abort"], ["--commit"]):
            assert run(["transaction", "resolve", names["billing-1"], *words, "--yes"]) == Exit.NOT_FOUND

        lose_all(cluster)
        wait_hung(mq, 4)
        hung = shown(capfd, "list", "--hung")["hung"]
        assert {(each["transaction"], each["topic"], each["partition"]) for each in hung} == {
            (name, topic, partition) for name in names.values() for partition in (0, 1)
        }
        assert {(each["reason"], each["batches"], each["records"]) for each in hung} == {("unresolved", 1, 1)}

        one, two = names["billing-1"], names["billing-2"]
        assert run(["transaction", "resolve", one]) == Exit.USAGE, "it has to be decided"
        assert run(["transaction", "resolve", one, "--commit", "--abort"]) == Exit.USAGE
        assert run(["transaction", "resolve", "nonsense", "--abort", "--yes"]) == Exit.NOT_FOUND
        assert run(["transaction", "resolve", one, "--commit"]) == Exit.USAGE, "a script has to pass --yes"
        assert run(["transaction", "resolve", one, "--commit", "--dry-run"]) == Exit.OK
        assert "would be committed" in capfd.readouterr().err
        wait_hung(mq, 4)

        resolved = shown(capfd, "resolve", one, "--commit", "--yes")
        assert (resolved["decision"], resolved["resolved"], resolved["carried_out"]) == ("commit", True, True)
        assert run(["transaction", "resolve", one, "--abort", "--yes"]) == Exit.NOT_FOUND
        assert shown(capfd, "resolve", two, "--abort", "--yes")["carried_out"]
        assert shown(capfd, "list", "--hung") == {"hung": []}
        assert sorted(read(mq, topic, 2)) == [b"billing-1", b"billing-1"]
        for tx in (first, second):
            with pytest.raises(Fenced):
                tx.commit()
    with cluster.client() as mq, mq.transaction("billing-1") as tx:
        tx.send(topic, b"goes on")
