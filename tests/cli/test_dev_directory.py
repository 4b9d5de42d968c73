"""The files of a local cluster: written atomically, read back, refused if damaged."""

from __future__ import annotations

import socket
import stat
import tomllib
from pathlib import Path

import pytest

from tinymq.base.errors import CorruptData, FolderInUse, InvalidRequest, NotFound, UnsafePath
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.dev import cause, dev_cluster, dev_directory, process
from tinymq.dev.process import Process
from tinymq.net import loopback_ports


def test_created_and_loaded_alike(tmp_path: Path) -> None:
    created = dev_directory.create(tmp_path / "dev", 3)
    assert dev_directory.load(tmp_path / "dev") == created
    assert not created.formed
    assert dev_directory.load(created.set_formed().path).formed
    assert len({a for b in created.brokers for a in (b.address, b.peer_address, b.metrics_address)}) == 9
    listens = tomllib.loads(created.config(2).read_text())
    second = created.broker(2)
    assert [listens[name] for name in ("listen", "peer_listen", "metrics_listen")] == [
        second.address, second.peer_address, second.metrics_address,
    ]  # fmt: skip


def test_the_secret_is_for_its_owner_alone_and_shared_by_all_brokers(tmp_path: Path) -> None:
    folder = dev_directory.create(tmp_path, 3)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert len(folder.secret) >= 32
    configs = [tomllib.loads(folder.config(n).read_text()) for n in (1, 2, 3)]
    assert {c["secret_file"] for c in configs} == {str(tmp_path / "secret")}
    assert len({c["data_dir"] for c in configs}) == 3
    assert configs[0]["voters"] == [f"{b.id}@{b.peer_address}" for b in folder.brokers]


@pytest.mark.parametrize("brokers", [0, 2, 4, 7, -1])
def test_an_invalid_number_of_brokers_creates_nothing(tmp_path: Path, brokers: int) -> None:
    with pytest.raises(InvalidRequest):
        dev_directory.create(tmp_path / "dev", brokers)
    assert not (tmp_path / "dev").exists()


def test_a_missing_cluster_is_reported_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as raised:
        dev_directory.load(tmp_path)
    assert "tinymq dev up" in raised.value.hint


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2, "formed": true, "brokers": []}', '{"format": 1}'])
def test_a_damaged_cluster_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(CorruptData):
        dev_directory.load(tmp_path)


def test_processes_are_recorded(tmp_path: Path) -> None:
    folder = dev_directory.create(tmp_path, 1)
    assert folder.process(1) is None
    folder.set_process(1, Process(12, "34"))
    assert folder.process(1) == Process(12, "34")
    (tmp_path / "broker-1.pid").write_text("12")
    with pytest.raises(CorruptData):
        folder.process(1)
    folder.set_process(1, None)
    folder.set_process(1, None)
    assert folder.process(1) is None


def test_two_commands_do_not_change_one_cluster_at_once(tmp_path: Path) -> None:
    with dev_directory.locked(tmp_path / "dev"), pytest.raises(FolderInUse), dev_directory.locked(tmp_path / "dev"):
        pass
    with dev_directory.locked(tmp_path / "dev"):
        pass


def test_the_requested_ports_are_used_if_all_are_free(tmp_path: Path) -> None:
    first = _nine_free_ports()
    folder = dev_directory.create(tmp_path / "a", 3, first)
    assert [b.address for b in folder.brokers] == [f"127.0.0.1:{first + i}" for i in range(3)]
    assert [b.peer_address for b in folder.brokers] == [f"127.0.0.1:{first + 100 + i}" for i in range(3)]
    assert [b.metrics_address for b in folder.brokers] == [f"127.0.0.1:{first + 200 + i}" for i in range(3)]


@pytest.mark.parametrize("taken", [102, 201])
def test_other_ports_are_used_if_a_requested_one_is_taken(tmp_path: Path, taken: int) -> None:
    first = _nine_free_ports()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of other tests may have ended there
        other.bind((loopback_ports.HOST, first + taken))
        other.listen()
        folder = dev_directory.create(tmp_path / "a", 3, first)
    addresses = [a for b in folder.brokers for a in (b.address, b.peer_address, b.metrics_address)]
    ports = {int(address.rpartition(":")[2]) for address in addresses}
    assert len(ports) == 9
    assert not ports & {first + above + i for above in (0, 100, 200) for i in range(3)}


def _nine_free_ports() -> int:
    """Return the first of three consecutive free ports for which the ports 100 and 200 higher are free as well."""
    for first in range(30_000, 32_000):
        if all(loopback_ports.is_free(first + above + i) for above in (0, 100, 200) for i in range(3)):
            return first
    raise AssertionError("no free ports")


@pytest.mark.parametrize("argv", [["kill", "1"], ["start", "1"], ["down"], ["down", "--purge"], ["up", "-n", "2"]])
def test_a_command_that_is_refused_leaves_nothing_behind(tmp_path: Path, argv: list[str]) -> None:
    assert run(["dev", *argv, "--dir", str(tmp_path / "x" / "dev")]) != Exit.OK
    assert list(tmp_path.iterdir()) == []


