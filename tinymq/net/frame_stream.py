"""One TCP connection that carries frames, both ways: for one task that receives and one that sends, on one loop.

Both ends have back-pressure: unreceived bytes are not read from the kernel, and a send waits until the kernel has taken
nearly all earlier bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from tinymq.base.config import KIB, MIB
from tinymq.base.errors import Closed, DeadlineExceeded, TinymqError
from tinymq.net.connection_limits import host_of
from tinymq.net.framing import Chunk, Frame, FrameReader, pack_frame, pack_prefix
from tinymq.net.output_buffer import OutputBuffer
from tinymq.net.socket_options import prepare
from tinymq.net.tls_names import ends_us, tinymq_uri, uris_of
from tinymq.net.unfinished_frames import Claim, FrameDeadline, FrameRoom

UNSENT_BYTES_MAX = 256 * KIB  # a send waits while the system has not taken more than this
UNREAD_BYTES_MAX = MIB  # reading stops while frames of so many bytes wait to be received
UNREAD_FRAMES_MAX = 1024
SENDFILE_BYTES_MAX = MIB  # at once
TURN_BYTES = 256 * KIB  # of several parts of a file in one turn of the loop
ENCRYPT_BYTES_MAX = 256 * KIB  # at once: 0.3 ms of the loop
LOADED_S = 1.0  # a part of a file that was read counts as cached for so long: the loop never waits for a disk
BURST_FRAMES = 8  # received without a wait; then other tasks of the loop run


class FilePart(Protocol):
    """Parts of a file that are in the system's memory, and bytes between them that are in no file."""

    @property
    def pieces(self) -> Sequence[tuple[bytes, int, int]]:
        """Bytes to send, and the position and length of the part that follows them. Positions rise."""
        ...

    @property
    def loaded_s(self) -> float:
        """When they were last known to be cached, by time.monotonic."""
        ...

    def __len__(self) -> int: ...
    def fileno(self) -> int: ...
    def load(self, position: int) -> None:
        """Have the system read again what lies at or behind `position`. Blocks."""
        ...


