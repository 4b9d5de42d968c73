"""One direction of a call between a client and a broker: messages arrive in order, when the network lets them pass."""

from __future__ import annotations

import asyncio
from collections import deque

from tinymq.base.clock import Timer
from tinymq.base.errors import OutcomeUnknown
from tinymq.simulation.link_conditions import NetworkConditions

WINDOW_BYTES = 256 << 10  # unread by the other end; above it, a writer waits


class MessageStream:
    """One direction of a call: messages arrive in order, when the network lets them pass. None is the end."""

    def __init__(self, conditions: NetworkConditions, direction: tuple[int, int]) -> None:
        self._conditions = conditions
        self._direction = direction
        self._queue: deque[tuple[float, bytes | None]] = deque()  # (due time, message) in flight
        self._inbox: deque[bytes | None] = deque()
        self._bytes = 0  # in flight and unread
        self._timer: Timer | None = None
        self._more: asyncio.Future[None] | None = None  # resolved when the waiting receiver may read
        self._room: asyncio.Future[None] | None = None  # resolved when the waiting sender may write
        self.broken: str | None = None

    def send(self, data: bytes | None) -> None:
        due_s = self._conditions.clock.monotonic() + self._conditions.transit_s(self._direction)
        if self._queue:
            due_s = max(due_s, self._queue[-1][0])
        self._queue.append((due_s, data))
        self._bytes += len(data or b"")
        self.schedule()

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
        """Deliver the queue when its first message is due. Called again when a cut ends."""
        if self._timer is None and self._queue and not self._conditions.is_cut(self._direction):
            wait_s = self._queue[0][0] - self._conditions.clock.monotonic()
            self._timer = self._conditions.clock.call_later(wait_s, self._arrive)

    def _arrive(self) -> None:
        self._timer = None
        now_s = self._conditions.clock.monotonic()
        while self._queue and self._queue[0][0] <= now_s and not self._conditions.is_cut(self._direction):
            self._inbox.append(self._queue.popleft()[1])
            _wake(self._more)
        self.schedule()

    def break_off(self, why: str) -> None:
        if self.broken is None:
            self.broken = why
            self._queue.clear()
            if self._timer is not None:
                self._timer.cancel()
            _wake(self._more)
            _wake(self._room)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
