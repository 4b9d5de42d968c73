"""One setting selects the registry, and a broker with a registry in memory serves until it stops."""

from __future__ import annotations

import asyncio
import random
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from examples.registry import sqlite_registry
from tests.fakes.manual_clock import ManualClock
from tests.fakes.raft_host import FakeHosts
from tinymq.app.broker_app import BrokerApp
from tinymq.app.machine_env import MachineEnv
from tinymq.base.config import BrokerConfig
from tinymq.base.errors import CorruptData, InvalidConfig
from tinymq.base.types import PeerAddress
from tinymq.client import AsyncClient
from tinymq.log.engine.store import Store
from tinymq.net.loopback_ports import free_ports
from tinymq.raft.net.transport import Transport
from tinymq.registry import factory as choose_room
from tinymq.registry.factory import Registry, RegistryContext, make_registry, plug_in
from tinymq.registry.memory import MemoryRegistry
from tinymq.registry.raft_group.replicated import ReplicatedRegistry
from tinymq.registry.raft_group.state_machine import RegistryMachine
from tinymq.rpc.operator_calls.cluster_formation import form_cluster

SECRET = b"s" * 16
ALONE = BrokerConfig(1, "d", (PeerAddress(1, "127.0.0.1", 1),), SECRET)


@pytest.mark.parametrize(("name", "kind"), [("replicated", ReplicatedRegistry), ("memory", MemoryRegistry)])
def test_the_setting_selects_the_registry(name: str, kind: type) -> None:
    config = replace(ALONE, registry=name)
    machine, host = RegistryMachine(), FakeHosts().host(1)
    assert type(make_registry(config, machine, host, b"c" * 16, ManualClock(), random.Random(1))) is kind
    assert ALONE.registry == "replicated"


def chosen(url: str) -> Registry:
    machine, host = RegistryMachine(), FakeHosts().host(1)
    return make_registry(replace(ALONE, registry=url), machine, host, b"c" * 16, ManualClock(), random.Random(1))


def opened(url: str, context: RegistryContext) -> Registry:
    """The factory that the entry point of the next test names."""
    assert (url, context.broker_id, context.cluster_id) == ("entry://user:password@h/p?q", 1, b"c" * 16)
    return MemoryRegistry(context.clock, context.rng, context.timing)


def test_a_package_plugs_a_registry_in_by_the_scheme_of_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "of_a_user-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: of-a-user\nVersion: 1.0\n")
    points = "[tinymq.registry]\nentry = of_a_user:opened\ngone = of_a_user_gone:opened\nless = of_a_user:nothing\n"
    (package / "entry_points.txt").write_text(points)
    module = types.ModuleType("of_a_user")
    module.opened = opened  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "of_a_user", module)
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(chosen("entry://user:password@h/p?q"), MemoryRegistry)
    for scheme in ("gone", "less"):
        with pytest.raises(InvalidConfig, match=f"the registry for {scheme}:// cannot be loaded") as broken:
            chosen(f"{scheme}://user:password@h")
        assert "of_a_user" in broken.value.hint
    with pytest.raises(InvalidConfig, match="no registry is known for URLs that begin with etcd://") as unknown:
        chosen("etcd://user:password@h")
    assert "known schemes: entry, gone, less, " in unknown.value.hint
    assert "password" not in str(unknown.value)


def test_a_program_plugs_a_registry_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_room, "_plugged_in", {})
    plug_in("sqlite", sqlite_registry.open_registry)
    assert isinstance(chosen(f"sqlite://{tmp_path}/registry.db"), sqlite_registry.SqliteRegistry)
    with pytest.raises(InvalidConfig, match="not the URL of an SQLite file"):
        chosen("sqlite://")
    for scheme in ("", "Sqlite", "a-b", "zookeeper", "memory", "replicated", "x" * 33):
        with pytest.raises(InvalidConfig, match="not a scheme that can be plugged in"):
            plug_in(scheme, sqlite_registry.open_registry)


