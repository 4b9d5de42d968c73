"""`tinymq dev add`, `tinymq broker --join`, `tinymq cluster transfer-leader` on real processes, and their refusals."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ended, RunBroker
from tinymq import Client
from tinymq.base.errors import InvalidRequest, NotReady
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.dev import dev_cluster, dev_directory
from tinymq.testing.cluster import SECRET, Cluster

DEADLINE_S = 40.0
TIMING = "[timing]\nleader_return_s = 1.0\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster of three whose leaders return to their preferred brokers soon. It is stopped afterwards."""
    path = tmp_path_factory.mktemp("growing") / "dev"
    made = dev_directory.create(path, 3)
    for broker in made.brokers:
        with open(made.config(broker.id), "a") as file:
            file.write(TIMING)
    yield path
    dev_cluster.down(path, purge=False)


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < deadline, what
        pause.wait(0.1)


def answer(capfd: pytest.CaptureFixture[str], *command: str) -> Any:
    capfd.readouterr()
    assert run([*command, "-o", "json"]) == Exit.OK, capfd.readouterr().err
    return json.loads(capfd.readouterr().out)


class Traffic:
    """Sends numbers to a topic until `end`."""

    def __init__(self, servers: str, topic: str) -> None:
        self.sent = 0
        self._over = threading.Event()
        self._servers, self._topic = servers, topic
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with Client(self._servers) as client, client.producer() as producer:
            while not self._over.wait(0.01):
                producer.send(self._topic, b"%d" % self.sent).result(DEADLINE_S)
                self.sent += 1

    def end(self) -> int:
        self._over.set()
        self._thread.join()
        return self.sent


def test_add_needs_a_running_cluster_and_removes_a_failed_broker(folder: Path) -> None:
    dev_cluster.down(folder, purge=False)
    with pytest.raises(InvalidRequest, match="no voter of the cluster"):
        dev_cluster.add(folder, print)
    assert run(["dev", "add", "-n", "0", "--dir", str(folder)]) == Exit.USAGE
    dev_cluster.up(folder, None, print)
    before = sorted(path.name for path in folder.iterdir())
    brokers = dev_directory.load(folder).brokers
    theirs = (folder / "secret").read_text()
    (folder / "secret").write_text("it is not theirs any more\n")
    try:
        with pytest.raises(NotReady, match=r"broker \d did not start: .* does not prove the secret"):
            dev_cluster.add(folder, print)
    finally:
        (folder / "secret").write_text(theirs)
    assert sorted(path.name for path in folder.iterdir()) == before
    assert dev_directory.load(folder).brokers == brokers


