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
        self._taking: asyncio.Task[range] | None = None

    async def take(self) -> int:
        """A number of 1 or more that nobody else got. Raises what `take_producer_ids` does."""
        while True:
            number = next(self._left, None)
            if number is not None:
                return number
            if self._taking is None:  # one block, however many wait for it
                self._taking = asyncio.ensure_future(self._registry.take_producer_ids(BLOCK))
                self._taking.add_done_callback(self._took)
            await asyncio.shield(self._taking)

    def _took(self, taking: asyncio.Task[range]) -> None:
        self._taking = None
        if not taking.cancelled() and taking.exception() is None:
            self._left = iter(taking.result())
