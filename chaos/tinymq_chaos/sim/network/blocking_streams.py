"""The connection over which a thread of the synchronous client sends lone records, in place of a socket that blocks.

It is one end of a simulated byte stream (byte_streams.py), like `tinymq.net.frame_socket.FrameSocket` for its thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from tinymq.base.errors import Closed, TinymqError
from tinymq.net.framing import Chunk, Frame, FrameReader, pack_frame
from tinymq_chaos.sim.virtual.user_threads import UserThread, UserThreads

ENDED = "the connection is lost: the other end closed it"


class BlockingStream(asyncio.BufferedProtocol):
    """A connection that carries frames. The loop feeds it; one thread at a time uses it."""

    def __init__(self, threads: UserThreads, frame_bytes_max: int) -> None:
        self._threads = threads
        self._reader = FrameReader(frame_bytes_max, frame_bytes_max)
        self._frames: deque[Frame] = deque()
        self._over: TinymqError | None = None  # why nothing more comes
        self._full = False  # the system takes no more bytes
        self._transport: asyncio.Transport | None = None
        self._waiting: UserThread | None = None
        self._arrived = asyncio.Event()  # for the loop

    # ---- what the simulated network calls ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._reader.received(nbytes)
        try:
            while (frame := self._reader.next_frame()) is not None:
                self._frames.append(frame)
        except TinymqError as error:
            self._over = error
        self._changed()

    def eof_received(self) -> bool:
        self._over = self._over or self._reader.cut_short() or Closed(ENDED)
        self._changed()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = self._over or Closed(f"the connection is lost: {exc}" if exc is not None else ENDED)
        self._changed()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._changed()

    def _changed(self) -> None:
        self._arrived.set()
        if self._waiting is not None:
            self._waiting.wake()

    # ---- on the loop -------------------------------------------------------------------------------------

    async def greet(self, head: bytes) -> bytes:
        """Send the first frame, and return the head of its answer. Raises Closed, InvalidFrame."""
        self._write(head, ())
        while not self._frames:
            if self._over is not None:
                raise self._over
            self._arrived.clear()
            await self._arrived.wait()
        return bytes(self._frames.popleft()[0])

    # ---- as FrameSocket ----------------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        return not self._frames and self._over is None and self._reader.cut_short() is None

    def send(self, head: bytes, body: Sequence[Chunk], timeout_s: float) -> None:
        self._step()
        if self._over is not None:
            raise Closed(self._over.message)
        self._write(head, body)
        if not self._wait(lambda: not self._full or self._over is not None, timeout_s):
            raise TimeoutError

    def receive(self, timeout_s: float) -> Frame:
        if not self._wait(lambda: self._frames or self._over is not None, timeout_s):
            raise TimeoutError
        self._step()
        if self._frames:
            return self._frames.popleft()
        assert self._over is not None, "it waited for one of the two"
        raise Closed(self._over.message)

    def shut(self) -> None:
        """End the connection, from any thread."""
        if self._transport is not None:
            self._transport.abort()
        self._over = self._over or Closed(ENDED)
        self._changed()

    def close(self) -> None:
        self.shut()

    # ---- inside ------------------------------------------------------------------------------------------

    def _write(self, head: bytes, body: Sequence[Chunk]) -> None:
        assert self._transport is not None, "connected"
        self._transport.write(b"".join(bytes(chunk) for chunk in pack_frame(head, body)[0]))

    def _step(self) -> None:
        if self._threads.running is not None:
            self._threads.running.step()

    def _wait(self, holds: object, timeout_s: float) -> bool:
        assert callable(holds)
        thread = self._waiting = self._threads.running
        assert thread is not None, "only threads wait here"
        try:
            return thread.until(holds, timeout_s)
        finally:
            self._waiting = None