class FrameStream(asyncio.BufferedProtocol):
    """A connection that carries frames, from its start to its end."""

    def __init__(
        self,
        frame_bytes_max: int,
        head_bytes_max: int,
        *,
        on_made: Callable[[FrameStream], None] | None = None,
        on_lost: Callable[[FrameStream], None] | None = None,
        room: FrameRoom | None = None,
        unacknowledged_s: float | None = None,
    ) -> None:
        """The maxima bound received frames. `on_made` is called once the stream is connected, `on_lost` once it is
        disconnected. With `room`, large frames wait for room there, and each frame has a deadline
        (unfinished_frames.py). `unacknowledged_s`: as for `prepare` (socket_options.py)."""
        self.remote_host = ""
        self.encrypted = False
        self.certified_uri = ""  # names the broker or user of the other end's certificate; "" without one
        self.certificate_ends_us = 0  # when that certificate ends, wall time; 0 without one
        self.received_bytes = 0
        self._reader = FrameReader(frame_bytes_max, head_bytes_max, asks=room is not None)
        self._room_of_all = room
        self._claim: Claim | None = None  # with `room`, while the stream is connected
        self._deadline: FrameDeadline | None = None  # likewise
        self._on_made = on_made
        self._on_lost = on_lost
        self._unacknowledged_s = unacknowledged_s
        self._output = OutputBuffer()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames: deque[Frame] = deque()
        self._unread_bytes = 0  # invariant: of _frames
        self._burst = 0  # frames received since the receiver last waited
        self._reading = True
        self._ended: TinymqError | None = None  # why nothing more arrives; raised once _frames is empty
        self._arrived: asyncio.Future[None] | None = None  # set while the receiver waits
        self._taken: asyncio.Future[None] | None = None  # set while the sender waits

    # ---- what its owner calls --------------------------------------------------------------------

    async def receive(self) -> Frame:
        """Return the next frame, (head, body). The receiver may keep both. Raises Closed at the end, InvalidFrame."""
        self._burst += 1
        if self._burst > BURST_FRAMES:
            self._burst = 0
            await asyncio.sleep(0)
        while not self._frames:
            if self._ended is not None:
                raise self._ended
            self._burst = 0
            self._arrived = self._loop.create_future()
            await self._arrived
        frame = self._frames.popleft()
        self._unread_bytes -= _size(frame)
        if not self._reading and not self._too_much() and self._transport is not None:
            self._take_frames()  # a large frame may have waited for this
            self._settle_reading()
        return frame

    async def send(self, head: bytes, body: Sequence[Chunk] = ()) -> None:
        """Send one frame, in order. Nobody may change `body`. Raises the error that ended the connection."""
        if self._ended is not None:
            raise self._ended
        self._output.put(*pack_frame(head, body))
        self._output.flush()
        while self._output.unsent_bytes > UNSENT_BYTES_MAX:
            await self._room()

    async def send_file(self, head: bytes, body: FilePart) -> None:
        """Send a frame whose body lies in a file. The system reads the file itself: nothing is copied here. With TLS,
        the bytes are read and encrypted here, because the system would send them as they are.

        Returns once the system has taken all. A file that is shorter than the body ends the connection."""
        if self._ended is not None:
            raise self._ended
        if self.encrypted:
            await self._send_file_encrypted(head, body)
            return
        self._output.put(*pack_prefix(head, len(body)))
        self._output.flush()
        while self._output.unsent_bytes:  # asyncio does not report the last byte: look again in each turn
            await (self._room() if self._output.waiting else asyncio.sleep(0))
        if self._transport is None or self._ended is not None:
            raise self._ended or Closed("the connection is lost")
        try:
            await send_file(self._transport.get_extra_info("socket").fileno(), body)
        except OSError as error:
            self.abort()
            raise Closed(f"the connection is lost: {error.strerror or error}") from None
        except BaseException:  # a cancelled send leaves half a frame behind
            self.abort()
            raise

    async def _send_file_encrypted(self, head: bytes, body: FilePart) -> None:
        self._output.put(*pack_prefix(head, len(body)))
        try:
            async for piece in _pieces(body):
                self._output.put((piece,), len(piece))
                self._output.flush()
                while self._output.unsent_bytes > UNSENT_BYTES_MAX:
                    await self._room()
        except OSError as error:
            self.abort()
            raise Closed(f"the connection is lost: {error.strerror or error}") from None
        except BaseException:  # as in send_file
            self.abort()
            raise

    async def finish(self) -> None:
        """Wait until the system has taken everything, then close. Raises the error that ended the connection before."""
        while self._output.waiting and self._ended is None:
            await self._room()
        if self._ended is not None:
            raise self._ended
        self._end(Closed("this end closed the connection"))
        if self._transport is not None:
            if self._transport.can_write_eof():
                self._transport.write_eof()  # see abort
            self._transport.close()  # with TLS, this says goodbye first

    def abort(self) -> None:
        """End the connection now, and lose unsent frames. A waiting `receive` or `send` raises Closed."""
        self._frames.clear()
        self._output.close()
        self._end(Closed("this end closed the connection"))
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None:  # a forked child may have the socket too: closing it here would not end the connection
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._transport.abort()

    def expect(self, frame_bytes_max: int, head_bytes_max: int) -> None:
        """Set the bounds from the next frame on."""
        self._reader.frame_bytes_max, self._reader.head_bytes_max = frame_bytes_max, head_bytes_max

    # ---- what asyncio calls ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.remote_host = str((transport.get_extra_info("peername") or ("?", 0))[0])
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.encrypted = True
            certificate = tls.getpeercert() or {}
            self.certified_uri = tinymq_uri(uris_of(certificate))
            self.certificate_ends_us = ends_us(certificate)
        self._output.open(transport)
        prepare(transport.get_extra_info("socket"), self._unacknowledged_s)
        if self._room_of_all is not None:
            self._claim = Claim(self._room_of_all, host_of(self.remote_host), self._granted)
            self._deadline = FrameDeadline(self._reader, self._loop.time, self._loop.call_later, self._expire)
        if self._on_made is not None:
            self._on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        self._reader.received(nbytes)
        self._take_frames()
        self._settle_reading()
        _wake(self._arrived)

    def eof_received(self) -> bool | None:
        # A peer that ends its side reads no more, either. asyncio would close the connection only after the peer has
        # taken all unsent bytes, which may never happen. With TLS it does not report how many those are: bytes that are
        # encrypted already do not count.
        if self._transport is not None and (self.encrypted or self._transport.get_write_buffer_size()):
            self._transport.abort()
        return None

    def pause_writing(self) -> None:
        self._output.pause()

    def resume_writing(self) -> None:
        self._output.resume()
        _wake(self._taken)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._output.close()
        if self._claim is not None and self._deadline is not None:
            self._claim.give_back()
            self._deadline.close()
        self._end(self._reader.cut_short() or Closed(f"the connection is lost: {exc or 'the other end closed it'}"))
        self._reader.drop()
        if self._on_lost is not None:
            self._on_lost(self)

    # ---- inside ----------------------------------------------------------------------------------

    async def _room(self) -> None:
        """Wait until the system has taken some more. Raises the error that ended the connection."""
        if self._ended is None:
            self._taken = self._loop.create_future()
            await self._taken
        if self._ended is not None:
            raise self._ended

    def _take_frames(self) -> None:
        """Take complete frames out of the received bytes. Begin a large frame when there is room for it."""
        try:
            while self._ended is None:
                frame = self._reader.next_frame()
                if frame is not None:
                    self._frames.append(frame)
                    self._unread_bytes += _size(frame)
                    if self._claim is not None:
                        self._claim.give_back()
                elif self._reader.wanted_bytes and not self._too_much() and self._has_room():
                    self._reader.begin()
                else:
                    break
        except TinymqError as error:
            self._end(error)
            if self._transport is not None:
                self._transport.abort()

    def _has_room(self) -> bool:
        return self._claim is None or self._claim.ask(self._reader.wanted_bytes)

    def _granted(self) -> None:
        """Begin the frame that waited for room."""
        if self._ended is None and self._transport is not None:
            self._reader.begin()
            self._settle_reading()

    def _settle_reading(self) -> None:
        """Read from the socket unless too much is unread, or a frame waits for room."""
        wanted = not self._too_much() and not self._reader.wanted_bytes
        if self._transport is not None and wanted != self._reading:
            self._reading = wanted
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()
        if self._deadline is not None:
            (self._deadline.look if wanted else self._deadline.pause)()

    def _expire(self, allowed_s: float) -> None:
        self._end(DeadlineExceeded(f"a frame of {self._reader.begun_bytes} bytes took longer than {allowed_s:.0f} s"))
        if self._transport is not None:
            self._transport.abort()

    def _too_much(self) -> bool:
        return self._unread_bytes > UNREAD_BYTES_MAX or len(self._frames) > UNREAD_FRAMES_MAX

    def _end(self, reason: TinymqError) -> None:
        if self._ended is None:
            self._ended = reason
        _wake(self._arrived)
        _wake(self._taken)


