"""The contract suite's one fixture: a scenario runs over every implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.fakes.manual_clock import ManualClock
from tests.registry.bench import Bench, Scenario
from tests.registry.implementations import IMPLEMENTATIONS


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda implementation: implementation.__name__)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Scenario:
    async def main(scenario: Callable[[Bench], Awaitable[None]]) -> None:
        clock = ManualClock()
        async with request.param(clock, tmp_path) as registry:
            await scenario(Bench(registry, clock))

    return lambda scenario: asyncio.run(main(scenario))
