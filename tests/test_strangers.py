"""Brokers that do not belong to one cluster: each refusal is typed, logged with a hint, and changes nothing. The
stranger takes broker 3's place in a cluster of three; the other two keep working.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from structlog.testing import LogCapture

from tinymq.app.broker_app import BrokerApp
from tinymq.app.machine_env import MachineEnv
from tinymq.base.clock import SystemClock
from tinymq.base.config import BrokerConfig, parse_address
from tinymq.base.types import METADATA_GROUP, PeerAddress
from tinymq.format.feature_level import KNOWN_LEVEL
from tinymq.log.engine.store import Store
from tinymq.raft.net import listener, tcp
from tinymq.raft.net.handshake import Credentials
from tinymq.raft.net.tcp import TcpTransport
from tinymq.testing.cluster import Cluster

STRANGER = 3
OTHERS = (1, 2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        _wait_for_feature_level(running)
        running.kill(STRANGER)
        yield running


def _wait_for_feature_level(cluster: Cluster) -> None:
    """Wait until the stranger has noted the cluster's feature level, which is the last change of its broker.json."""
    store = cluster.brokers[STRANGER]._store
    assert store is not None
    cluster.wait_until(lambda: store.identity.feature_level == KNOWN_LEVEL)


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> LogCapture:
    """The log events of broker connections, of all brokers in this process."""
    capture = LogCapture()
    for module in (tcp, listener):
        monkeypatch.setattr(module, "logger", structlog.wrap_logger(None, processors=[capture]))
    return capture


class Newer(TcpTransport):
    """A build that knows only later versions."""

    def _credentials(self) -> Credentials:
        return dataclasses.replace(super()._credentials(), protocol_min=KNOWN_LEVEL + 1, protocol_max=KNOWN_LEVEL + 2)


def _newer(config: BrokerConfig) -> MachineEnv:
    def make(store: Store, session: int) -> Newer:
        listen = parse_address(config.peer_listen)
        return Newer(
            lambda: store.identity,
            config.secret,
            session,
            listen,
            clock=SystemClock(),
            rng=random.Random(1),
            limits=config.limits,
        )

    return MachineEnv(transport=make)


def _of_another_cluster(config: BrokerConfig, folder: Path) -> BrokerConfig:
    """The same broker id and addresses, on the data directory of another cluster's broker."""
    with Cluster(nodes=3) as other:
        _wait_for_feature_level(other)
        origin = Path(other.brokers[STRANGER].config.data_dir)
        other.stop(STRANGER)
        shutil.copytree(origin, folder)
    return dataclasses.replace(config, data_dir=str(folder))


def _mistaken_about_addresses(config: BrokerConfig, folder: Path) -> BrokerConfig:
    """Confuses brokers 1 and 2."""
    one, two, three = config.voters
    swapped = (PeerAddress(1, two.host, two.port), PeerAddress(2, one.host, one.port), three)
    return dataclasses.replace(config, voters=swapped)


Make = Callable[[BrokerConfig, Path], BrokerConfig]
STRANGERS: dict[str, tuple[Make, Callable[[BrokerConfig], MachineEnv] | None, str]] = {
    "a wrong secret": (lambda c, _: dataclasses.replace(c, secret=b"not the cluster's secret"), None, "WrongSecret"),
    "a data folder of another cluster": (_of_another_cluster, None, "WrongCluster"),
    "another broker than was dialled": (_mistaken_about_addresses, None, "WrongBroker"),
    "another protocol version": (lambda c, _: c, _newer, "UnsupportedVersion"),
}


def _kept(config: BrokerConfig) -> dict[str, bytes]:
    """The owner of the data directory, and every log in it. (Marks and hard state are rewritten at each opening.)"""
    folder = Path(config.data_dir)
    names = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    kept = [name for name in names if name.parts[0] in ("groups", "broker.json", "metadata-first-entry")]
    return {str(name): (folder / name).read_bytes() for name in kept}


@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_is_refused(cluster: Cluster, logs: LogCapture, tmp_path: Path, who: str) -> None:
    make, outside, code = STRANGERS[who]
    config = make(cluster._config(STRANGER), tmp_path / "data")
    logs.entries.clear()  # of another cluster's brokers during its formation
    before = _kept(config)
    terms = [cluster.brokers[n].host.groups[METADATA_GROUP].term for n in OTHERS]
    app = BrokerApp(config, outside(config) if outside is not None else None)
    cluster.run(app.start())
    own_term = cluster.call(lambda: app.host.groups[METADATA_GROUP].term)

    def refused() -> bool:
        told = {line["peer"] for line in logs.entries if line["event"] == "peer not reached" and line["code"] == code}
        turned_away = {line["code"] for line in logs.entries if line["event"] == "peer turned away"}
        return told >= set(OTHERS) and turned_away == {code}

    cluster.wait_until(refused)
    for line in logs.entries:
        if line["code"] == code:
            assert line["log_level"] == "warning"
            assert line["reason"]
            assert line["hint"]
    replica = app.host.groups[METADATA_GROUP]
    assert cluster.call(lambda: (replica.term, replica.is_leader)) == (own_term, False), "it elected nobody"
    cluster.run(app.kill())
    assert len(before) > 2
    assert _kept(config) == before, "nothing has changed on disk"
    assert [cluster.brokers[n].host.groups[METADATA_GROUP].term for n in OTHERS] == terms, "nobody was disturbed"


def test_the_right_one_is_let_in(cluster: Cluster) -> None:
    """Traces of a stranger keep no broker out."""
    cluster.start(STRANGER)
    assert cluster.call(lambda: cluster.registry(OTHERS[0]).get_broker(STRANGER)) is not None
    cluster.stop(STRANGER)
