"""The pytest plugin of tinymq: a real cluster, a client and a topic for your own tests.

`pip install 'tinymq[testing]'` is enough; pytest finds the fixtures `tinymq_cluster`, `tinymq_client` and
`tinymq_topic` by itself. Importing this module loads nothing of a broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tinymq.client import Client
    from tinymq.testing.cluster import Cluster

NAME_LENGTH_MAX = 200
_NUMBERS = count(1)


@pytest.fixture(scope="module")
def tinymq_cluster() -> Iterator[Cluster]:
    """Three brokers, shared by the tests of a module. Its links can be cut, and its clock jumps."""
    from tinymq.base.config import Timing
    from tinymq.testing.cluster import Cluster

    with Cluster(nodes=3, links=True, timing=Timing(retention_check_s=0.1)) as cluster:
        yield cluster


@pytest.fixture
def tinymq_client(tinymq_cluster: Cluster) -> Iterator[Client]:
    """A client of the cluster, closed at the end of the test."""
    from tinymq import Client

    with Client(tinymq_cluster.servers) as client:
        yield client


@pytest.fixture
def tinymq_topic(tinymq_client: Client, request: pytest.FixtureRequest) -> str:
    """A new topic of three partitions with three replicas, named after the test."""
    test = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[:NAME_LENGTH_MAX]
    name = f"{test}-{next(_NUMBERS)}"
    tinymq_client.admin.create_topic(name, partitions=3, replication_factor=3)
    return name
