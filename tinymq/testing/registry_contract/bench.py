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
"""The type of a user's fixture `open_registry`.

It opens a started, empty registry on the given clock, and stops the registry at the end. The registry may store files
in the given directory."""


def broker(number: int, session: int = 1, rack: str = "", feature_level: int = 1) -> BrokerRecord:
    """Return a broker's registration."""
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
    """A scenario's registry, its clock, and the effects that the registry has reported so far."""

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
        """Raise the feature level, as a broker does once every member announces it."""
        await self.registry.raise_feature_level(level, self.registry.version)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Run the event loop until the condition holds, while the clock stands still."""
        deadline_s = time.monotonic() + UNTIL_S
        while not holds():
            assert time.monotonic() < deadline_s, "the condition never held"
            await asyncio.sleep(0)


Scenario = Callable[[Callable[[Bench], Awaitable[None]]], None]


@pytest.fixture
def run(open_registry: OpenRegistry, tmp_path: Path) -> Scenario:
    """Return the function that runs a scenario on a registry that the user's fixture opens."""

    async def main(scenario: Callable[[Bench], Awaitable[None]]) -> None:
        clock = ManualClock()
        async with open_registry(clock, tmp_path) as registry:
            await scenario(Bench(registry, clock))

    return lambda scenario: asyncio.run(main(scenario))
