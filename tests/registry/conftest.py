"""Runs the contract suite over every implementation."""

from __future__ import annotations

import pytest

from tests.registry.implementations import IMPLEMENTATIONS
from tinymq.testing.registry_contract import OpenRegistry


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda implementation: implementation.__name__)
def open_registry(request: pytest.FixtureRequest) -> OpenRegistry:
    opened: OpenRegistry = request.param
    return opened
