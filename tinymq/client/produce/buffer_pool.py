"""The memory of a producer's buffer: how many bytes are taken, and which calls wait for room."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BufferPool:
    """The bytes of one producer's unacknowledged records, within one bound."""

    def __init__(self, bytes_max: int, enough_bytes: int, lock: threading.Lock) -> None:
        """Waiting calls are made when less than `enough_bytes` are taken. `lock` is the batcher's."""
        self.taken_bytes = 0  # written under the lock; read without it where an old value does no harm
        self.bytes_max = bytes_max
        self._enough_bytes = enough_bytes
        self._lock = lock
        self._waiting: list[Callable[[], None]] = []

    @property
    def awaited(self) -> bool:
        """Does a call wait for room?"""
        return bool(self._waiting)

    def release(self, size: int) -> None:
        """Free the bytes of a batch that has ended. On the loop, where the waiting calls are made."""
        waiting: list[Callable[[], None]] = []
        with self._lock:
            self.taken_bytes -= size
            if self._waiting and self.taken_bytes < self._enough_bytes:
                waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    def when_free(self, call: Callable[[], None]) -> None:
        """Make `call` once there is room: now, or later on the loop."""
        with self._lock:
            if self.taken_bytes >= self.bytes_max:
                self._waiting.append(call)
                return
        call()

    def close(self) -> list[Callable[[], None]]:
        """Return the waiting calls, which the caller makes to end their wait. Under the lock."""
        waiting, self._waiting = self._waiting, []
        return waiting
