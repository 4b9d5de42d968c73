"""`tinymq cluster`: failed disks, damaged replicas, and a wrong secret."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of
from tests.client.running import run as run_async
from tests.testing.test_disks import Disks
from tinymq import BrokerStatus, ClusterStatus, ReplicaStatus, TopicDescription
from tinymq.base.types import GroupId, TopicId
from tinymq.cli.common.exits import Exit
from tinymq.cli.common.servers import ServerOptions
from tinymq.cli.main import run
from tinymq.cli.verbs.cluster import describe
from tinymq.client.cluster.routing import Partition
from tinymq.client.common.values import as_datetime
from tinymq.log.files.layout import SEGMENT, group_directory, in_group
from tinymq.raft.rules.explanation import explain_candidate, explain_learner
from tinymq.testing.cluster import SECRET, Cluster

NEEDLE = b"a needle in the log"


def status(cluster: Cluster, code: Exit, capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capfd.readouterr()
    assert run(["cluster", "status", "-s", cluster.servers, "-o", "json"]) == code
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert document["healthy"] == (code == Exit.OK)
    return document


def ailing(document: dict[str, Any]) -> list[tuple[str, int, str, str]]:
    """Return (topic, broker, role, code of the reason) of every replica that does not take part."""
    ill = [r for r in document["replicas"] if r["role"] not in ("leader", "follower")]
    return [(r["topic"], r["broker"], r["role"], r["reason"].partition(":")[0]) for r in ill]


def shown(cluster: Cluster, capfd: pytest.CaptureFixture[str], *words: str) -> bool:
    """Return whether a line of the table has all of these words."""
    assert run(["cluster", "status", "-s", cluster.servers]) == Exit.FAILED
    return any(all(word in line for word in words) for line in capfd.readouterr().out.splitlines())


def make(cluster: Cluster) -> GroupId:
    """Create a topic with one acknowledged record, and return its group."""
    client = cluster.client()
    topic = client.admin.create_topic("t", partitions=1, replication_factor=3)
    client.send("t", NEEDLE)
    group = GroupId(TopicId(topic.topic_id), 0)
    cluster.wait_until(lambda: all(group in app.host.groups for app in cluster.brokers.values()))
    return group


def row(role: str, leader: int = 0, *, term: int = 1, reason: str = "", topic: str = "t") -> ReplicaStatus:
    return ReplicaStatus(
        topic=topic,
        partition=0,
        role=role,
        term=term,
        leader=leader,
        last_index=0,
        durable_index=0,
        commit_index=0,
        high_watermark=0,
        log_start=0,
        chain_crc=0,
        reason=reason,
        bytes=0,
    )


def three(*rows: ReplicaStatus | None, state: str = "running") -> ClusterStatus:
    """A cluster of brokers 1, 2, ..., each of which reports its row of t, or no replica; `state` is the last one's."""
    ids = tuple(range(1, len(rows) + 1))
    brokers = tuple(
        BrokerStatus(
            broker_id=n,
            address=f"b{n}",
            rack="",
            alive=True,
            state=state if n == len(rows) else "running",
            reason="",
            version="",
            replicas=(r,) if r else (),
        )
        for n, r in zip(ids, rows, strict=True)
    )
    topic = TopicDescription("t", b"i" * 16, (Partition(0, 1, 1, ids),), len(ids), as_datetime(0))
    return ClusterStatus(b"c" * 16, 1, 1, brokers, (topic,))


def reasons(*rows: ReplicaStatus) -> list[str]:
    return [replica["reason"] for replica in describe(three(*rows))["replicas"]]


def test_a_replica_that_its_broker_does_not_report_is_missing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def answer(status: ClusterStatus, *words: str) -> Exit:
        client = SimpleNamespace(admin=SimpleNamespace(cluster_status=lambda: status))
        monkeypatch.setattr(ServerOptions, "connect", lambda _: nullcontext(client))
        return Exit(run(["cluster", "status", *words]))

    rejoining = three(row("leader", 1), row("follower", 1), None)
    assert answer(rejoining, "-o", "json") == Exit.FAILED
    document = json.loads(capfd.readouterr().out)
    assert not document["healthy"]
    assert ailing(document) == [("t", 3, "missing", "broker 3 has not opened it yet")]
    assert answer(rejoining) == Exit.FAILED
    printed = capfd.readouterr()
    assert "metadata led by broker 1\n" in printed.err
    assert any("missing" in line and "broker 3 has not opened it yet" in line for line in printed.out.splitlines())
    assert answer(replace(rejoining, metadata_leader=0)) == Exit.FAILED
    assert "metadata led by no broker\n" in capfd.readouterr().err
    whole = three(row("leader", 1), row("follower", 1), row("follower", 1))
    assert answer(whole) == Exit.OK
    assert answer(replace(whole, topics=None)) == Exit.FAILED, "the assigned replicas are unknown"


def test_replicas_of_a_broker_that_does_not_answer_are_missing_too() -> None:
    for state in ("unreachable", "missing"):
        gone = ("t", 3, "missing", f"broker 3 is {state}")
        assert ailing(describe(three(row("leader", 1), row("follower", 1), None, state=state))) == [gone]
    lagging = row("follower", 1, topic=(b"i" * 16).hex())  # it does not know the topic's name yet
    assert ailing(describe(three(row("leader", 1), row("follower", 1), lagging))) == []


