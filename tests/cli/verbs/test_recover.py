"""`tinymq cluster recover` after two of three disks were lost: show the groups, recover with --accept-loss."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_rejoin import PARTITIONS, TOPIC, chains, make, read, roles, send, status, takes_part
from tinymq import Offset
from tinymq.base.errors import Fenced, OffsetOutOfRange
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.testing.cluster import SECRET, Cluster

Recover = Callable[..., dict[str, Any]]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture
def recover(secret: Path, capfd: pytest.CaptureFixture[str]) -> Recover:
    """Run the command against a cluster, check its exit code, and return its document."""

    def call(cluster: Cluster, code: Exit, *options: str) -> dict[str, Any]:
        capfd.readouterr()
        command = ["cluster", "recover", "-s", cluster.servers, "--secret-file", str(secret), "-o", "json", *options]
        assert run(command) == code
        document: dict[str, Any] = json.loads(capfd.readouterr().out)
        return document

    return call


def lose(cluster: Cluster, *broker_ids: int) -> None:
    """Lose several disks at once: the brokers come back with empty data directories."""
    for broker_id in broker_ids:
        cluster.kill(broker_id)
        cluster.wipe(broker_id)
    for broker_id in broker_ids:
        cluster.run(cluster._start(broker_id))
    for broker_id in broker_ids:
        cluster.wait_until(lambda n=broker_id: roles(cluster, n) == ["learner"])  # type: ignore[misc]
    left = next(n for n in cluster.brokers if n not in broker_ids)
    cluster.wait_until(lambda: set(roles(cluster, left)) == {"candidate"})


def test_two_of_three_lost(recover: Recover, capfd: pytest.CaptureFixture[str]) -> None:
    with Cluster(nodes=3) as cluster:
        make(cluster)
        cluster.wait_until(lambda: len(chains(cluster)) == 1 + PARTITIONS)
        held = chains(cluster)
        lose(cluster, 2, 3)
        shown = status(cluster, Exit.FAILED, capfd)
        assert not shown["healthy"]
        assert any("`tinymq cluster recover`" in r["reason"] for r in shown["replicas"]), shown["replicas"]
        found = recover(cluster, Exit.FAILED)
        assert (found["well"], len(found["groups"])) == (0, 1 + PARTITIONS)
        assert found["unreachable"] == {}
        for group in found["groups"]:
            assert group["recoverable"]
            assert group["survivor"] == 1
            assert group["brokers"]["1"] == "listed"
            assert group["brokers"]["2"].startswith("not listed")
            position = (group["last_index"], group["high_watermark"])
            assert "records that only brokers" in group["accepted_as_lost"], position
        assert roles(cluster, 2) == ["learner"], "a survey changes nothing"
        left = recover(cluster, Exit.OK, "--accept-loss")
        assert (left["well"], left["groups"]) == (1 + PARTITIONS, [])
        for broker_id in (1, 2, 3):
            cluster.wait_until(lambda n=broker_id: takes_part(cluster, n))  # type: ignore[misc]
        assert read(cluster) == set(range(30)), "every record of the survivor is there"
        assert held
        send(cluster, 30, 60)
        assert recover(cluster, Exit.OK, "--accept-loss")["groups"] == [], "a second recovery finds nothing"
        cluster.wait_until(lambda: len(chains(cluster)) == 1 + PARTITIONS)
        cluster.kill(1)  # the survivor: the two that were lost hold everything now
        send(cluster, 60, 90)
        assert read(cluster) == set(range(90))


def test_an_open_reader_is_told_of_the_loss(recover: Recover) -> None:
    """The survivor missed records; afterwards, more records are written than the reader has read."""
    with Cluster(nodes=3) as cluster:
        client = cluster.client()
        client.admin.create_topic(TOPIC, partitions=1, replication_factor=3)
        for number in range(30):
            client.send(TOPIC, b"%d" % number)
        cluster.wait_until(lambda: len(chains(cluster)) == 2)
        cluster.kill(1)
        for number in range(30, 50):
            client.send(TOPIC, b"%d" % number)
        reader = client.reader(TOPIC, on_trimmed="skip")
        seen: list[bytes | None] = []
        while len(seen) < 50:
            seen += [message.value for message in reader.poll(timeout=30)]
        for broker_id in (2, 3):
            cluster.kill(broker_id)
            cluster.wipe(broker_id)
        for broker_id in (1, 2, 3):
            cluster.run(cluster._start(broker_id))
        for broker_id in (2, 3):
            cluster.wait_until(lambda n=broker_id: roles(cluster, n) == ["learner"])  # type: ignore[misc]
        recover(cluster, Exit.OK, "--accept-loss")
        cluster.wait_leader(TOPIC)
        after = cluster.client()
        assert after.send(TOPIC, b"after").offset == 30
        for _ in range(40):
            after.send(TOPIC, b"after")
        with pytest.raises(OffsetOutOfRange, match="is lost") as raised:
            reader.poll(timeout=30)
        assert raised.value.detail["history_start"] == "30"
        reader.close()
        with after.reader(TOPIC, start=Offset(30), end="latest") as again:
            assert [message.value for message in again] == [b"after"] * 41


def test_a_consumer_after_the_recovery_fences_the_consumer_before_it(recover: Recover) -> None:
    """The survivor does not know the last consumers. Their partition is on another broker and lost nothing."""
    with Cluster(nodes=3) as cluster:
        fourth = cluster.add()
        client = cluster.client()
        for number in range(100):  # one of them is on the fourth broker
            client.admin.create_topic(f"t{number}", partitions=1, replication_factor=1)
            topic = f"t{number}"
            if cluster.wait_leader(topic) == fourth:
                break
        for number in range(20):
            client.send(topic, b"%d" % number)
        cluster.wait_until(lambda: len({chain for chain in chains(cluster) if "metadata" in chain[0]}) == 1)
        cluster.kill(1)
        before = client.queue(topic, 0, "c", auto_commit=False)
        for _ in range(10):  # whoever comes later fences it: the last one stays
            before.close()
            before = client.queue(topic, 0, "c", auto_commit=False)
            assert len(before.poll(3, timeout=30)) == 3
        known = client.admin.get_consumer(topic, 0, "c")
        assert known is not None
        for broker_id in (2, 3):
            cluster.kill(broker_id)
            cluster.wipe(broker_id)
        for broker_id in (1, 2, 3):
            cluster.run(cluster._start(broker_id))
        for broker_id in (2, 3):
            cluster.wait_until(lambda n=broker_id: "learner" in roles(cluster, n))  # type: ignore[misc]
        recover(cluster, Exit.OK, "--accept-loss")
        cluster.wait_until(lambda: all(cluster._knows(n, {n}) for n in (1, 2, 3, fourth)))
        with cluster.client().queue(topic, 0, "c", auto_commit=False) as after:
            assert len(after.poll(3, timeout=30)) == 3
            now = cluster.client().admin.get_consumer(topic, 0, "c")
            assert now is not None
            assert now.epoch > known.epoch
            with pytest.raises(Fenced):
                before.commit()
            after.commit()


def test_a_majority_must_be_there(recover: Recover, capfd: pytest.CaptureFixture[str]) -> None:
    with Cluster(nodes=3) as cluster:
        make(cluster)
        for broker_id in (2, 3):
            cluster.kill(broker_id)
            cluster.wipe(broker_id)
        for options in ((), ("--accept-loss",)):
            found = recover(cluster, Exit.FAILED, *options)
            assert len(found["unreachable"]) == 2
            assert {g["recoverable"] for g in found["groups"]} == {False}
            assert all("brokers 2, 3 must run, with an empty data directory" in g["why_not"] for g in found["groups"])
        cluster.run(cluster._start(2))
        cluster.wait_until(lambda: roles(cluster, 2) == ["learner"])
        assert recover(cluster, Exit.OK, "--accept-loss")["groups"] == []
        send(cluster, 30, 40)
        cluster.start(3)  # it was counted as gone, and comes back empty
        cluster.wait_until(lambda: takes_part(cluster, 3))
        assert read(cluster) == set(range(40))


def test_a_healthy_group_is_left_alone(recover: Recover) -> None:
    with Cluster(nodes=3) as cluster:
        make(cluster, 3)
        terms = cluster.call(lambda: [s.term for s in cluster.brokers[1].replica_statuses()])
        assert recover(cluster, Exit.OK, "--accept-loss") == recover(cluster, Exit.OK)
        cluster.kill(3)
        assert recover(cluster, Exit.OK, "--accept-loss")["groups"] == []
        assert cluster.call(lambda: [s.term for s in cluster.brokers[1].replica_statuses()]) >= terms


def test_a_single_replica_whose_disk_died(recover: Recover) -> None:
    with Cluster(nodes=3) as cluster:
        client = cluster.client()
        client.admin.create_topic(TOPIC, partitions=1, replication_factor=1)
        client.send(TOPIC, b"0")
        holder = cluster.wait_leader(TOPIC)
        cluster.kill(holder)
        cluster.wipe(holder)
        cluster.start(holder)
        cluster.wait_until(lambda: roles(cluster, holder) == ["follower", "learner"])
        (group,) = recover(cluster, Exit.FAILED)["groups"]
        assert (group["topic"], group["survivor"], group["last_index"]) == (TOPIC, holder, 1)
        assert group["accepted_as_lost"].startswith("everything")
        recover(cluster, Exit.OK, "--accept-loss")
        assert cluster.client().send(TOPIC, b"1").offset == 0
        assert read(cluster) == {1}


def test_who_may_not(secret: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["cluster", "recover", "--accept-loss"]
    with Cluster(nodes=1) as cluster, Cluster(nodes=1) as another, Cluster(nodes=1, form=False) as unformed:
        assert run([*command, "-s", cluster.servers]) == Exit.USAGE
        assert "--secret-file" in capfd.readouterr().err
        command += ["--secret-file", str(secret), "-s"]
        assert run([*command, f"{cluster.servers},{another.servers}"]) == Exit.DENIED
        assert "[WrongCluster]" in capfd.readouterr().err
        assert run([*command, unformed.servers]) == Exit.USAGE
        assert "tinymq cluster init" in capfd.readouterr().err
        secret.write_bytes(b"not the secret of this cluster")
        assert run([*command, cluster.servers]) == Exit.DENIED
        assert "[WrongSecret]" in capfd.readouterr().err
        gone = another.servers
    assert run([*command, gone]) == Exit.UNAVAILABLE