def test_a_registry_in_memory_serves_one_broker() -> None:
    three = tuple(PeerAddress(n, "127.0.0.1", n) for n in (1, 2, 3))
    with pytest.raises(InvalidConfig, match="more than one broker"):
        replace(ALONE, voters=three, registry="memory")
    with pytest.raises(InvalidConfig, match="no voter") as alone:
        replace(ALONE, voters=(), registry="memory")
    assert f"--voter {ALONE.broker_id}@host:port" in alone.value.hint
    for text in ("", "Memory", "etcd", "etcd:h:1", "Etcd://h", "://h", f"{'e' * 33}://h"):
        with pytest.raises(InvalidConfig):
            replace(ALONE, registry=text)


def no_transport(store: Store, session: int) -> Transport:
    raise AssertionError("a broker that cannot run connected to its peers")


UNHEARD = MachineEnv(transport=no_transport)


def test_a_data_directory_of_another_registry_is_refused_and_unchanged(tmp_path: Path) -> None:
    """Otherwise it would silently have partitions that its registry does not know."""
    (port,) = free_ports(1)
    config = replace(
        ALONE, data_dir=str(tmp_path), voters=(PeerAddress(1, "127.0.0.1", port),), peer_listen=f"127.0.0.1:{port}"
    )

    async def main() -> None:
        app = BrokerApp(config)
        await app.start()
        await form_cluster([app.address], SECRET, 1)
        async with AsyncClient(app.address) as mq:
            while not any(broker.alive for broker in await mq.admin.brokers()):
                await asyncio.sleep(0)  # until it is registered
            await mq.admin.create_topic("t")
            await mq.send("t", b"v")
        await app.stop()
        for other in ("memory", "zookeeper://127.0.0.1:1/t"):
            with pytest.raises(InvalidConfig, match="are in the registry 'replicated'") as refused:
                await BrokerApp(replace(config, registry=other), UNHEARD).start()
            assert "start the broker as before" in refused.value.hint
        (tmp_path / "registry").write_text("zookeeper\n")
        with pytest.raises(InvalidConfig, match="are in the registry 'zookeeper', not in 'replicated'"):
            await BrokerApp(config, UNHEARD).start()
        (tmp_path / "registry").write_bytes(b"\xff")
        with pytest.raises(CorruptData):
            await BrokerApp(config).start()
        (tmp_path / "registry").unlink()  # as in data directories older than this file
        again = BrokerApp(config)
        await again.start()
        async with AsyncClient(again.address) as mq:
            assert (await mq.send("t", b"w")).offset == 1
        await again.stop()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_broker_on_a_registry_in_memory(tmp_path: Path) -> None:
    """It serves like any other broker. Restarted on its data directory, it reports that the owner of the data is
    unknown.
    """
    (port,) = free_ports(1)
    config = replace(
        ALONE, data_dir=str(tmp_path), voters=(PeerAddress(1, "127.0.0.1", port),), peer_listen=f"127.0.0.1:{port}",
        registry="memory",
    )  # fmt: skip

    async def main() -> None:
        app = BrokerApp(config)
        await app.start()
        try:
            await form_cluster([app.address], SECRET, 1)
            async with AsyncClient(app.address) as mq:
                await mq.admin.create_topic("t", 2)
                await mq.admin.delete_partition("t", 0)
                assert (await mq.send("t", b"v")).partition == 1
                async with mq.reader("t", end="latest") as reader:
                    assert [m.value async for m in reader] == [b"v"]
            joining = BrokerConfig(
                2, str(tmp_path / "2"), (), SECRET, peer_listen="127.0.0.1:0", join=(app.peer_address,)
            )
            second = BrokerApp(joining)
            await second.start()
            refused = await second.wait_failed()
            await second.stop()
            assert isinstance(refused, InvalidConfig)
            assert "keeps its registry in memory, and is alone" in refused.message
            assert 'registry = "replicated"' in refused.hint
        finally:
            await app.stop()
        with pytest.raises(InvalidConfig, match="1 partition"):
            await BrokerApp(config).start()

    asyncio.run(asyncio.wait_for(main(), 60))
