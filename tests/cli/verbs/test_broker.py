"""`tinymq broker`: the exit codes and messages of a failed start, and of a disk that fails."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Ended, RunBroker
from tinymq.base.config import BrokerConfig
from tinymq.base.types import PeerAddress
from tinymq.cli.common import broker_log
from tinymq.cli.common.exits import Exit
from tinymq.cli.verbs import broker
from tinymq.log.broker_files.broker_identity import read_identity, write_identity
from tinymq.log.files.files import RealFiles
from tinymq.net.loopback_ports import free_ports
from tinymq.rpc.operator_calls.cluster_formation import form_cluster
from tinymq.simulation.faulty_files import FaultyFiles
from tinymq.testing import Cluster
from tinymq.testing.cluster import SECRET

DEADLINE_S = 30.0


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture
def taken() -> Iterator[str]:
    """An address on which another socket listens."""
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        yield f"127.0.0.1:{stranger.getsockname()[1]}"


def options(folder: Path, secret: Path, broker_id: int = 1, **others: str) -> list[str]:
    """Return the options of a broker that is the only voter."""
    client_port, peer_port = free_ports(2)
    listens = {"listen": f"127.0.0.1:{client_port}", "peer-listen": f"127.0.0.1:{peer_port}", "metrics-listen": ""}
    settings = listens | others
    arguments = [text for name, value in settings.items() for text in (f"--{name}", value)]
    return [
        "--broker-id", str(broker_id), "--data-dir", str(folder), "--voter", f"{broker_id}@127.0.0.1:{peer_port}",
        "--secret-file", str(secret), *arguments,
    ]  # fmt: skip


def assert_refused(result: Ended, code: Exit, error: str, *says: str) -> None:
    assert result.returncode == code, result.stderr
    assert f"[{error}]" in result.stderr
    assert "hint: " in result.stderr
    assert "Traceback" not in result.stderr
    assert not [text for text in says if text not in result.stderr], result.stderr


@pytest.mark.parametrize("option", ["listen", "peer-listen", "metrics-listen"])
def test_a_port_in_use(tmp_path: Path, secret: Path, taken: str, option: str, run_broker: RunBroker) -> None:
    assert_refused(run_broker(options(tmp_path / "data", secret, **{option: taken})), Exit.FAILED, "PortInUse", taken)


def test_a_data_directory_in_use_by_another_process(tmp_path: Path, secret: Path) -> None:
    """Run the broker in a separate process, because the lock excludes only other processes."""
    held = RealFiles(tmp_path / "data").lock("LOCK")
    command = [sys.executable, "-m", "tinymq.cli.main", "broker", *options(tmp_path / "data", secret)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert_refused(Ended(result.returncode, result.stderr), Exit.FAILED, "FolderInUse")
    held.close()


def test_a_data_directory_of_another_broker(tmp_path: Path, secret: Path, taken: str, run_broker: RunBroker) -> None:
    run_broker(options(tmp_path / "data", secret, listen=taken))  # creates the data directory, and ends
    files = RealFiles(tmp_path / "data")
    made = read_identity(files)
    assert made is not None
    write_identity(files, replace(made, cluster_id=b"c" * 16))  # like a broker that belongs to a cluster
    identity = tmp_path / "data" / "broker.json"
    before = identity.read_bytes()
    assert_refused(run_broker(options(tmp_path / "data", secret, broker_id=2)), Exit.DENIED, "WrongBroker")
    assert identity.read_bytes() == before


def test_a_damaged_identity_is_reported_with_its_directory_and_a_hint(
    tmp_path: Path, secret: Path, taken: str, run_broker: RunBroker
) -> None:
    run_broker(options(tmp_path / "data", secret, listen=taken))  # creates the data directory, and ends
    identity = tmp_path / "data" / "broker.json"
    identity.write_bytes(identity.read_bytes().replace(b'"broker_id": 1', b'"broker_id": 2'))
    says = (str(tmp_path / "data"), "broker.json has a wrong checksum", "restore broker.json")
    assert_refused(run_broker(options(tmp_path / "data", secret)), Exit.FAILED, "CorruptData", *says)


@pytest.mark.parametrize(("content", "what"), [(None, "is missing"), (b"nonsense", "is damaged")])
def test_a_damaged_first_entry_is_reported_with_its_directory_and_a_hint(
    tmp_path: Path, secret: Path, taken: str, content: bytes | None, what: str, run_broker: RunBroker
) -> None:
    run_broker(options(tmp_path / "data", secret, listen=taken))  # creates the data directory, and ends
    files = RealFiles(tmp_path / "data")
    found = read_identity(files)
    assert found is not None
    write_identity(files, replace(found, cluster_id=b"0123456789abcdef"))
    if content is not None:
        (tmp_path / "data" / "metadata-first-entry").write_bytes(content)
    says = (str(tmp_path / "data"), f"metadata-first-entry {what}", "copy metadata-first-entry from")
    assert_refused(run_broker(options(tmp_path / "data", secret)), Exit.FAILED, "CorruptData", *says)


def test_a_disk_that_fails_the_sync_of_a_vote_ends_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    files = FaultyFiles(random.Random(1))
    monkeypatch.setattr("tinymq.app.broker_app.RealFiles", lambda _: files)
    client_port, peer_port = free_ports(2)
    config = BrokerConfig(
        1, str(tmp_path), (PeerAddress(1, "127.0.0.1", peer_port),), SECRET,
        listen=f"127.0.0.1:{client_port}", peer_listen=f"127.0.0.1:{peer_port}",
    )  # fmt: skip

    async def main() -> int:
        running = asyncio.ensure_future(broker._run(config, broker_log.PartitionNames()))
        while not files.exists("broker.json"):
            await asyncio.sleep(0)
        files.fail_sync("ballots*", once=False)
        await form_cluster([config.listen], SECRET, time.time_ns() // 1000)
        return await asyncio.wait_for(running, DEADLINE_S)

    assert asyncio.run(main()) == Exit.FAILED
    said = capfd.readouterr().err
    assert "[SyncFailed]" in said
    assert "hint: check the disk" in said


def test_the_log_names_the_topic_and_the_partition_of_a_replica() -> None:
    """Raft knows groups by ids. The name of a topic that was deleted a moment ago is remembered."""
    names = broker_log.PartitionNames()
    with Cluster(nodes=1) as cluster, cluster.client() as mq:
        mq.admin.create_topic("orders", partitions=2)
        app = cluster.brokers[1]
        names.lookup = app.partition_name
        group = next(str(status.group) for status in app.replica_statuses() if status.group.partition == 1)

        def logged(**event: object) -> dict[str, object]:
            return dict(names(None, "info", {"event": "replica_changed", **event}))

        assert logged(group=group)["partition"] == "orders/1"
        mq.admin.delete_topic("orders")
        assert app.partition_name(group) is None
        assert logged(group=group)["partition"] == "orders/1"
        for other in ("metadata", "billing", "00000000/0"):
            assert "partition" not in logged(group=other)
        assert logged(group=group, partition="t/0")["partition"] == "t/0"
