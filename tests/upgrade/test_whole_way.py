"""A running cluster is upgraded from the base build broker by broker under load, then back, then forward for good."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.registry.zookeeper_server import shared_server
from tests.upgrade.builds import TOPIC, Build, Cluster, Load, check_all_there
from tinymq import Client
from tinymq.app.broker_app import BrokerApp
from tinymq.base.config import BrokerConfig
from tinymq.base.errors import UnsupportedVersion
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.client.admin.feature_level import FeatureLevel
from tinymq.format.feature_level import KNOWN_LEVEL
from tinymq.registry.service import RegistryService

BROKERS = (1, 2, 3)

pytestmark = pytest.mark.long


def level(cluster: Cluster) -> FeatureLevel:
    with Client(cluster.servers) as mq:
        return mq.admin.feature_level()


def with_registry(cluster: Cluster, folder: Path, scenario: Callable[[RegistryService], Awaitable[None]]) -> None:
    """Run `scenario` on the registry of another broker inside this process."""

    async def main() -> None:
        data = str(folder / "inside")
        app = BrokerApp(
            BrokerConfig(9, data, (), cluster.secret, join=(cluster.peer_address,), registry=cluster.registry)
        )
        await app.start()
        try:
            while app.serving.broker is None or app.serving.broker.registry.get_broker(9) is None:
                await asyncio.sleep(0.05)
            await scenario(app.serving.broker.registry)
        finally:
            await app.stop()

    asyncio.run(asyncio.wait_for(main(), 60.0))


async def refused_records(registry: RegistryService) -> None:
    with pytest.raises(UnsupportedVersion, match="put_record needs feature level 2, and this cluster is at 1"):
        await registry.put_record("group", "g", b"x", 0)


async def writes_records(registry: RegistryService) -> None:
    first = await registry.put_record("group", "g", b"one", 0)
    second = await registry.put_record("group", "g", b"two", first.version)
    await registry.refresh(10.0)
    assert registry.get_all_records("group") == [second]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("registry", ["replicated", "zookeeper"])
def test_forward_back_and_forward_for_good(tmp_path: Path, capsys: pytest.CaptureFixture[str], registry: str) -> None:
    url = registry if registry == "replicated" else shared_server().url()
    with Cluster(tmp_path, url) as cluster:
        cluster.form(Build.BASE)
        with Client(cluster.servers) as mq:
            mq.admin.create_topic(TOPIC, partitions=3, replication_factor=3)
        with Load(cluster.servers) as load:
            load.goes_on(cluster)
            cluster.swap(1, Build.PRESENT)
            assert run(["cluster", "feature-level", "hold", "-s", cluster.servers, "-o", "json"]) == Exit.OK
            for broker in (2, 3):
                cluster.swap(broker, Build.PRESENT)
                load.goes_on(cluster)
            cluster.until(
                lambda: all(m.announced == KNOWN_LEVEL or m.held for m in level(cluster).members), "all announce"
            )
            assert (level(cluster).level, level(cluster).waits_for) == (1, (1,)), "one broker with a hold is enough"
            with_registry(cluster, tmp_path, refused_records)

            for broker in BROKERS:  # nothing has happened yet that an older build does not know
                cluster.swap(broker, Build.BASE)
                load.goes_on(cluster)
            check_all_there(cluster.servers, load)

            for broker in BROKERS:
                cluster.swap(broker, Build.PRESENT)
                load.goes_on(cluster)
            assert level(cluster).level == 1, "the hold is in the data folder"
            capsys.readouterr()
            assert run(["cluster", "feature-level", "release", "-s", cluster.servers, "-o", "json"]) == Exit.OK
            cluster.until(lambda: level(cluster).level == KNOWN_LEVEL, "the level rises")
            with_registry(cluster, tmp_path, writes_records)
            load.goes_on(cluster)
            old_brokers_are_refused(cluster)
            load.goes_on(cluster)
        check_all_there(cluster.servers, load)


def old_brokers_are_refused(cluster: Cluster) -> None:
    """A broker that joins, and a broker whose data directory has seen the level."""
    stranger = cluster.start(8, Build.BASE)
    assert stranger.wait(60.0)
    assert "UnsupportedVersion" in cluster.said(8)
    assert f"broker 8 knows feature level 1, and this cluster is at {KNOWN_LEVEL}" in cluster.said(8)
    cluster.forget(8)
    cluster.stop(3)
    assert cluster.start(3, Build.BASE).wait(60.0)
    assert "a data folder of format 2; this build reads 1" in cluster.said(3)
    cluster.restart(3, Build.PRESENT)
