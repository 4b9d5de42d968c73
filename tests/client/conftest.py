"""The cluster of a module, and a client of it. A module that needs another cluster has a `cluster` of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tinymq import Client
from tinymq.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        yield running


@pytest.fixture
def mq(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.servers) as client:
        yield client