def test_up_refuses_another_number_of_brokers(tmp_path: Path) -> None:
    dev_directory.create(tmp_path, 3)
    with pytest.raises(InvalidRequest, match="3 brokers, not 1"):
        dev_cluster.up(tmp_path, 1, print)


def test_status_of_a_cluster_that_is_stopped(tmp_path: Path) -> None:
    folder = dev_directory.create(tmp_path, 3)
    folder.set_process(2, Process(1, "not this one"))
    assert [(s.id, s.pid, s.state) for s in dev_cluster.status(tmp_path)] == [(n, None, "stopped") for n in (1, 2, 3)]


def test_unknown_and_stopped_brokers(tmp_path: Path) -> None:
    dev_directory.create(tmp_path, 3)
    with pytest.raises(NotFound, match="no broker 4"):
        dev_cluster.kill(tmp_path, 4)
    with pytest.raises(InvalidRequest, match="does not run"):
        dev_cluster.kill(tmp_path, 1)


def test_down_with_purge_removes_the_directory(tmp_path: Path) -> None:
    dev_directory.create(tmp_path / "dev", 1)
    assert dev_cluster.down(tmp_path / "dev", purge=True) == []
    assert not (tmp_path / "dev").exists()


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert cause.tail(log, 3) == []
    log.write_text("".join(f"{i}\n" for i in range(10)))
    assert cause.tail(log, 3) == ["7", "8", "9"]


def test_an_added_broker_joins_the_voters_and_has_the_same_files(tmp_path: Path) -> None:
    made = dev_directory.create(tmp_path / "dev", 3)
    grown = made.with_one_more().with_one_more()
    assert dev_directory.load(tmp_path / "dev") == grown
    assert ([b.id for b in grown.brokers], grown.voters) == ([1, 2, 3, 4, 5], made.brokers)
    config = tomllib.loads(grown.config(5).read_text())
    assert config["join"] == [b.peer_address for b in made.brokers]
    assert "voters" not in config
    assert (config["listen"], config["secret_file"]) == (grown.broker(5).address, str(tmp_path / "dev" / "secret"))
    assert len({a for b in grown.brokers for a in (b.address, b.peer_address, b.metrics_address)}) == 15


def test_an_added_broker_takes_no_port_of_a_stopped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = dev_directory.create(tmp_path / "dev", 3)
    ours = sorted(made._ports())
    monkeypatch.setattr(dev_directory, "is_free", lambda port: False)
    free = [*ours, 65_001, 65_002, 65_003]
    assert made.with_one_more(lambda count: free[:count]).broker(4).address == "127.0.0.1:65001"


def test_an_added_broker_that_fails_to_start_is_removed(tmp_path: Path) -> None:
    made = dev_directory.create(tmp_path / "dev", 3)
    before = sorted(path.name for path in made.path.iterdir())
    grown = made.with_one_more()
    grown.data(4).mkdir()
    grown.set_process(4, Process(1, "x"))
    assert grown.without(grown.broker(4)) == made == dev_directory.load(made.path)
    assert sorted(path.name for path in made.path.iterdir()) == before


def test_a_local_cluster_grows_up_to_a_bound(tmp_path: Path) -> None:
    folder = dev_directory.create(tmp_path / "dev", 1)
    for _ in range(dev_directory.BROKERS_MAX - 1):
        folder = folder.with_one_more()
    with pytest.raises(InvalidRequest):
        folder.with_one_more()


@pytest.mark.parametrize("name", ["dev.lock", "dev/broker-1.log", "dev/broker-1.pid", "dev/cluster.json"])
def test_a_planted_link_is_refused_and_its_target_stays(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "dev").mkdir(0o700)
    if name.startswith("dev/broker"):
        dev_directory.create(tmp_path / "dev", 1)
    (tmp_path / name).symlink_to(victim)
    assert run(["dev", "up", "-n", "1", "--dir", str(tmp_path / "dev")]) == Exit.FAILED
    said = capfd.readouterr().err
    assert f"error: {tmp_path / name} is a symbolic link [UnsafePath]" in said
    assert victim.read_text() == "precious"
    assert not (tmp_path / "dev" / "broker-1").exists(), "nothing was started"


def test_output_goes_to_no_planted_link(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "victim")
    with pytest.raises(UnsafePath):
        process.start(["/bin/true"], tmp_path / "log")
    for reads in (lambda: cause.tail(tmp_path / "log", 10), lambda: cause.lines_from(tmp_path / "log", 0)):
        (tmp_path / "victim").write_text("precious\n")
        with pytest.raises(UnsafePath):
            reads()


def test_a_directory_open_to_others_is_kept_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "dev"
    dev_directory.create(path, 1)
    path.chmod(0o755)
    said: list[str] = []
    (path / "broker-1.log").symlink_to(tmp_path)  # makes the start of broker 1 fail
    with pytest.raises(UnsafePath):
        dev_cluster.up(path, None, said.append)
    assert any(f"other users can enter {path}, which has mode 755" in line for line in said)
    assert path.stat().st_mode & 0o777 == 0o755
