"""Three broker processes with their metadata in ZooKeeper: one loses its session, and recovers on its own."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.registry.zookeeper_server import ZookeeperServer, shared_server
from tinymq import Client
from tinymq.base.errors import DeadlineExceeded, InvalidRequest, NotReady, OutcomeUnknown, UnknownTopic
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.dev import dev_cluster, dev_directory

SESSION_S = 2.0
DEADLINE_S = 30.0
CHROOT = "deep/under"


@dataclass
class Dev:
    """A local cluster of processes, and ZooKeeper's view of it."""

    path: Path
    zookeeper: KazooClient

    def signal(self, number: int, how: signal.Signals) -> None:
        found = dev_directory.load(self.path).process(number)
        assert found is not None
        assert found.signal(how)

    def registered(self) -> list[int]:
        """Read from the state: a broker's node shows only its session."""
        data, _ = self.zookeeper.get("/version")
        return [broker["broker_id"] for broker in json.loads(data)["brokers"]]

    def session(self, number: int) -> int | None:
        """Return the session that owns the node of broker `number`."""
        stat = self.zookeeper.exists(f"/brokers/{number}")
        return None if stat is None else int(stat.ephemeralOwner)

    def client(self) -> Client:
        return Client(dev_directory.load(self.path).servers)


@pytest.fixture(scope="module")
def server() -> ZookeeperServer:
    return shared_server()


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory, server: ZookeeperServer) -> Iterator[Dev]:
    """One cluster for both tests: the test that kills a broker runs last."""
    path = tmp_path_factory.mktemp("zookeeper") / "dev"
    chroot = f"{CHROOT}/{path.parent.name}"
    lay_out(path, server.url(chroot))
    dev_cluster.up(path, 3, lambda line: None)
    zookeeper = KazooClient(f"{server.address}/{chroot}")
    zookeeper.start()
    try:
        yield Dev(path, zookeeper)
    finally:
        zookeeper.stop()
        zookeeper.close()
        for number in (1, 2, 3):
            process = dev_directory.load(path).process(number)
            if process is not None:
                process.signal(signal.SIGCONT)
        dev_cluster.down(path, purge=False)


def lay_out(path: Path, registry: str, brokers: int = 3) -> None:
    """A new local cluster whose configuration names `registry`."""
    folder = dev_directory.create(path, brokers)
    timing = f"\n[timing]\nregistration_lease_s = {SESSION_S}\nregistration_renew_s = {SESSION_S / 4}\n"
    for broker in folder.brokers:
        config = folder.config(broker.id)
        config.write_text(f'registry = "{registry}"\n{config.read_text()}{timing}')


def until(holds: Callable[[], Any], what: str) -> None:
    """Each check sends a request to a server, so this is not a busy loop."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s, what


def send(client: Client, topic: str, numbers: range) -> None:
    """Return when all are acknowledged."""
    with client.producer(delivery_timeout_ms=60_000) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=number % 3)


def is_made(client: Client, topic: str) -> bool:
    """Brokers learn of each other's registration a moment after ZooKeeper."""
    try:
        client.admin.create_topic(topic, partitions=3, replication_factor=3)
    except InvalidRequest as refused:
        if "live brokers" not in refused.message:
            raise
        return False
    return True


def read(client: Client, topic: str) -> list[int]:
    return sorted(int(message.value or b"") for message in client.reader(topic, end="latest"))


def test_while_zookeeper_is_away_records_are_written_and_read(
    dev: Dev, server: ZookeeperServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """Longer than any session. The status reports it, and afterwards everything works as before."""
    folder = dev_directory.load(dev.path)
    with dev.client() as client, client.producer() as producer:
        client.admin.create_topic("while", partitions=3, replication_factor=3)
        producer.send("while", b"0", partition=0).result()  # the producer has its id, which comes from the registry
        count = 1
        with server.frozen():
            end_s = time.monotonic() + 2 * SESSION_S
            while time.monotonic() < end_s:
                for number in range(count, count + 30):
                    producer.send("while", b"%d" % number, partition=number % 3)
                producer.flush()
                count += 30
            assert read(client, "while") == list(range(count))
            with pytest.raises((DeadlineExceeded, OutcomeUnknown, NotReady)):
                client.admin.create_topic("refused", partitions=1, replication_factor=1, timeout=1.0)
            capfd.readouterr()
            run(["cluster", "status", "-s", folder.servers, "-o", "json"])
            brokers = json.loads(capfd.readouterr().out)["brokers"]
            assert all("as of version" in broker["reason"] for broker in brokers)
            assert all("registry_unreachable" in folder.log(number).read_text() for number in (1, 2, 3))
        until(
            lambda: dev.registered() == [1, 2, 3] and None not in map(dev.session, (1, 2, 3)), "they do not come back"
        )
        send(client, "while", range(count, count + 30))
        client.admin.create_topic("behind", partitions=1, replication_factor=3)
        assert read(client, "while") == list(range(count + 30))


def test_a_broker_that_loses_its_session_recovers(dev: Dev, capfd: pytest.CaptureFixture[str]) -> None:
    assert dev.registered() == [1, 2, 3]
    with dev.client() as client:
        client.admin.create_topic("t", partitions=3, replication_factor=3)
        send(client, "t", range(300))
        before = dev.session(1)
        dev.signal(1, signal.SIGSTOP)  # longer than its session's timeout
        until(lambda: dev.session(1) is None, "the session does not end")
        until(lambda: dev.registered() == [2, 3], "nobody unregisters it")
        send(client, "t", range(300, 600))
        assert read(client, "t") == list(range(600))
        client.admin.create_topic("meanwhile", partitions=3, replication_factor=2)
        dev.signal(1, signal.SIGCONT)
        until(lambda: dev.registered() == [1, 2, 3], "it does not come back")
        # On a busy machine it may lose its session again: then it recovers again.
        until(lambda: dev.session(1) not in (None, before), "it comes back without a session of its own")
        until(lambda: is_made(client, "after"), "a broker does not hear that there are three")
        send(client, "after", range(30))
        until(lambda: run(["cluster", "status", "-s", dev_directory.load(dev.path).servers]) == Exit.OK, "not healthy")
        dev.signal(2, signal.SIGKILL)  # from now on every majority needs the broker that was away
        send(client, "t", range(600, 900))
        assert read(client, "t") == list(range(900))
        assert read(client, "after") == list(range(30))
        client.admin.delete_topic("meanwhile")
        with pytest.raises(UnknownTopic):
            client.admin.describe_topic("meanwhile")
    capfd.readouterr()


def test_without_zookeeper_a_broker_refuses_to_start_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "dev"
    lay_out(path, "zookeeper://127.0.0.1:1/x", brokers=1)
    config = dev_directory.load(path).config(1)
    config.write_text(config.read_text() + "command_timeout_s = 0.5\n")
    with pytest.raises(NotReady) as refused:
        dev_cluster.up(path, 1, lambda line: None)
    assert "127.0.0.1:1: Connection refused" in str(refused.value)
