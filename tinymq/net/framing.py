"""Bytes into frames and back. No I/O: a reader says where received bytes go, and hands out whole frames.

    offset size field (little-endian)
         0    4 frame_bytes  u32  bytes after these eight: head and body
         4    4 head_bytes   u32  bytes of the head; at most frame_bytes
         8    … head         a protobuf message
         …    … body         raw bytes, to the end of the frame

Copies are what this costs. A frame that fits the small buffer is copied once, out of it; of a larger
one only what came along with its first bytes is copied, the rest is received where it stays.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tinymq.base.errors import InvalidFrame

PREFIX = struct.Struct("<II")
PREFIX_BYTES = PREFIX.size
READ_BUFFER_BYTES = 64 * 1024  # per connection; a longer frame gets a buffer of its own
FIRST_BUFFER_BYTES = 4 * 1024  # the first buffer of a connection: most connections are idle
JOIN_BYTES_MAX = 16 * 1024  # shorter pieces are cheaper to copy than to write one by one

Chunk = bytes | memoryview
Frame = tuple[bytes, Chunk]
"""(head, body). Both are the receiver's own: no later frame overwrites them."""


def pack_frame(head: bytes, body: Sequence[Chunk] = ()) -> tuple[list[Chunk], int]:
    """Return a frame as (chunks to write in order, their total bytes).

    Long pieces of `body` are taken by reference; items of a memoryview must be single bytes.
    """
    body_bytes = sum(map(len, body))
    prefix = PREFIX.pack(len(head) + body_bytes, len(head))
    total = PREFIX_BYTES + len(head) + body_bytes
    if body_bytes <= JOIN_BYTES_MAX:
        return [b"".join((prefix, head, *body))], total
    chunks: list[Chunk] = []
    short: list[Chunk] = [prefix, head]
    for piece in body:
        if len(piece) > JOIN_BYTES_MAX:
            if short:
                chunks.append(b"".join(short))
                short = []
            chunks.append(piece)
        else:
            short.append(piece)
    if short:
        chunks.append(b"".join(short))
    return chunks, total


def pack_prefix(head: bytes, body_bytes: int) -> tuple[list[Chunk], int]:
    """Return the part before a body that is sent separately: (chunks to write in order, their total bytes)."""
    return [PREFIX.pack(len(head) + body_bytes, len(head)) + head], PREFIX_BYTES + len(head)


def _room(count: int) -> memoryview:
    """Return writable memory of Arrow's pool, which keeps its pages and clears none.

    Clearing a bytearray costs a fifth of receiving into it. The first large frame imports Arrow, so that a process
    without such frames, such as `tinymq --help`, starts fast.
    """
    import pyarrow as pa

    return memoryview(pa.allocate_buffer(count)).cast("B")


