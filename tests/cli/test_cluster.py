"""`tinymq cluster`: what it says of disks that failed, of damage, and of a secret that is another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.testing.test_disks import Disks
from tinymq.cli.exits import Exit
from tinymq.cli.main import run
from tinymq.log.layout import SEGMENT, group_folder, in_group
from tinymq.testing.cluster import SECRET, Cluster
from tinymq.types import GroupId, TopicId

NEEDLE = b"a needle in the log"


def status(cluster: Cluster, code: Exit, capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capfd.readouterr()
    assert run(["cluster", "status", "-s", cluster.servers, "-o", "json"]) == code
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert document["healthy"] == (code == Exit.OK)
    return document


def ailing(document: dict[str, Any]) -> list[tuple[str, int, str, str]]:
    """(topic, broker, role, code of the reason) of every replica that does not take part."""
    ill = [r for r in document["replicas"] if r["role"] not in ("leader", "follower")]
    return [(r["topic"], r["broker"], r["role"], r["reason"].partition(":")[0]) for r in ill]


def shown(cluster: Cluster, capfd: pytest.CaptureFixture[str], *words: str) -> bool:
    """Does the table for people have a line with all of these?"""
    assert run(["cluster", "status", "-s", cluster.servers]) == Exit.FAILED
    return any(all(word in line for word in words) for line in capfd.readouterr().out.splitlines())


def make(cluster: Cluster) -> GroupId:
    """A topic with one acknowledged record; its group."""
    client = cluster.client()
    topic = client.admin.create_topic("t", partitions=1, replication_factor=3)
    client.send("t", NEEDLE)
    return GroupId(TopicId(topic.topic_id), 0)


def test_a_failed_sync_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    disks = Disks(1)
    with Cluster(nodes=3, files_factory=disks) as cluster:
        group = make(cluster)
        assert ailing(status(cluster, Exit.OK, capfd)) == []
        leader = cluster.wait_leader("t")
        ill = next(n for n in (1, 2, 3) if n != leader)
        disks.of[ill].fail_sync(f"{group_folder(group)}*")
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
        segment = in_group(group_folder(group), 1, SEGMENT)
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