def test_a_cluster_grows_under_traffic_and_its_leaders_return_after_a_failure(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    where = ["--dir", str(folder)]
    assert run(["dev", "up", *where]) == Exit.OK
    three = dev_directory.load(folder).servers
    with Client(three) as client:
        client.admin.create_topic("old", partitions=3, replication_factor=3)
    old = Traffic(three, "old")

    states = answer(capfd, "dev", "add", "-n", "2", *where)["brokers"]
    assert [(b["id"], b["state"]) for b in states] == [(n, "running") for n in range(1, 6)]
    servers = dev_directory.load(folder).servers
    status = answer(capfd, "cluster", "status", "-s", servers)
    metadata = {r["broker"]: (r["role"], r["reason"]) for r in status["replicas"] if r["topic"] == "(metadata)"}
    assert (metadata[4], metadata[5]) == (("observer", ""), ("observer", ""))

    with Client(three) as client:
        topic = client.admin.create_topic("new", partitions=5, replication_factor=3)
    assert {p.leader for p in topic.partitions} == {1, 2, 3, 4, 5}
    new = Traffic(servers, "new")
    homes = {p.partition: p.replicas[0] for p in topic.partitions}

    joined = dev_directory.load(folder).config(4)
    joined.write_text(re.sub(r"^join = .*\n", "", joined.read_text(), flags=re.M) + TIMING)
    assert run(["dev", "kill", "4", *where]) == Exit.OK
    with Client(servers) as client:

        def at_home() -> bool:
            return all(p.leader == homes[p.partition] for p in client.admin.describe_topic("new").partitions)

        until(lambda: not at_home(), "another broker leads what the fourth led")
        assert run(["dev", "start", "4", *where]) == Exit.OK, "its configuration has the addresses to join"
        assert run(["dev", "kill", "1", *where]) == Exit.OK
        assert run(["dev", "up", *where]) == Exit.OK, "up starts the missing broker"
        until(at_home, "leaders are at home")
        counts = {"old": old.end(), "new": new.end()}
        for name, count in counts.items():
            with client.reader(name, end="latest") as reader:
                assert sorted(int(record.value or b"") for record in reader) == list(range(count)), name

    _, second, _ = topic.partitions[0].replicas
    moved = answer(capfd, "cluster", "transfer-leader", "new", "0", "--to", str(second), "-s", servers)
    assert moved == {"topic": "new", "partition": 0, "leader": second}
    # The new leader may not have heard the preferred broker yet. Then it transfers to another one.
    assert answer(capfd, "cluster", "transfer-leader", "new", "0", "-s", servers)["leader"] != second
    (outsider, *_) = {1, 2, 3, 4, 5} - set(topic.partitions[0].replicas)
    assert run(["cluster", "transfer-leader", "new", "0", "--to", str(outsider), "-s", servers]) == Exit.USAGE
    assert f"broker {outsider} holds no replica" in capfd.readouterr().err
    assert run(["cluster", "transfer-leader", "none", "0", "-s", servers]) == Exit.NOT_FOUND

    assert [b.joined for b in dev_directory.load(folder).brokers] == [False, False, False, True, True]


@pytest.mark.long  # the tests above and tests/testing/test_growing.py cover the same in parts
def test_a_cluster_that_grew_comes_up_again_as_a_whole(folder: Path) -> None:
    dev_cluster.up(folder, None, print)
    while len(dev_directory.load(folder).brokers) < 5:
        dev_cluster.add(folder, print)
    dev_cluster.down(folder, purge=False)
    dev_cluster.up(folder, None, print)
    assert [(s.id, s.state) for s in dev_cluster.status(folder)] == [(n, "running") for n in range(1, 6)]
    assert [b.joined for b in dev_directory.load(folder).brokers] == [False, False, False, True, True]


def test_a_cluster_with_observers_recovers_from_the_loss_of_most_voters(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    with Cluster(3) as cluster:
        cluster.add()
        cluster.add()
        client = cluster.client()
        client.admin.create_topic("t", partitions=5, replication_factor=3)
        for number in range(10):
            client.send("t", b"%d" % number, partition=number % 5)
        for broker_id in (1, 2):
            cluster.kill(broker_id)
            cluster.wipe(broker_id)
        for broker_id in (1, 2):
            cluster.run(cluster._start(broker_id))
        where = ["-s", cluster.servers, "--secret-file", str(secret)]
        until(lambda: "3 listed" in _survey(capfd, where), "the survey shows who is left")
        assert run(["cluster", "recover", *where]) == Exit.FAILED
        until(lambda: run(["cluster", "recover", "--accept-loss", *where]) == Exit.OK, "all groups go on")
        until(lambda: run(["cluster", "status", "-s", cluster.servers]) == Exit.OK, "all is well")
        with client.reader("t", end="latest") as reader:
            assert sorted(int(record.value or b"") for record in reader) == list(range(10))


def _survey(capfd: pytest.CaptureFixture[str], where: list[str]) -> str:
    capfd.readouterr()
    run(["cluster", "recover", *where])
    return capfd.readouterr().out


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one() -> Iterator[Cluster]:
    """A cluster of one broker that others ask to join."""
    with Cluster(1) as cluster:
        yield cluster


@pytest.fixture
def join(tmp_path: Path, run_broker: RunBroker, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Run a broker that must end by itself."""
    monkeypatch.setitem(os.environ, "TINYMQ_TIMING__JOIN_S", "0.5")

    def call(address: str, secret: bytes = SECRET, broker_id: int = 7) -> Ended:
        file = tmp_path / "secret"
        file.write_bytes(secret)
        file.chmod(0o600)
        options = [
            "--broker-id", str(broker_id), "--join", address, "--data-dir", str(tmp_path / "data"), "--secret-file",
            str(file), "--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--metrics-listen", "",
        ]  # fmt: skip
        return run_broker(options)

    return call


def peer_address(cluster: Cluster) -> str:
    return cluster.call(lambda: cluster.brokers[1].peer_address)


def client_address(cluster: Cluster) -> str:
    return cluster.address(1)


@pytest.mark.parametrize(
    ("address", "options", "code", "error", "hint"),
    [
        (lambda c: "127.0.0.1:1", {}, Exit.UNAVAILABLE, "BrokerUnreachable", "peer_listen"),
        (client_address, {}, Exit.USAGE, "InvalidFrame", "no port between brokers"),
        (peer_address, {"secret": b"another secret entirely"}, Exit.DENIED, "WrongSecret", "one secret file"),
        (peer_address, {"broker_id": 1}, Exit.DENIED, "WrongBroker", "broker_id of its own"),
        (lambda c: "nonsense", {}, Exit.USAGE, "InvalidConfig", "host:port"),
    ],
)
def test_a_refused_broker_reports_the_reason_and_a_hint(
    join: Callable[..., Ended], one: Cluster, address: Callable[[Cluster], str], options: Any, code: Exit, error: str,
    hint: str,
) -> None:  # fmt: skip
    result = join(address(one), **options)
    assert result.returncode == code, result.stderr
    said = result.stderr[result.stderr.index("error:") :]
    assert f"[{error}]" in said
    assert hint in said


def test_a_broker_without_voters_or_join_is_refused_with_a_hint(join: Callable[..., Ended]) -> None:
    result = join(" ")
    assert result.returncode == Exit.USAGE
    assert "--join" in result.stderr
