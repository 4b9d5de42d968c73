"""How much of a producer's buffer is taken, and who waits for room in it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BufferPool:
    """One bound. What is taken belongs to the batcher's lock."""

    def __init__(self, bytes_max: int, enough_bytes: int, lock: threading.Lock) -> None:
        """Who waits is told when less than `enough_bytes` are taken."""
        self.taken_bytes = 0
        self.bytes_max = bytes_max
        self._enough_bytes = enough_bytes
        self._lock = lock
        self._waiting: list[Callable[[], None]] = []

    @property
    def awaited(self) -> bool:
        """Does anybody wait?"""
        return bool(self._waiting)

    def release(self, size: int) -> None:
        """A batch has ended: its bytes are free. On the loop, as who waits is told there."""
        waiting: list[Callable[[], None]] = []
        with self._lock:
            self.taken_bytes -= size
            if self._waiting and self.taken_bytes < self._enough_bytes:
                waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    def when_free(self, call: Callable[[], None]) -> None:
        """Call `call` once there is room, on the loop; now, if there is."""
        with self._lock:
            if self.taken_bytes >= self.bytes_max:
                self._waiting.append(call)
                return
        call()

    def close(self) -> list[Callable[[], None]]:
        """Who waits, and is to be told that it is for nothing. Under the lock."""
        waiting, self._waiting = self._waiting, []
        return waiting
