"""`tinymq dev` and `tinymq broker` with real processes: up, kill, down, and the messages of failures."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import RunBroker
from tests.metrics.pages import get
from tinymq.base.errors import NotReady, PortInUse
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.dev import cause, dev_cluster, dev_directory
from tinymq.dev.process import Process
from tinymq.net import loopback_ports

DEADLINE_S = 20.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A directory for a cluster, which is stopped afterwards."""
    path = tmp_path / "dev"
    yield path
    if (path / "cluster.json").exists():
        dev_cluster.down(path, purge=False)


def _processes(folder: Path) -> list[Process]:
    cluster = dev_directory.load(folder)
    return [process for b in cluster.brokers if (process := cluster.process(b.id)) is not None]


def _mode(path: Path) -> int:
    """Return the mode of a file; 0 if its broker has renamed it meanwhile."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0


def _metadata_leader(folder: Path, capfd: pytest.CaptureFixture[str]) -> int:
    capfd.readouterr()
    run(["cluster", "status", "-s", dev_directory.load(folder).servers, "-o", "json"])
    leader: int = json.loads(capfd.readouterr().out)["metadata_leader"]
    return leader


def test_a_clusters_life(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    where = ["--dir", str(folder)]
    assert run(["dev", "up", "-n", "3", "--port", "0", *where, "-o", "json"]) == Exit.OK
    states = json.loads(capfd.readouterr().out)["brokers"]
    assert [(b["id"], b["state"]) for b in states] == [(1, "running"), (2, "running"), (3, "running")]
    assert [get(b["metrics"], "/status")[0] for b in states] == [200, 200, 200]
    started = _processes(folder)
    assert [p.pid for p in started] == [b["pid"] for b in states]
    made = [folder, folder.with_name("dev.lock"), *folder.rglob("*")]
    assert len(made) > 20
    assert [path for path in made if _mode(path) & 0o077] == [], "only its owner can read the files"

    assert run(["dev", "kill", "2", *where, "-o", "json"]) == Exit.OK
    assert json.loads(capfd.readouterr().out) == {**states[1], "pid": None, "state": "stopped"}
    assert not started[1].alive
    assert [s.state for s in dev_cluster.status(folder)] == ["running", "stopped", "running"]
    assert run(["dev", "start", "1", *where]) == Exit.USAGE, "the broker runs already"
    assert "tinymq dev stop 1" in capfd.readouterr().err
    assert run(["dev", "start", "2", *where]) == Exit.OK
    assert [s.state for s in dev_cluster.status(folder)] == ["running"] * 3

    capfd.readouterr()
    assert run(["dev", "logs", "2", *where]) == Exit.OK
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert "broker_state" in {line["event"] for line in lines}

    running = _processes(folder)
    capfd.readouterr()
    assert run(["dev", "down", *where, "-o", "json"]) == Exit.OK
    assert json.loads(capfd.readouterr().out) == {"stopped": [1, 2, 3], "removed": None}
    assert not [p for p in running if p.alive]
    assert run(["dev", "start", "1", *where]) == Exit.UNAVAILABLE, "one broker of three cannot serve"
    assert "tinymq dev up also starts brokers 2, 3" in capfd.readouterr().err
    assert run(["dev", "up", *where]) == Exit.OK, "the cluster starts again with its data"
    leader = _metadata_leader(folder, capfd)
    assert run(["dev", "stop", str(leader), *where]) == Exit.OK
    events = [json.loads(line) for line in cause.tail(dev_directory.load(folder).log(leader), 50)]
    stopping = max(i for i, event in enumerate(events) if event.get("state") == "stopping")
    assert "follower" in [event.get("role") for event in events[stopping:]], (
        "the broker transferred its leadership before it stopped"
    )
    assert _metadata_leader(folder, capfd) not in (leader, None)
    assert run(["dev", "down", "--purge", *where]) == Exit.OK
    assert list(folder.parent.iterdir()) == [], "the lock file is removed"


@pytest.mark.long  # `tinymq dev stop` does the same, in the test above
def test_sigterm_stops_a_broker_in_order(folder: Path) -> None:
    dev_cluster.up(folder, 1, lambda _: None)
    (process,) = _processes(folder)
    process.signal(signal.SIGTERM)
    assert process.wait_gone(time.monotonic() + DEADLINE_S)
    events = [json.loads(line) for line in cause.tail(dev_directory.load(folder).log(1), 50)]
    assert "stopping" in {event.get("state") for event in events}
    assert [s.state for s in dev_cluster.status(folder)] == ["stopped"]


def without_metrics(folder: Path) -> dev_directory.DevDirectory:
    """Create three brokers as a version without metrics did."""
    dev_directory.create(folder, 3)
    document = json.loads((folder / "cluster.json").read_text())
    for said in document["brokers"]:
        del said["metrics_address"]
        config = folder / f"broker-{said['id']}.toml"
        config.write_text(re.sub(r"metrics_listen = .*\n", "", config.read_text()))
    (folder / "cluster.json").write_text(json.dumps(document))
    return dev_directory.load(folder)


def test_a_failed_start_is_explained_and_leaves_no_process(folder: Path) -> None:
    """Also start a cluster that was created before metrics existed.

    It serves no metrics: their default is one port, which three brokers of one machine cannot share.
    """
    cluster = without_metrics(folder)
    with socket.socket() as taken:
        port = int(cluster.broker(2).address.rpartition(":")[2])
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of other tests may have ended there
        taken.bind((loopback_ports.HOST, port))
        taken.listen()
        said: list[str] = []
        with pytest.raises(NotReady) as raised:
            dev_cluster.up(folder, None, said.append)
    assert raised.value.message.startswith("broker 2 did not start: PortInUse: ")
    assert "\n" not in raised.value.message
    assert str(cluster.log(2)) in raised.value.hint
    assert said[-1] == "stopped again: brokers 1, 2, 3"
    assert [s.state for s in dev_cluster.status(folder)] == ["stopped"] * 3
    assert _processes(folder) == []
    dev_cluster.up(folder, None, lambda _: None)
    assert [(s.metrics, s.state) for s in dev_cluster.status(folder)] == [("", "running")] * 3


def test_ports_are_reserved_until_the_brokers_listen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = next(p for p in range(32_000, 33_000) if all(loopback_ports.is_free(p + i) for i in range(3)))
    monkeypatch.setattr(loopback_ports, "PORTS", range(first, first + 3))

    class SeenEnough(Exception):
        pass

    def the_process_has_just_begun(_: str) -> None:
        with pytest.raises(PortInUse):
            loopback_ports.free_ports(1)
        raise SeenEnough

    with pytest.raises(SeenEnough):
        dev_cluster.up(folder, 1, the_process_has_just_begun)
    assert len(loopback_ports.free_ports(3)) == 3


def test_an_unknown_key_names_the_nearest(tmp_path: Path, run_broker: RunBroker) -> None:
    cluster = dev_directory.create(tmp_path / "dev", 1)
    config = cluster.config(1)
    config.write_text(config.read_text().replace("peer_listen", "peer_listn"))
    result = run_broker(["--config", str(config)])
    assert result.returncode == Exit.USAGE
    assert "peer_listen" in result.stderr
    assert "Traceback" not in result.stderr
