"""Runs a test on a registry whose clock stands still, and records the effects that the registry reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tinymq.registry.factory import Registry
from tinymq.registry.state.effects import Effect
from tinymq.registry.state.values import BrokerRecord
from tinymq.simulation.manual_clock import ManualClock

UNTIL_S = 10.0  # real seconds, for implementations that depend on other processes

OpenRegistry = Callable[[ManualClock, Path], AbstractAsyncContextManager[Registry]]
"""The type of a user's fixture `open_registry`: it opens a started, empty registry on this clock, which may store files
in this folder, and stops it at the end."""


def broker(number: int, session: int = 1, rack: str = "", feature_level: int = 1) -> BrokerRecord:
    """A registration."""
    return BrokerRecord(
        broker_id=number,
        incarnation=bytes([number]) * 16,
        session=session,
        address=f"h:{number}",
        peer_address=f"h:{100 + number}",
        rack=rack,
        feature_level=feature_level,
    )


class Bench:
    """A scenario's registry, its clock, and the effects so far."""

    def __init__(self, registry: Registry, clock: ManualClock) -> None:
        self.clock = clock
        self.registry = registry
        self.effects: list[Effect] = []
        registry.watch(self._changed)

    def _changed(self, effects: Sequence[Effect]) -> None:
        self.effects.extend(effects)

    async def register(self, *numbers: int) -> None:
        for number in numbers:
            await self.registry.register_broker(broker(number))

    async def raise_level(self, level: int) -> None:
        """Raise the level, like a broker that has seen every member announce it."""
        await self.registry.raise_feature_level(level, self.registry.version)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Turn the loop until the condition holds, while the clock stands still."""
        deadline_s = time.monotonic() + UNTIL_S
        while not holds():
            assert time.monotonic() < deadline_s, "it never came true"
            await asyncio.sleep(0)


Scenario = Callable[[Callable[[Bench], Awaitable[None]]], None]


@pytest.fixture
def run(open_registry: OpenRegistry, tmp_path: Path) -> Scenario:
    """Runs a scenario on a registry that the user's fixture opens."""

    async def main(scenario: Callable[[Bench], Awaitable[None]]) -> None:
        clock = ManualClock()
        async with open_registry(clock, tmp_path) as registry:
            await scenario(Bench(registry, clock))

    return lambda scenario: asyncio.run(main(scenario))
