"""One direction of a call between a client and a broker: messages arrive in order, when the network lets them pass."""

from __future__ import annotations

import asyncio
from collections import deque

from tinymq.base.errors import OutcomeUnknown
from tinymq.simulation.link_conditions import Direction, NetworkConditions
from tinymq_chaos.sim.network.transit import Transit

WINDOW_BYTES = 256 << 10  # unread by the other end; above it, a writer waits


class MessageStream:
    """One direction of a call: messages arrive in order, when the network lets them pass. None is the end."""

    def __init__(self, conditions: NetworkConditions, direction: Direction) -> None:
        self._transit = Transit(conditions, direction, self._arrived)
        self._inbox: deque[bytes | None] = deque()
        self._bytes = 0  # in flight and unread
        self._more: asyncio.Future[None] | None = None  # resolved when the waiting receiver may read
        self._room: asyncio.Future[None] | None = None  # resolved when the waiting sender may write
        self.broken: str | None = None

    def send(self, data: bytes | None) -> None:
        self._bytes += len(data or b"")
        self._transit.put(data)

    async def room(self) -> None:
        """Wait until the sender may send more, or the connection is broken."""
        while self._bytes > WINDOW_BYTES and self.broken is None:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    async def receive(self) -> bytes | None:
        """Return the next message. Raises OutcomeUnknown when the connection is gone."""
        while not self._inbox:
            if self.broken is not None:
                raise OutcomeUnknown(self.broken)
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        if self.broken is not None:
            raise OutcomeUnknown(self.broken)
        data = self._inbox.popleft()
        self._bytes -= len(data or b"")
        _wake(self._room)
        return data

    def schedule(self) -> None:
        """Deliver the messages on their way when they are due. Called again when a cut ends."""
        self._transit.schedule()

    def _arrived(self, data: bytes | None) -> None:
        if self.broken is None:
            self._inbox.append(data)
            _wake(self._more)

    def break_off(self, why: str) -> None:
        if self.broken is None:
            self.broken = why
            self._transit.drop()
            _wake(self._more)
            _wake(self._room)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
