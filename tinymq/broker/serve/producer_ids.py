"""Producer ids for this broker's clients: blocks taken from the registry, each number handed out once, for good."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tinymq.registry.service import RegistryService

BLOCK = 1000


class ProducerIds:
    """What is left of the newest block. A restart forgets it: numbers may be skipped, never reused."""

    def __init__(self, registry: RegistryService) -> None:
        self._registry = registry
        self._left: Iterator[int] = iter(())
        self._taking: asyncio.Task[None] | None = None

    async def take(self) -> int:
        """A number of 1 or more that nobody else got. Raises what `take_producer_ids` does."""
        while True:
            number = next(self._left, None)
            if number is not None:
                return number
            if self._taking is None or self._taking.done():  # one block, however many wait for it
                self._taking = asyncio.ensure_future(self._take_block())
                self._taking.add_done_callback(lambda taking: taking.cancelled() or taking.exception())
            await asyncio.shield(self._taking)

    async def _take_block(self) -> None:
        """The numbers are there before the task is done: who came in between would wait for a task that is over, and
        turn without a pause."""
        self._left = iter(await self._registry.take_producer_ids(BLOCK))
