"""Records in memory, for handlers. It passes the contract of sources (source_contract.py)."""

from __future__ import annotations

import asyncio
from collections import deque

from tinymq.client.consume.records import Message


def message(offset: int) -> Message:
    return Message("t", 0, offset, None, b"%d" % offset, (), 0, 1)


class FakeSource:
    """Hands out records in order, and each that failed at the end again."""

    def __init__(self, count: int = 0) -> None:
        self.waiting = deque(message(n) for n in range(count))
        self.handled: list[int] = []
        self.errors: list[BaseException] = []
        self.alive = False
        self.closed = False
        self.refusal: Exception | None = None  # raised by `open`
        self.failure: Exception | None = None  # raised by `take`
        self.raises = False  # `failed` raises, as on_error="stop"
        self._stopped = False
        self._changed = asyncio.Event()

    def change(self) -> None:
        self._changed.set()

    async def open(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.alive = True

    async def take(self) -> Message | None:
        while not self._stopped:
            if self.failure is not None:
                raise self.failure
            if self.waiting:
                return self.waiting.popleft()
            self._changed.clear()
            await self._changed.wait()
        return None

    def done(self, record: Message) -> None:
        self.handled.append(record.offset)

    def failed(self, record: Message, error: BaseException) -> str:
        if self.raises:
            raise error
        self.errors.append(error)
        self.waiting.append(record)
        self.change()
        return "it is tried again"

    def stop(self) -> None:
        self._stopped = True
        self.change()

    async def close(self) -> None:
        self.closed = True
        self.alive = False
