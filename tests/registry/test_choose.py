"""One setting chooses the registry, and a broker whose registry is in memory serves until it stops."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.manual_clock import ManualClock
from tests.fakes.raft_host import FakeHosts
from tinymq.app import BrokerApp
from tinymq.client import AsyncClient
from tinymq.config import BrokerConfig
from tinymq.errors import CorruptData, InvalidConfig
from tinymq.registry.choose import choose
from tinymq.registry.machine import RegistryMachine
from tinymq.registry.memory import MemoryRegistry
from tinymq.registry.replicated import ReplicatedRegistry
from tinymq.rpc.forming import form_cluster
from tinymq.testing.cluster import free_ports
from tinymq.types import PeerAddress

SECRET = b"s" * 16
ALONE = BrokerConfig(1, "d", (PeerAddress(1, "127.0.0.1", 1),), SECRET)


@pytest.mark.parametrize(("name", "kind"), [("replicated", ReplicatedRegistry), ("memory", MemoryRegistry)])
def test_the_setting_chooses(name: str, kind: type) -> None:
    config = replace(ALONE, registry=name)
    machine, host = RegistryMachine(), FakeHosts().host(1)
    assert type(choose(config, machine, host, b"c" * 16, ManualClock(), random.Random(1))) is kind
    assert ALONE.registry == "replicated"


def test_a_registry_in_memory_is_of_one_broker() -> None:
    three = tuple(PeerAddress(n, "127.0.0.1", n) for n in (1, 2, 3))
    with pytest.raises(InvalidConfig, match="more than one broker"):
        replace(ALONE, voters=three, registry="memory")
    with pytest.raises(InvalidConfig, match="no voter") as alone:
        replace(ALONE, voters=(), registry="memory")
    assert f"--voter {ALONE.broker_id}@host:port" in alone.value.hint
    for text in ("", "Memory", "etcd://h:1"):
        with pytest.raises(InvalidConfig):
            replace(ALONE, registry=text)


def test_a_folder_of_another_registry_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """Else it would have partitions that its registry knows nothing of, and say no word about it."""
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
                await BrokerApp(replace(config, registry=other)).start()
            assert "start the broker as before" in refused.value.hint
        (tmp_path / "registry").write_text("zookeeper\n")
        with pytest.raises(InvalidConfig, match="are in the registry 'zookeeper', not in 'replicated'"):
            await BrokerApp(config).start()
        (tmp_path / "registry").write_bytes(b"\xff")
        with pytest.raises(CorruptData):
            await BrokerApp(config).start()
        (tmp_path / "registry").unlink()  # as folders have it that are older than this file
        again = BrokerApp(config)
        await again.start()
        async with AsyncClient(again.address) as mq:
            assert (await mq.send("t", b"w")).offset == 1
        await again.stop()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_broker_on_a_registry_in_memory(tmp_path: Path) -> None:
    """It serves as any other; started again on what it left, it says that nobody knows whose data that is."""
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
