"""The chunks that wait to be written to one asyncio transport.

Nothing long is copied. Chunks wait by reference. asyncio copies whatever the system does not take at once, so it gets
them in slices, the next one only when it has written the one before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from tinymq.net.framing import Chunk

SLICE_BYTES = 1024 * 1024  # given to asyncio at once, so it copies no more; a smaller slice costs more per byte
TLS_SLICE_BYTES = 256 * 1024  # likewise with TLS, where one slice is on its way without being counted as unsent
JOIN_BYTES_MAX = 32 * 1024  # queued chunks are joined up to this: one system call for many small messages


class OutputBuffer:
    """The output of one connection, until the system takes it.

    The owner forwards asyncio's `pause_writing` and `resume_writing` to it.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._slice_bytes = SLICE_BYTES
        self._queue: deque[Chunk] = deque()
        self._queued_bytes = 0  # invariant: the bytes of _queue
        self._full = False  # asyncio holds bytes that the system has not taken

    @property
    def unsent_bytes(self) -> int:
        """The bytes that were put here, and that the system has not taken yet. With TLS, asyncio keeps up to one more
        slice, already encrypted, that does not count."""
        return self._queued_bytes + (self._transport.get_write_buffer_size() if self._transport else 0)

    @property
    def waiting(self) -> bool:
        """Would a chunk that is put now have to wait?"""
        return self._full or bool(self._queue)

    @property
    def full(self) -> bool:
        """Would a flush do nothing until `resume` is called?"""
        return self._full

    def open(self, transport: asyncio.Transport) -> None:
        """Write to `transport` from now on."""
        transport.set_write_buffer_limits(high=1, low=0)  # with 0, asyncio's TLS pauses an empty buffer
        self._transport = transport
        if transport.get_extra_info("ssl_object") is not None:
            self._slice_bytes = TLS_SLICE_BYTES

    def close(self) -> None:
        """Drop the waiting chunks, and let go of the transport."""
        self._transport = None
        self.drop()

    def drop(self) -> None:
        """Drop the chunks that wait here. Asyncio still writes those that it has."""
        self._queue.clear()
        self._queued_bytes = 0

    def put(self, chunks: Sequence[Chunk], total: int) -> None:
        """Append chunks of `total` bytes. They are kept by reference: their content must not change."""
        self._queue.extend(chunks)
        self._queued_bytes += total

    def pause(self) -> None:
        self._full = True

    def resume(self) -> None:
        self._full = False
        self.flush()

    def flush(self) -> None:
        """Hand over as much as asyncio takes."""
        queue, transport = self._queue, self._transport
        if transport is None or transport.is_closing():  # asyncio warns of writes to a closed connection
            return
        while queue and not self._full:
            chunk = queue.popleft()
            if len(chunk) > self._slice_bytes:
                view = memoryview(chunk)
                queue.appendleft(view[self._slice_bytes :])
                chunk = view[: self._slice_bytes]
            elif queue and len(chunk) + len(queue[0]) <= JOIN_BYTES_MAX:
                chunk = self._join(chunk)
            self._queued_bytes -= len(chunk)
            transport.write(chunk)

    def _join(self, first: Chunk) -> bytes:
        chunks, total = [first], len(first)
        while self._queue and total + len(self._queue[0]) <= JOIN_BYTES_MAX:
            chunk = self._queue.popleft()
            chunks.append(chunk)
            total += len(chunk)
        return b"".join(chunks)
