"""One TCP connection that carries frames, for one thread at a time: its calls block. For a loop: frame_stream.py."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Sequence

from tinymq.base.errors import Closed
from tinymq.net.framing import Chunk, Frame, FrameReader, pack_frame


class FrameSocket:
    """An established connection. After a call has raised, the connection is useless: close it."""

    def __init__(self, sock: socket.socket, reader: FrameReader) -> None:
        """`reader` has the bytes received so far, and the bounds of further frames."""
        self._sock = sock
        self._reader = reader

    @property
    def quiet(self) -> bool:
        """Has no unexpected byte arrived? False also after the end of the connection."""
        if self._reader.cut_short() is not None or (isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()):
            return False
        try:
            self._sock.settimeout(0)
            socket.socket.recv(self._sock, 1, socket.MSG_PEEK)  # below TLS, which has no such look
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
        """Return the next frame, (head, body).

        Raises TimeoutError if the frame is not complete in time: then call it again. Raises Closed at the end,
        InvalidFrame.
        """
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
        """End the connection, from any thread. A call that waits raises, and its thread closes the connection."""
        with contextlib.suppress(
            OSError
        ):  # a forked child may have the connection too: closing it here would not end it
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # TLS's own would make a later send one without TLS

    def close(self) -> None:
        """End the connection. A second call does nothing."""
        self.shut()
        self._sock.close()


def _lost(error: OSError) -> Closed:
    return Closed(f"the connection is lost: {error.strerror or error}")
