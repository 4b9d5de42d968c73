"""A registry on a clock that stands still, with the effects it told of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from tests.fakes.manual_clock import ManualClock
from tests.registry.records import broker
from tinymq.registry.choose import Registry
from tinymq.registry.state import Effect

UNTIL_S = 10.0  # real ones: of an implementation that others have a part in


class Bench:
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

    async def until(self, holds: Callable[[], bool]) -> None:
        """Turn the loop until it holds; the clock stands still."""
        deadline_s = time.monotonic() + UNTIL_S
        while not holds():
            assert time.monotonic() < deadline_s, "it never came true"
            await asyncio.sleep(0)


Scenario = Callable[[Callable[[Bench], Awaitable[None]]], None]
