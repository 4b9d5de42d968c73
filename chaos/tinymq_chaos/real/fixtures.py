"""Pytest fixtures: a cluster of real brokers behind proxies, and a nemesis that does faults to it.

    pytest_plugins = ["tinymq_chaos.real.fixtures"]          # in a conftest.py; chaos/ has to be on the path

    def test_my_consumer(chaos_cluster, nemesis):
        nemesis.watch("orders", partitions=6)                # so that "the leader" is one of its leaders
        with nemesis.fault("kill_leader"):
            ...

    pytest --chaos-brokers 5 --chaos-seed 7

`chaos_cluster` (a Cluster, one for each module) is whole when a test begins; `nemesis` (a Nemesis) ends every fault
when the test ends, waits until all is well again, and fails the test if it does not become so. examples/chaos/ has a
whole test of a consumer. The names of the faults: python -m tinymq_chaos.real --list.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinymq_chaos.history import History
from tinymq_chaos.real.cluster.cluster import NODES, Cluster
from tinymq_chaos.real.run.nemesis import Nemesis

BROKERS = 3
FRESH_SEEDS = 1_000_000


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tinymq chaos")
    group.addoption("--chaos-brokers", type=int, choices=NODES, default=BROKERS, help="brokers of chaos_cluster (3)")
    group.addoption("--chaos-seed", type=int, help="of what the nemesis chooses; default: a fresh one")


@pytest.fixture(scope="module")
def chaos_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A formed and serving cluster.

    Clients connect to `chaos_cluster.servers`; logs of brokers are in `chaos_cluster.folder`.
    """
    folder: Path = tmp_path_factory.mktemp("chaos")
    with Cluster(folder, request.config.getoption("--chaos-brokers"), disks=True) as cluster:
        cluster.up()
        yield cluster


@pytest.fixture(scope="module")
def _nemesis_of_module(request: pytest.FixtureRequest, chaos_cluster: Cluster) -> Nemesis:
    """One nemesis for as long as the cluster lasts: it remembers whose disk it damaged, so that it damages no other
    one.
    """
    seed = request.config.getoption("--chaos-seed")
    seed = random.SystemRandom().randrange(FRESH_SEEDS) if seed is None else seed
    print(f"\nthe nemesis chooses by --chaos-seed {seed}")
    return Nemesis(chaos_cluster, History(time.monotonic), random.Random(seed), has=frozenset({"disks"}))


@pytest.fixture
def nemesis(chaos_cluster: Cluster, _nemesis_of_module: Nemesis) -> Iterator[Nemesis]:
    """Does faults, any number at once. All of them end with the test."""
    chaos_cluster.wait_healthy()
    try:
        yield _nemesis_of_module
    finally:
        _nemesis_of_module.end_all()
        chaos_cluster.wait_healthy()
