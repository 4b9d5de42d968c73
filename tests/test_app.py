"""Starting and stopping a broker: each obstacle raises a typed error, and nothing is left open."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from pathlib import Path

import pytest

from tinymq.app.broker_app import BrokerApp
from tinymq.base.config import BrokerConfig
from tinymq.base.errors import CorruptData, FolderInUse, PortInUse, TinymqError, WrongBroker
from tinymq.base.types import PeerAddress
from tinymq.net.loopback_ports import free_ports
from tinymq.rpc.common.broker_state import BrokerState
from tinymq.rpc.operator_calls.cluster_formation import form_cluster
from tinymq.testing.cluster import SECRET


def config(tmp_path: Path, broker_id: int = 1, folder: str = "data") -> BrokerConfig:
    port = free_ports(1)[0]
    return BrokerConfig(
        broker_id=broker_id,
        data_dir=str(tmp_path / folder),
        voters=(PeerAddress(broker_id, "127.0.0.1", port),),
        secret=SECRET,
        peer_listen=f"127.0.0.1:{port}",
    )


async def refused(settings: BrokerConfig, kind: type[TinymqError]) -> None:
    with pytest.raises(kind) as error:
        await BrokerApp(settings).start()
    assert error.value.hint


def test_obstacles_to_a_start_raise_typed_errors(tmp_path: Path) -> None:
    async def main() -> None:
        first = BrokerApp(config(tmp_path))
        await first.start()
        assert first.state is BrokerState.UNFORMED
        await refused(config(tmp_path), FolderInUse)
        await refused(dataclasses.replace(config(tmp_path, 2, "other"), listen=first.address), PortInUse)
        await refused(dataclasses.replace(config(tmp_path, 2, "other"), peer_listen=first.peer_address), PortInUse)
        with socket.socket() as stranger:
            stranger.bind(("127.0.0.1", 0))
            stranger.listen()
            taken = f"127.0.0.1:{stranger.getsockname()[1]}"
            await refused(dataclasses.replace(config(tmp_path, 2, "other"), listen=taken), PortInUse)
        second = BrokerApp(config(tmp_path, 2, "other"))
        await second.start()  # nothing was left open by the refusals
        await second.stop()
        await form_cluster([first.address], SECRET, 5)
        await first.stop()
        await refused(config(tmp_path, 3), WrongBroker)
        again = BrokerApp(config(tmp_path))
        await again.start()
        await again.stop()

    asyncio.run(main())


def test_a_formed_broker_whose_first_entry_is_damaged_does_not_start(tmp_path: Path) -> None:
    async def main() -> None:
        settings = config(tmp_path)
        app = BrokerApp(settings)
        await app.start()
        await form_cluster([app.address], SECRET, 5)
        await app.stop()
        path = tmp_path / "data" / "metadata-first-entry"
        whole = path.read_bytes()
        for damaged in (whole[:-1], whole[:20] + b"\xff" + whole[21:]):
            path.write_bytes(damaged)
            with pytest.raises(CorruptData):
                await BrokerApp(settings).start()
        path.unlink()
        with pytest.raises(CorruptData, match="missing"):
            await BrokerApp(settings).start()
        path.write_bytes(whole)
        app = BrokerApp(settings)
        await app.start()
        assert app.state is BrokerState.RUNNING
        await app.stop()
        assert app.state is BrokerState.STOPPING

    asyncio.run(main())


def test_a_stop_before_anything_was_started(tmp_path: Path) -> None:
    app = BrokerApp(config(tmp_path))
    asyncio.run(app.stop())
    assert app.state is BrokerState.STOPPING
    assert not list(tmp_path.iterdir()), "nothing was opened"
