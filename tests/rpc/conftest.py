"""The cluster of these tests: no leadership moves but by a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.patience import QUICK_CHECKS
from tinymq.testing import Cluster


@pytest.fixture(scope="module")
def tinymq_cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, links=True, timing=QUICK_CHECKS) as cluster:
        yield cluster
