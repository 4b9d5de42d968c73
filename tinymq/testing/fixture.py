"""A pytest fixture: `pytest_plugins = ["tinymq.testing.fixture"]` in a conftest, then ask for `tinymq_cluster`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tinymq.testing.cluster import Cluster


@pytest.fixture(scope="module")
def tinymq_cluster() -> Iterator[Cluster]:
    """Three brokers, shared by the tests of a module."""
    with Cluster(nodes=3) as cluster:
        yield cluster
