"""A registry on a clock that stands still, with the effects that it told of; and how a test runs on one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tinymq.registry.choose import Registry
from tinymq.registry.effects import Effect
from tinymq.registry.values import BrokerRecord
from tinymq.testing.manual_clock import ManualClock

UNTIL_S = 10.0  # real ones: of an implementation that others have a part in

OpenRegistry = Callable[[ManualClock, Path], AbstractAsyncContextManager[Registry]]
"""What a user's fixture `open_registry` is: it opens a registry on this clock, started and empty, which may keep what
it needs in this folder, and stops it at the end."""


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
    """What a scenario has in its hands."""

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
        """As a broker does that has seen every member announce it."""
        await self.registry.raise_feature_level(level, self.registry.version)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Turn the loop until it holds; the clock stands still."""
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
