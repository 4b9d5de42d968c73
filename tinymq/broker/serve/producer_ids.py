"""Producer ids for this broker's clients, from blocks that the registry hands out. No id is ever used twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tinymq.registry.service import RegistryService

BLOCK = 1000


class ProducerIds:
    """The unused ids of the newest block. A restart forgets them, so ids may be skipped but are never reused."""

    def __init__(self, registry: RegistryService) -> None:
        self._registry = registry
        self._left: Iterator[int] = iter(())
        self._taking: asyncio.Task[None] | None = None

    async def take(self) -> int:
        """Return an id of 1 or more that no other producer has. Raises as `take_producer_ids` does."""
        while True:
            number = next(self._left, None)
            if number is not None:
                return number
            if self._taking is None or self._taking.done():  # all waiting callers share one block
                self._taking = asyncio.ensure_future(self._take_block())
                self._taking.add_done_callback(lambda taking: taking.cancelled() or taking.exception())
            await asyncio.shield(self._taking)

    async def close(self) -> None:
        """End a request for a block that is under way. Callers that wait for it are cancelled."""
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.gather(self._taking, return_exceptions=True)

    async def _take_block(self) -> None:
        """Fetch a block, and store its numbers before the task is done.

        If a caller stored them after that, another caller could find a finished task and no number, and would loop
        without a pause.
        """
        self._left = iter(await self._registry.take_producer_ids(BLOCK))
