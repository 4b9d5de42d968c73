"""Data on its way through the simulated network, in one direction: in order, and as late as its conditions make it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tinymq.base.clock import Timer
from tinymq.simulation.link_conditions import Direction, NetworkConditions


class Transit:
    """The data that one end has sent and the other end has not got yet. None is the end of the data."""

    def __init__(
        self, conditions: NetworkConditions, direction: Direction, arrived: Callable[[bytes | None], None]
    ) -> None:
        self._conditions = conditions
        self._direction = direction
        self._arrived = arrived
        self._queue: deque[tuple[float, bytes | None]] = deque()  # (due time, data)
        self._timer: Timer | None = None

    def put(self, data: bytes | None) -> None:
        """Take data that the sender sends now."""
        due_s = self._conditions.clock.monotonic() + self._conditions.transit_s(self._direction)
        if self._queue:
            due_s = max(due_s, self._queue[-1][0])
        self._queue.append((due_s, data))
        self.schedule()

    def schedule(self) -> None:
        """Deliver the queue when its first data are due. Called again when a cut ends."""
        if self._timer is None and self._queue and not self._conditions.is_cut(self._direction):
            wait_s = self._queue[0][0] - self._conditions.clock.monotonic()
            self._timer = self._conditions.clock.call_later(wait_s, self._deliver)

    def drop(self) -> None:
        """Lose the data that has not arrived."""
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deliver(self) -> None:
        self._timer = None
        now_s = self._conditions.clock.monotonic()
        while self._queue and self._queue[0][0] <= now_s and not self._conditions.is_cut(self._direction):
            self._arrived(self._queue.popleft()[1])
        self.schedule()
