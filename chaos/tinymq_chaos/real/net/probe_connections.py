"""Connections of the harness through the proxies, beside those of brokers and clients.

The harness holds both ends and so sees what a direction carries, whether brokers run or not.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from tinymq.base.config import parse_address
from tinymq.net.loopback_ports import HOST

DIAL_S_MAX = 1.0
PIECE_BYTES = 16 << 10
LOOK_S = 0.02  # how soon a probe notices that no caller waits any more


@dataclass(frozen=True, slots=True)
class ProbeReading:
    """The fate of bytes that were sent along a connection."""

    arrived: int  # bytes
    ended: bool  # the connection ended, at either end
    took_s: float  # until all bytes had arrived or the connection had ended; or as long as the caller waited


def _ready(sending: socket.socket | None, receiving: socket.socket, writing: bool) -> tuple[list[socket.socket], bool]:
    """Return (readable ends, whether the sending end is writable) after LOOK_S at most.

    It uses poll, because select refuses the large descriptors of a process with many open files.
    """
    ends = {end.fileno(): end for end in (sending, receiving) if end is not None}
    poll = select.poll()
    for number, end in ends.items():
        poll.register(number, select.POLLIN | (select.POLLOUT if writing and end is sending else 0))
    found = dict(poll.poll(LOOK_S * 1000))
    readable = [ends[number] for number, event in found.items() if event & ~select.POLLOUT]
    writable = sending is not None and bool(found.get(sending.fileno(), 0) & select.POLLOUT)
    return readable, writable


class ProbeConnection:
    """The two ends of a connection, as one direction sees them."""

    def __init__(self, sending: socket.socket, receiving: socket.socket) -> None:
        self._sending, self._receiving = sending, receiving
        for end in (sending, receiving):
            end.setblocking(False)

    def send(self, size: int, within_s: float, enough: threading.Event | None = None) -> ProbeReading:
        """Send so many bytes; return when all have arrived, the connection has ended, the time is over, or `enough`
        says so.
        """
        began_s, left, arrived, ended = time.monotonic(), size, 0, False
        while arrived < size and not ended and time.monotonic() - began_s < within_s:
            if enough is not None and enough.is_set():
                break
            readable, writable = _ready(self._sending, self._receiving, writing=bool(left))
            try:
                if writable:
                    left -= self._sending.send(bytes(min(left, PIECE_BYTES)))
                for end in readable:
                    got = len(end.recv(PIECE_BYTES))
                    arrived += got
                    ended |= not got
            except OSError:
                ended = True
        return ProbeReading(arrived, ended, time.monotonic() - began_s)

    def hang_up(self, within_s: float, enough: threading.Event | None = None) -> ProbeReading:
        """Close the sending end; wait until the other end has seen it."""
        began_s, ended = time.monotonic(), False
        self._sending.close()
        while not ended and time.monotonic() - began_s < within_s and not (enough is not None and enough.is_set()):
            if _ready(None, self._receiving, writing=False)[0]:
                ended = True
                with suppress(OSError):
                    ended = not self._receiving.recv(PIECE_BYTES)
        return ProbeReading(0, ended, time.monotonic() - began_s)

    def close(self) -> None:
        self._sending.close()
        self._receiving.close()


class ProbeServer:
    """The server behind all proxies, to which all probe connections lead."""

    def __init__(self) -> None:
        self._listening = socket.create_server((HOST, 0))
        self._dialling = threading.Lock()
        self.address = f"{HOST}:{self._listening.getsockname()[1]}"

    def line(self, door: str, *, back: bool = False) -> ProbeConnection:
        """Open a connection through this port of a proxy. `back`: send from the server to the caller. Raises
        OSError."""
        with self._dialling:  # so that the accepted connection is the dialled one
            self._listening.settimeout(0.0)
            with suppress(OSError):
                while True:  # skip connections that came too late
                    self._listening.accept()[0].close()
            self._listening.settimeout(DIAL_S_MAX)
            dialled = socket.create_connection(parse_address(door), DIAL_S_MAX)
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                dialled.close()
                raise
        for end in (dialled, accepted):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return ProbeConnection(accepted, dialled) if back else ProbeConnection(dialled, accepted)

    def close(self) -> None:
        self._listening.close()
