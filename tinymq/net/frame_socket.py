"""One TCP connection that carries frames, for one thread at a time: its calls block. For a loop: frame_stream.py."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence

from tinymq.base.errors import Closed
from tinymq.net.framing import Chunk, Frame, FrameReader, pack_frame


class FrameSocket:
    """A connection, once it is made. A call that raises leaves it of no more use: close it."""

    def __init__(self, sock: socket.socket, reader: FrameReader) -> None:
        """`reader` has what was received so far, and the bounds of what will be."""
        self._sock = sock
        self._reader = reader

    @property
    def quiet(self) -> bool:
        """Nothing has arrived that nobody asked for, the connection's end among it."""
        if self._reader.cut_short() is not None:
            return False
        try:
            self._sock.settimeout(0)
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def send(self, head: bytes, body: Sequence[Chunk], timeout_s: float) -> None:
        """Send one frame. Raises TimeoutError, Closed."""
        try:
            self._sock.settimeout(timeout_s)
            for chunk in pack_frame(head, body)[0]:
                self._sock.sendall(chunk)
        except TimeoutError:
            raise
        except OSError as error:
            raise _lost(error) from None

    def receive(self, timeout_s: float) -> Frame:
        """The next frame, (head, body). Raises TimeoutError when it is not whole by then, after which it may be called
        again; Closed at the end; InvalidFrame."""
        deadline_s = time.monotonic() + timeout_s
        left_s = timeout_s
        while True:
            frame = self._reader.next_frame()
            if frame is not None:
                return frame
            if left_s <= 0:
                raise TimeoutError
            try:
                self._sock.settimeout(left_s)
                count = self._sock.recv_into(self._reader.get_buffer())
            except TimeoutError:
                raise
            except OSError as error:
                raise _lost(error) from None
            if not count:
                raise self._reader.cut_short() or Closed("the connection is lost: the other end closed it")
            self._reader.received(count)
            left_s = deadline_s - time.monotonic()

    def shut(self) -> None:
        """End it, from any thread: who waits in a call hears of it, and closes it."""
        with contextlib.suppress(OSError):  # closing alone would not end what a forked child has, too
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it. Closing twice is nothing."""
        self.shut()
        self._sock.close()


def _lost(error: OSError) -> Closed:
    return Closed(f"the connection is lost: {error.strerror or error}")
