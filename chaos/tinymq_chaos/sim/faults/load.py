"""Load that a fault brings along, because the fault would have no effect without it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping
from typing import Any

from tinymq.base.errors import TinymqError
from tinymq.client import AsyncClient
from tinymq_chaos.sim.world.world import World
from tinymq_chaos.workloads.context import Caller

CALL_S = 2.0


class BackgroundLoad:
    """The load, until `stop`. It is the Context of a workload, too."""

    pace = 0.1

    def __init__(self, world: World, rng: random.Random, stop: asyncio.Event) -> None:
        self.world, self.rng, self.stop = world, rng, stop
        self.clock, self.history = world.clock, world.history
        self.name = f"beside-{world.loop.time():.6f}"

    async def topic(
        self, partitions: int = 1, settings: Mapping[str, str] | None = None, replicas: int | None = None
    ) -> str:
        """Create a topic for this load alone, which is in no history."""
        with contextlib.suppress(TinymqError):
            await self.client().admin.create_topic(self.name, partitions, self.world.replication_factor, timeout=CALL_S)
        return self.name

    def watch_leader(self, topic: str, partition: int) -> None:
        """Faults strike the leaders of all groups here."""

    def client(self, **settings: Any) -> AsyncClient:
        return self.world.client(random.Random(self.rng.random()), **settings)

    def caller(self) -> Caller:
        return self.world.caller(random.Random(self.rng.random()))
