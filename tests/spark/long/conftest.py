"""Fixtures of the long tests: an environment with only the wheel, and a standalone Spark cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark import environments
from tests.spark.standalone import Standalone


@pytest.hookimpl(tryfirst=True)  # before pytest removes the tests that -m does not select
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an environment and its archive: environment/, environment.tar.gz."""
    folder = tmp_path_factory.mktemp("packed")
    environments.make(folder / "environment", environments.build(folder))
    environments.pack(folder / "environment", folder / "environment.tar.gz")
    return folder


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master and two workers, in processes."""
    with Standalone(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster
