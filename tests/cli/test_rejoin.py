"""Dead disks: a broker with an empty data directory rejoins, is shown as a learner, and then votes again."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tinymq import Client
from tinymq.app.broker_app import BrokerApp
from tinymq.app.machine_env import MachineEnv
from tinymq.base.config import BrokerConfig
from tinymq.base.errors import DeadlineExceeded
from tinymq.base.types import METADATA_GROUP, PeerAddress
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.format.entry import HEADER_SIZE
from tinymq.log.files.layout import SEGMENT, group_directory, in_group
from tinymq.net.loopback_ports import free_ports
from tinymq.simulation.faulty_files import FaultyFiles
from tinymq.testing.cluster import SECRET, Cluster

TOPIC = "t"
PARTITIONS = 3


def make(cluster: Cluster, records: int = 30) -> None:
    client = cluster.client()
    client.admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
    send(cluster, 0, records)


def send(cluster: Cluster, start: int, stop: int) -> None:
    client = cluster.client()
    for number in range(start, stop):
        client.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)


def read(cluster: Cluster) -> set[int]:
    return {int(message.value or b"") for message in cluster.client().reader(TOPIC, end="latest")}


def status(cluster: Cluster, code: Exit, capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capfd.readouterr()
    assert run(["cluster", "status", "-s", cluster.servers, "-o", "json"]) == code
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    return document


def roles(cluster: Cluster, broker_id: int) -> list[str]:
    return sorted(s.role.value for s in cluster.brokers[broker_id].replica_statuses())


def takes_part(cluster: Cluster, broker_id: int) -> bool:
    """Return whether the broker votes in the metadata group and in every partition."""
    found = roles(cluster, broker_id)
    return len(found) == 1 + PARTITIONS and set(found) <= {"leader", "follower"}


def chains(cluster: Cluster) -> set[tuple[str, int, int]]:
    """Return (group, commit index, chain checksum at that index) of every replica in the cluster."""
    statuses = [s for app in cluster.brokers.values() for s in app.replica_statuses()]
    return {(str(s.group), s.commit_index, s.chain_crc) for s in statuses}


def test_a_wiped_broker_rejoins_and_votes_again(capfd: pytest.CaptureFixture[str]) -> None:
    with Cluster(nodes=3) as cluster:
        make(cluster)
        before = cluster.call(lambda: cluster.registry(1).get_broker(3))
        cluster.kill(3)
        cluster.wipe(3)
        cluster.kill(2)  # without a quorum no leader can list broker 3, so its state stays the same
        cluster.run(cluster._start(3))
        cluster.wait_until(lambda: roles(cluster, 3) == ["learner"])
        document = status(cluster, Exit.FAILED, capfd)
        (learner,) = [r for r in document["replicas"] if r["role"] == "learner"]
        assert (learner["topic"], learner["broker"]) == ("(metadata)", 3)
        assert "no leader is known" in learner["reason"]
        cluster.start(2)
        cluster.wait_until(lambda: takes_part(cluster, 3))
        cluster.wait_until(lambda: len(chains(cluster)) == 1 + PARTITIONS)
        after = cluster.call(lambda: cluster.registry(1).get_broker(3))
        assert before is not None
        assert after is not None
        assert before.incarnation != after.incarnation
        assert status(cluster, Exit.OK, capfd)["healthy"]
        cluster.kill(2)  # from now on every quorum needs the wiped broker
        send(cluster, 30, 60)
        assert read(cluster) == set(range(60))


def test_all_brokers_are_wiped_one_after_the_other() -> None:
    with Cluster(nodes=3) as cluster:
        make(cluster)
        for broker_id in (1, 2, 3):
            cluster.kill(broker_id)
            cluster.wipe(broker_id)
            cluster.start(broker_id)
            cluster.wait_until(lambda n=broker_id: takes_part(cluster, n))  # type: ignore[misc]
        assert read(cluster) == set(range(30)), "none of the original disks is left"


def test_a_broker_whose_metadata_is_damaged_denies_no_topic() -> None:
    with Cluster(nodes=3) as cluster:
        make(cluster)
        cluster.stop(3)
        segment = Path(cluster._config(3).data_dir, in_group(group_directory(METADATA_GROUP), 1, SEGMENT))
        content = bytearray(segment.read_bytes())
        content[HEADER_SIZE + HEADER_SIZE + 5] ^= 1
        segment.write_bytes(content)
        cluster.kill(2)  # without a quorum no leader can repair the damaged broker
        cluster.run(cluster._start(3))
        cluster.wait_until(lambda: "quarantined" in roles(cluster, 3))
        with Client(cluster.address(3)) as client, pytest.raises(DeadlineExceeded, match="damaged"):
            client.admin.describe_topic(TOPIC, timeout=0.5)


def test_an_unformed_broker_among_unformed_ones_waits(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    with Cluster(nodes=3, form=False) as cluster:
        why = "no broker lets this one into a cluster"
        cluster.wait_until(lambda: all(why in app.reason for app in cluster.brokers.values()))
        assert {app.state.value for app in cluster.brokers.values()} == {"unformed"}
        assert run(["cluster", "init", "-s", cluster.servers, "--secret-file", str(secret)]) == Exit.OK
        cluster.wait_until(lambda: all(app.state.value == "running" for app in cluster.brokers.values()))
        assert [app.reason for app in cluster.brokers.values()] == ["", "", ""]


@pytest.mark.parametrize(("secret", "why"), [(b"another secret, long enough", "WrongSecret"), (SECRET, "WrongBroker")])
def test_a_broker_that_may_not_join_reports_the_reason(secret: bytes, why: str) -> None:
    """A broker with another secret, and a broker whose number is not among the voters."""
    with Cluster(nodes=1) as cluster:
        (port,) = free_ports(1)
        own = 2 if why == "WrongBroker" else 3
        voters = tuple(PeerAddress(n, "127.0.0.1", cluster._peer_ports[1] if n == 1 else port) for n in (1, own, 9))
        config = BrokerConfig(own, "elsewhere", voters, secret, peer_listen=f"127.0.0.1:{port}")
        stranger = BrokerApp(config, MachineEnv(files=FaultyFiles(random.Random(1))))
        cluster.run(stranger.start())
        try:
            cluster.wait_until(lambda: stranger.reason.startswith(why))
            assert stranger.state.value == "unformed"
        finally:
            cluster.run(stranger.kill())