async def send_file(sock: int, body: FilePart) -> None:
    """Send a part of a file on a socket to which nothing else writes in the meantime. Raises OSError, what `load` does.

    asyncio's own sendfile leaves a closed socket's number among those it waits for, where the next one that gets the
    number is taken for it. A duplicate is nobody else's, and nobody else closes it.
    """
    loop = asyncio.get_running_loop()
    file, loaded_s, turn_bytes, all_left = body.fileno(), body.loaded_s, 0, len(body)
    mine = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 0, os.dup(sock))
    try:
        for between, position, left in body.pieces:
            if between:
                all_left -= len(between)
                await _send_with_more(loop, mine, between)
            while left:
                if time.monotonic() - loaded_s > LOADED_S:  # the system may have had other uses for its memory
                    await loop.run_in_executor(None, body.load, position)
                    loaded_s = time.monotonic()
                try:
                    sent = os.sendfile(mine.fileno(), file, position, min(left, SENDFILE_BYTES_MAX))
                except BlockingIOError:
                    await _writable(loop, mine.fileno())
                    continue
                if not sent:
                    raise OSError(errno.EIO, "a file is shorter than what was to be sent of it")
                position, left, turn_bytes, all_left = position + sent, left - sent, turn_bytes + sent, all_left - sent
                if turn_bytes >= TURN_BYTES or not all_left:
                    turn_bytes = 0
                    await asyncio.sleep(0)  # others on the loop have their turn
    finally:
        mine.close()


async def _send_with_more(loop: asyncio.AbstractEventLoop, sock: socket.socket, data: bytes) -> None:
    """Send bytes in one packet with those that follow."""
    while data:
        try:
            data = data[sock.send(data, socket.MSG_MORE) :]
        except BlockingIOError:
            await _writable(loop, sock.fileno())


async def _pieces(body: FilePart) -> AsyncIterator[bytes]:
    """Read the parts of a file in pieces, which are in the system's memory. Raises OSError, and the errors of
    `load`."""
    loop = asyncio.get_running_loop()
    loaded_s = body.loaded_s
    for between, position, left in body.pieces:
        if between:
            yield between
        while left:
            if time.monotonic() - loaded_s > LOADED_S:  # as in send_file
                await loop.run_in_executor(None, body.load, position)
                loaded_s = time.monotonic()
            piece = os.pread(body.fileno(), min(left, ENCRYPT_BYTES_MAX), position)
            if not piece:
                raise OSError(errno.EIO, "a file is shorter than what was to be sent of it")
            yield piece
            position, left = position + len(piece), left - len(piece)
            await asyncio.sleep(0)  # others on the loop have their turn


async def _writable(loop: asyncio.AbstractEventLoop, sock: int) -> None:
    room = loop.create_future()
    loop.add_writer(sock, _wake, room)
    try:
        await room
    finally:
        loop.remove_writer(sock)


def _size(frame: Frame) -> int:
    return len(frame[0]) + len(frame[1])


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
