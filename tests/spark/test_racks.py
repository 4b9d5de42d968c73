"""Brokers with racks: the broker that serves a task in one of the racks, on no broker's host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_tinymq.session import session
from tests.spark.reading import batch, numbers, planned, read, send
from tinymq import Client
from tinymq.testing.cluster import Cluster

RACKS = {1: "r1", 2: "r2", 3: "r3"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, racks=RACKS) as brokers:
        yield brokers
        session.close_all()


@pytest.fixture(scope="module")
def mq(cluster: Cluster) -> Client:
    """A cluster with a topic `racked` of 20 records on all three brokers."""
    client = cluster.client()
    client.admin.create_topic("racked")
    send(cluster, "racked", 20)
    return client


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """All brokers are on this host. If the task were too, the rack would not matter."""
    monkeypatch.setattr(session, "hosts", lambda: frozenset({"elsewhere"}))


def served(cluster: Cluster, mq: Client, scan_id: str, **options: object) -> set[int]:
    """The broker that served a task that read everything."""
    reader = batch(cluster, subscribe="racked", scanId=scan_id, **options)
    tasks = planned(reader)
    assert {replica.broker: replica.rack for replica in tasks[0].replicas} == RACKS
    assert numbers(read(reader, tasks)) == list(range(20))
    return {each.broker for each in mq.admin.describe_scan(scan_id).served}


@pytest.mark.parametrize("broker", RACKS)
@pytest.mark.parametrize("given", ["option", "environment"])
def test_the_replica_of_the_own_rack_serves(
    cluster: Cluster, mq: Client, monkeypatch: pytest.MonkeyPatch, broker: int, given: str
) -> None:
    """With replica=nearest the leader may serve too: it is one of the three."""
    options: dict[str, object] = {"rack": RACKS[broker]} if given == "option" else {}
    if given == "environment":
        monkeypatch.setenv(session.RACK, RACKS[broker])
    assert served(cluster, mq, f"near-{broker}-{given}", replica="nearest", **options) == {broker}


def test_a_follower_of_another_rack_goes_before_the_leader_of_the_own(cluster: Cluster, mq: Client) -> None:
    """The promise of replica=follower; a follower in the task's rack comes first."""
    leader = cluster.wait_leader("racked")
    followers = RACKS.keys() - {leader}
    for broker in RACKS:
        found = served(cluster, mq, f"follow-{broker}", replica="follower", rack=RACKS[broker])
        assert found == {broker} if broker != leader else found <= followers
        assert leader not in found


def test_when_the_own_rack_is_down_another_one_serves(cluster: Cluster, mq: Client) -> None:
    dead = next(broker for broker in RACKS if broker != cluster.wait_leader("racked"))
    cluster.kill(dead)
    assert dead not in served(cluster, mq, "far", replica="nearest", rack=RACKS[dead])
    cluster.start(dead)
