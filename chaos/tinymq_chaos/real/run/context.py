"""The context of a workload on real clocks: see ../workloads/context.py."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tinymq.base.clock import Clock, SystemClock
from tinymq.base.errors import TinymqError
from tinymq_chaos.history import History

TOPIC_TRIES_MAX = 6  # of 10 s
REPLICAS = 3


@dataclass(slots=True)
class SharedContext:
    """The common parts of all workloads of a run."""

    seed: int
    history: History
    make_client: Callable[..., Any]
    make_caller: Callable[[random.Random], Any]
    topics: list[tuple[str, int]]  # (name, partition) of every created topic is added
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    clock: Clock = field(default_factory=SystemClock)
    pace: float = 1.0
    making: int = 0  # topics that are being created now
    clients: list[Any] = field(default_factory=list)  # all clients and callers, which the run closes

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        self.clients.clear()


class RealContext:
    """The context of one workload."""

    def __init__(self, around: SharedContext, name: str) -> None:
        self.name = name
        self.pace = around.pace
        self.rng = random.Random(f"{around.seed}/workload/{name}")
        self.clock: Clock = around.clock
        self.history: History = around.history
        self.stop = around.stop
        self._around = around
        self._topics = 0

    async def topic(
        self, partitions: int = 1, settings: Mapping[str, str] | None = None, replicas: int | None = None
    ) -> str:
        self._topics += 1
        name = f"{self.name}.{self._topics}"
        self._around.making += 1
        try:
            await self._make(name, partitions, settings, REPLICAS if replicas is None else replicas)
        finally:
            self._around.making -= 1
        self._around.topics += [(name, partition) for partition in range(partitions)]
        return name

    async def _make(self, name: str, partitions: int, settings: Mapping[str, str] | None, factor: int) -> None:
        client, last = self.client(), ""
        for _ in range(TOPIC_TRIES_MAX):
            try:
                await client.admin.create_topic(name, partitions, factor, settings=settings, timeout=10.0)
                return
            except TinymqError as error:
                last = f"{error.code}: {error}"
                if error.code == "TopicExists":  # an earlier attempt created it
                    return
                await self.clock.sleep(0.2)  # some broker is not registered yet
        raise AssertionError(f"topic {name} could not be made: {last}")

    def watch_leader(self, topic: str, partition: int) -> None:
        self._around.topics.append((topic, partition))

    def client(self, **settings: Any) -> Any:
        client = self._around.make_client(rng=random.Random(self.rng.random()), **settings)
        self._around.clients.append(client)
        return client

    def caller(self) -> Any:
        caller = self._around.make_caller(random.Random(self.rng.random()))
        self._around.clients.append(caller)
        return caller
