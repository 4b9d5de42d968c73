"""Lets large requests share the loop: in each turn of the loop one request does one slice of its work."""

from __future__ import annotations

import asyncio
from collections import deque

SLICE_COST = 8  # in small batches: about a millisecond


class Slices:
    """The queue of all large requests of one broker."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def next(self) -> None:
        """Wait until this request may do its next slice. Requests that already wait go first."""
        loop = asyncio.get_running_loop()
        granted = loop.create_future()
        self._waiting.append(granted)
        if len(self._waiting) == 1:
            loop.call_soon(self._grant)
        await granted

    def _grant(self) -> None:
        while self._waiting:
            granted = self._waiting[0]
            if not granted.done():  # otherwise its request was cancelled
                break
            self._waiting.popleft()
        if not self._waiting:
            return
        self._waiting.popleft().set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._grant)


class Slice:
    """Counts the work of one request since it last let other requests run."""

    def __init__(self, slices: Slices, cost_max: int = SLICE_COST) -> None:
        """`cost_max`: the cost of one slice, in units of the caller's choice."""
        self._slices = slices
        self._cost_max = self._left = cost_max

    def spend(self, cost: int) -> bool:
        """Count work that is done. Returns True at the end of a slice: then call `rest` before going on."""
        self._left -= cost
        return self._left <= 0

    async def rest(self) -> None:
        """Wait for the next slice."""
        self._left = self._cost_max
        await self._slices.next()
