"""An empty database of each kind, and a cluster of one broker for the tests of the relay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.outbox.databases import Database, PostgresServer, postgresql, sqlite
from tinymq import Client
from tinymq.testing import Cluster


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    with postgresql() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return sqlite(tmp_path)
    running: PostgresServer = request.getfixturevalue("server")
    return running.database()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1) as running:
        yield running


@pytest.fixture
def mq(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.servers) as client:
        yield client
