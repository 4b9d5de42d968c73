"""A cluster inside this process for each module that drives it by the command line, and a topic for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tinymq.cli.exits import Exit
from tinymq.cli.main import run
from tinymq.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        yield running


@pytest.fixture
def servers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that name no servers mean that cluster."""
    monkeypatch.setenv("TINYMQ_SERVERS", cluster.servers)


@pytest.fixture
def topic(request: pytest.FixtureRequest, servers: None) -> str:
    """A new topic of two partitions, named after the test."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    assert run(["topic", "create", name, "--partitions", "2"]) == Exit.OK
    return name