class FrameReader:
    """One connection's received bytes. Use: get_buffer, receive into it, received, next_frame until None.

    Both bounds may be changed between frames. After InvalidFrame nothing more can be read. With `asks`, a frame that
    needs a buffer of its own gets it from `begin`, which the owner calls when there is room. Until then `wanted_bytes`
    is the frame's size, and nothing may be received.
    """

    def __init__(self, frame_bytes_max: int, head_bytes_max: int, *, asks: bool = False) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.head_bytes_max = head_bytes_max
        self.frames = 0  # frames handed out so far
        self.wanted_bytes = 0  # the size of the large frame that waits for `begin`; 0: none waits
        self._asks = asks
        self._buffer = memoryview(bytearray(FIRST_BUFFER_BYTES))
        self._start = 0  # invariant: unread bytes are _buffer[_start:_end]
        self._end = 0
        self._large: memoryview | None = None  # head and body of the frame that does not fit _buffer
        self._large_filled = 0
        self._large_head_bytes = 0

    def get_buffer(self) -> memoryview:
        """Return where the next bytes go. It is never empty after next_frame has returned None."""
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._buffer[self._end :]

    def received(self, count: int) -> None:
        """Take note of `count` bytes that were put at the start of the last get_buffer."""
        if self._large is not None:
            self._large_filled += count
            assert self._large_filled <= len(self._large)
        else:
            self._end += count
            assert self._end <= len(self._buffer)
            if self._end == len(self._buffer) < READ_BUFFER_BYTES:
                self._grow()

    @property
    def begun(self) -> bool:
        """Has a part of a frame been received?"""
        return self._large is not None or self._end > self._start

    @property
    def begun_bytes(self) -> int:
        """Return the size of a frame that has arrived in part, as far as it is known. 0: there is no such frame."""
        if self._large is not None:
            return PREFIX_BYTES + len(self._large)
        if self._end - self._start < PREFIX_BYTES:
            return PREFIX_BYTES if self._end > self._start else 0
        frame_bytes, _ = PREFIX.unpack_from(self._buffer, self._start)
        return PREFIX_BYTES + int(frame_bytes)

    def next_frame(self) -> Frame | None:
        """Return the next whole frame, or None if more bytes are needed. Raises InvalidFrame."""
        if self._large is not None:
            return self._finish_large()
        start, available = self._start, self._end - self._start
        if available < PREFIX_BYTES:
            self._make_room(PREFIX_BYTES)
            return None
        frame_bytes, head_bytes = PREFIX.unpack_from(self._buffer, start)
        if frame_bytes > self.frame_bytes_max or head_bytes > self.head_bytes_max or head_bytes > frame_bytes:
            raise InvalidFrame(
                f"frame of {frame_bytes} bytes with a head of {head_bytes}:"
                f" at most {self.frame_bytes_max} and {self.head_bytes_max}"
            )
        end = start + PREFIX_BYTES + frame_bytes
        if end > self._end:
            if PREFIX_BYTES + frame_bytes > READ_BUFFER_BYTES:
                if self._asks:
                    self.wanted_bytes = frame_bytes
                    return None
                self._begin_large(frame_bytes, head_bytes)
            else:
                self._make_room(PREFIX_BYTES + frame_bytes)
            return None
        head_end = start + PREFIX_BYTES + head_bytes
        frame = bytes(self._buffer[start + PREFIX_BYTES : head_end]), bytes(self._buffer[head_end:end])
        self._start = end
        if end == self._end:
            self._start = self._end = 0
        self.frames += 1
        return frame

    def begin(self) -> None:
        """Give the waiting frame its buffer, because there is room for it."""
        assert self.wanted_bytes
        self.wanted_bytes = 0
        self._begin_large(*PREFIX.unpack_from(self._buffer, self._start))

    def cut_short(self) -> InvalidFrame | None:
        """Return the error of a connection that ends in the middle of a frame, else None."""
        if self._large is not None:
            return InvalidFrame(f"cut off after {self._large_filled} of {len(self._large)} bytes of a frame")
        if self._end > self._start:
            return InvalidFrame(f"cut off after the first {self._end - self._start} bytes of a frame")
        return None

    def drop(self) -> None:
        """Drop the frame that has arrived in part, because nothing more is received. Its memory is free without a
        collection."""
        self._large = None
        self.wanted_bytes = self._start = self._end = 0

    def _make_room(self, frame_bytes: int) -> None:
        # Each frame is moved at most once: at the front of the buffer it fits.
        if frame_bytes > len(self._buffer):
            self._grow()
        if self._start + frame_bytes > len(self._buffer):
            unread = self._end - self._start
            self._buffer[:unread] = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, unread

    def _grow(self) -> None:
        larger = memoryview(bytearray(READ_BUFFER_BYTES))
        unread = self._end - self._start
        larger[:unread] = self._buffer[self._start : self._end]
        self._buffer, self._start, self._end = larger, 0, unread

    def _begin_large(self, frame_bytes: int, head_bytes: int) -> None:
        here = self._buffer[self._start + PREFIX_BYTES : self._end]
        self._large = _room(frame_bytes)
        self._large[: len(here)] = here
        self._large_filled = len(here)
        self._large_head_bytes = head_bytes
        self._start = self._end = 0

    def _finish_large(self) -> Frame | None:
        large = self._large
        assert large is not None
        if self._large_filled < len(large):
            return None
        self._large = None
        self.frames += 1
        head_bytes = self._large_head_bytes
        return bytes(large[:head_bytes]), large[head_bytes:]
