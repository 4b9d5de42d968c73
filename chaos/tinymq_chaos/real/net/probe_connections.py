"""Connections of the harness's own through the proxies, beside those of brokers and clients: whoever holds both ends
sees what a direction carries, whether brokers run or not.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from tinymq.base.config import parse_address
from tinymq_chaos.real.processes.ports import HOST

DIAL_S_MAX = 1.0
PIECE_BYTES = 16 << 10
LOOK_S = 0.02  # how soon it is seen that nobody waits any more


@dataclass(frozen=True, slots=True)
class ProbeReading:
    """What became of something that was sent along a line."""

    arrived: int  # bytes
    ended: bool  # the line was, at either end
    took_s: float  # until all had arrived, or the line had ended; or for as long as it was waited for


def _ready(sending: socket.socket | None, receiving: socket.socket, writing: bool) -> tuple[list[socket.socket], bool]:
    """(ends that can be read, can the sending one be written), after LOOK_S at most. By poll: a process that has many
    files open has descriptors that select refuses."""
    ends = {end.fileno(): end for end in (sending, receiving) if end is not None}
    poll = select.poll()
    for number, end in ends.items():
        poll.register(number, select.POLLIN | (select.POLLOUT if writing and end is sending else 0))
    found = dict(poll.poll(LOOK_S * 1000))
    readable = [ends[number] for number, event in found.items() if event & ~select.POLLOUT]
    writable = sending is not None and bool(found.get(sending.fileno(), 0) & select.POLLOUT)
    return readable, writable


class ProbeConnection:
    """Its two ends, as one direction sees them."""

    def __init__(self, sending: socket.socket, receiving: socket.socket) -> None:
        self._sending, self._receiving = sending, receiving
        for end in (sending, receiving):
            end.setblocking(False)

    def send(self, size: int, within_s: float, enough: threading.Event | None = None) -> ProbeReading:
        """So many bytes; until all have arrived, the line has ended, time is over or it is `enough`."""
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
        """End it where it sends: until the other end has seen that."""
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
    """Where all lines lead to, whichever proxy they go through."""

    def __init__(self) -> None:
        self._listening = socket.create_server((HOST, 0))
        self._dialling = threading.Lock()
        self.address = f"{HOST}:{self._listening.getsockname()[1]}"

    def line(self, door: str, *, back: bool = False) -> ProbeConnection:
        """A new one through this door of a proxy. `back`: from here to who dialled. Raises OSError."""
        with self._dialling:  # so that who comes is who was dialled
            self._listening.settimeout(0.0)
            with suppress(OSError):
                while True:  # who came too late
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