def test_where_others_have_a_leader_nothing_points_to_recover() -> None:
    alone = explain_learner("", None, 1, 0)
    waiting = "waiting to hear from its leader (broker 1)"
    learner = row("learner", reason=alone)
    assert reasons(row("leader", 1), row("follower", 1), learner) == ["", "", waiting]
    repaired = row("learner", reason=explain_learner("damage in 1.log", None, 1, 0))
    assert reasons(row("leader", 1), repaired)[1] == f"repairing: damage in 1.log; {waiting}"
    assert reasons(row("leader", 1), row("candidate", reason=explain_candidate()))[1] == waiting
    assert reasons(row("leader", 1, term=3), row("follower", 9, term=2), learner)[2] == waiting, (
        "the report with the latest term counts"
    )


def test_where_nobody_else_has_a_leader_the_way_to_recover_is_shown() -> None:
    alone = explain_learner("", None, 1, 0)
    learner = row("learner", reason=alone)
    assert reasons(row("candidate", reason=explain_candidate()), learner) == [explain_candidate(), alone]
    assert reasons(row("follower", 2), learner)[1] == alone, "the lost one itself, remembered as the leader"
    assert reasons(row("failed", 3, reason="SyncFailed: x"), learner)[1] == alone, (
        "a stopped broker reports nothing new"
    )
    assert reasons(row("leader", 1, topic="another"), learner)[-1] == alone


def test_a_failed_sync_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    disks = Disks(1)
    with Cluster(nodes=3, files_factory=disks) as cluster:
        group = make(cluster)
        assert ailing(status(cluster, Exit.OK, capfd)) == []
        leader = cluster.wait_leader("t")
        ill = next(n for n in (1, 2, 3) if n != leader)
        disks.of[ill].fail_sync(f"{group_directory(group)}*")
        cluster.client().send("t", b"the others take it")
        cluster.wait_until(lambda: cluster.brokers[ill].host.groups[group].failure is not None)
        assert ailing(status(cluster, Exit.FAILED, capfd)) == [("t", ill, "failed", "SyncFailed")]
        assert shown(cluster, capfd, "t", "failed", "SyncFailed")


def test_a_failed_sync_of_votes_fails_the_broker(capfd: pytest.CaptureFixture[str]) -> None:
    disks = Disks(2)
    with Cluster(nodes=3, files_factory=disks) as cluster:
        gone = cluster.call(lambda: cluster.brokers[1].metadata_leader())
        ill = next(n for n in (1, 2, 3) if n != gone)
        disks.of[ill].fail_sync("ballots*", once=False)
        cluster.kill(gone)
        cluster.wait_until(lambda: cluster.brokers[ill].state.value == "failed")
        states = {b["id"]: b["state"] for b in status(cluster, Exit.FAILED, capfd)["brokers"]}
        assert states == {gone: "unreachable", ill: "failed", 6 - gone - ill: "running"}


def test_a_quarantined_replica_is_shown_and_repaired_by_a_majority(capfd: pytest.CaptureFixture[str]) -> None:
    disks = Disks(3)
    with Cluster(nodes=3, files_factory=disks) as cluster:
        group = make(cluster)
        leader = cluster.wait_leader("t")
        ill, away = (n for n in (1, 2, 3) if n != leader)
        cluster.wait_until(lambda: cluster.brokers[ill].host.groups[group].log.durable_index >= 3)
        cluster.kill(away)
        cluster.stop(ill)
        segment = in_group(group_directory(group), 1, SEGMENT)
        disks.of[ill].flip_bit(segment, disks.of[ill].content(segment).index(NEEDLE))
        cluster.start(ill)
        cluster.wait_until(lambda: group in cluster.brokers[ill].host.groups)
        assert ("t", ill, "quarantined", "CorruptData") in ailing(status(cluster, Exit.FAILED, capfd))
        assert shown(cluster, capfd, "t", "quarantined", "CorruptData")
        cluster.start(away)
        assert cluster.client().send("t", b"the others go on").offset == 1
        cluster.wait_until(lambda: cluster.brokers[ill].host.groups[group].role.value == "follower")
        assert ailing(status(cluster, Exit.OK, capfd)) == []


def test_init_with_another_secret_is_denied(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"not the secret of this cluster")
    secret.chmod(0o600)
    init = ["cluster", "init", "--secret-file", str(secret)]
    with Cluster(nodes=3, form=False) as cluster:
        assert run([*init, "-s", cluster.servers]) == Exit.DENIED
        said = capfd.readouterr().err
        assert "[WrongSecret]" in said
        assert "hint: " in said
        assert [app.state.value for app in cluster.brokers.values()] == ["unformed"] * 3
        secret.write_bytes(SECRET)
        assert run([*init, "-s", cluster.servers]) == Exit.OK
        assert "formed of brokers 1, 2, 3" in capfd.readouterr().err
        assert run([*init, "-s", cluster.servers, "-o", "json"]) == Exit.OK
        out, err = capfd.readouterr()
        assert "was formed before" in err
        formed = json.loads(out)
        assert (formed["brokers"], formed["newly_formed"]) == ([1, 2, 3], [])


def test_the_status_has_the_topics_of_the_broker_that_knows_most() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t", 2)
        cluster.ignorant |= {1, 3}
        async with client_of(cluster) as mq:
            (topic,) = (await mq.admin.cluster_status()).topics
            assert (topic.name, [p.replicas for p in topic.partitions]) == ("t", [(1, 2, 3), (2, 3, 1)])

    run_async(scenario())
