"""The harness controls a broker's disk through its socket, and a kill of its process is no power cut."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from tinymq import Client
from tinymq.base.errors import OutcomeUnknown, TinymqError
from tinymq.log.files.files import RealFiles
from tinymq_chaos.real.cluster.cluster import Cluster
from tinymq_chaos.real.disks.disk_control import DiskControl, serve
from tinymq_chaos.real.disks.disks import FaultyDisk
from tinymq_chaos.real.disks.power_cut import DeadDirectory

TOPIC = "t"
LOGS = "groups/*.log"


class Never(random.Random):
    """A random source with which no unsynced change survives."""

    def random(self) -> float:
        return 0.9


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(RealFiles(tmp_path / "data"), tmp_path / "data")


@pytest.fixture(params=["disk", "d" * 120 + "/disk"])
def control(disk: FaultyDisk, tmp_path: Path, request: pytest.FixtureRequest) -> DiskControl:
    """A control whose socket may have a long path."""
    path: Path = tmp_path / request.param
    path.parent.mkdir(exist_ok=True)
    serve(disk, path)
    return DiskControl(path)


def test_the_control_reports_unsynced_files(disk: FaultyDisk, control: DiskControl) -> None:
    assert control.look().operations == 0
    disk.make_directory("groups")
    disk.open("groups/a", create=True).write(0, [b"1"])
    found = control.look()
    assert (found.operations, found.files, found.folders) == (3, ("groups/a",), ("", "groups"))


def test_every_request_to_a_disk_is_carried_out(disk: FaultyDisk, control: DiskControl) -> None:
    file = disk.open("a", create=True)
    died: list[int] = []
    disk.faults.die = lambda: died.append(disk.faults.operations)
    control.fail_sync("a", once=True)
    with pytest.raises(TinymqError, match="fsync failed"):
        disk.sync([file])
    control.fail_read()
    with pytest.raises(TinymqError, match="cannot read a"):
        file.read(0, 1)
    control.disk_full(1)
    with pytest.raises(TinymqError, match="no room"):
        file.write(0, [b"12"])
    control.slow_sync(0.001)
    disk.sync([file])
    control.mend()
    file.write(0, [b"123"])
    assert file.read(0, 3) == b"123"
    control.die_at("sync *", operations=1)
    disk.sync([file])
    assert not died
    disk.sync([file])
    assert died


def test_an_unknown_request_is_an_error(control: DiskControl, disk: FaultyDisk, tmp_path: Path) -> None:
    for line, says in (
        (b'{"do": "wipe"}', b"not one of slow_sync"),
        (b"nonsense", b"not understood"),
        (b"[]", b"not understood"),
        (b'{"do": "disk_full", "bytes": 1}', b"not understood"),
    ):
        with socket.socket(socket.AF_UNIX) as raw:
            serve(disk, tmp_path / "raw")
            raw.connect(str(tmp_path / "raw"))
            raw.sendall(line + b"\n")
            assert says in raw.recv(4096)
    with pytest.raises(ValueError, match="not understood"):
        control._ask("disk_full", bytes=1)
    with pytest.raises(ConnectionError):
        DiskControl(tmp_path / "nobody").look()


def read(client: Client) -> list[bytes | None]:
    with client.reader(TOPIC, end="latest") as reader:
        return [message.value for message in reader]


def boot(cluster: Cluster) -> bytes:
    return FaultyDisk(RealFiles(cluster.data(1)), cluster.data(1)).boot_id()


def test_a_power_cut_loses_unsynced_bytes_and_a_kill_loses_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path / "c", 1, disks=True) as cluster:
        cluster.up()
        disk: DiskControl = cluster.disk(1)
        with Client(cluster.servers) as client, Client(cluster.servers, request_timeout_ms=1_000) as hurried:
            client.admin.create_topic(TOPIC, 1, 1)
            for value in (b"0", b"1"):
                client.send(TOPIC, value)
            before = boot(cluster)
            disk.slow_sync(600.0, LOGS)
            with pytest.raises(OutcomeUnknown):
                hurried.send(TOPIC, b"2")
            assert any(path.endswith(".log") for path in disk.look().files)
            cluster.kill(1)
            cluster.up()
            assert read(client) == [b"0", b"1", b"2"]
            assert boot(cluster) == before
            disk.die_at(f"write {LOGS}", operations=1)  # the second operation is the sync
            with pytest.raises(TinymqError):
                hurried.send(TOPIC, b"3" * 500)
            assert not cluster.running(1)
            assert DeadDirectory(cluster.data(1)).lose(Never(1)).sectors > 0
            assert boot(cluster) != before
            cluster.up()
            assert read(client) == [b"0", b"1", b"2"]
            assert client.send(TOPIC, b"4").offset == 3
