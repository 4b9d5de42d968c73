"""Places that send bytes to each other through proxies, without brokers, to show what a direction carries."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

from tinymq.base.config import parse_address
from tinymq.net.loopback_ports import HOST
from tinymq_chaos.real.net.network import Direction
from tinymq_chaos.real.net.toxiproxy import Proxies

WAIT_S = 10.0


class Place:
    """A server that also connects to other places through their proxies."""

    def __init__(self) -> None:
        self.listening = socket.create_server((HOST, 0))
        self.listening.settimeout(WAIT_S)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.listening.getsockname()[1]}"


class Line:
    """One connection: the end that connected, and the end that accepted."""

    def __init__(self, dialled: socket.socket, accepted: socket.socket) -> None:
        self.dialled, self.accepted = dialled, accepted
        for end in (dialled, accepted):
            end.settimeout(WAIT_S)

    def passes(self, data: bytes = b"are you there?", *, back: bool = False) -> bool:
        """Return True when the bytes reach the other end; False if the connection closed before any of them arrived.

        `back`: sent by the accepting end.
        """
        sending, receiving = (self.accepted, self.dialled) if back else (self.dialled, self.accepted)
        sending.sendall(data)
        return self.arrives(len(data), receiving) == data

    def is_read_by_the_proxy(self, data: bytes, *, back: bool = False) -> bool:
        """Send bytes. Returns True when the proxy has read them, wherever it sends them; False after a time.

        `back`: sent by the accepting end.
        """
        sending = self.accepted if back else self.dialled
        sending.sendall(data)
        deadline = time.monotonic() + WAIT_S
        while _is_unread(sending):
            if time.monotonic() > deadline:
                return False
        return True

    def arrives(self, length: int, receiving: socket.socket) -> bytes:
        """Read so many bytes, or all until the end."""
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while len(got) < length and (more := receiving.recv(length - len(got))):
                got += more
        return got

    def close(self) -> None:
        self.dialled.close()
        self.accepted.close()


def _is_unread(sending: socket.socket) -> bool:
    """Tell whether the process at the other end, on this machine, has yet to read bytes (proc(5): tcp)."""
    ports = tuple(f"{end[1]:04X}" for end in (sending.getpeername(), sending.getsockname()))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, remote, _state, queues = line.split()[1:5]
        if (local.partition(":")[2], remote.partition(":")[2]) == ports:
            return int(queues.partition(":")[2], 16) > 0
    return False


class Net:
    """Some places, each with a proxy to each other."""

    def __init__(self, folder: Path, *directions: Direction, doors: int = 1) -> None:
        self.places = {place: Place() for direction in directions for place in direction}
        self.proxies = Proxies(folder, {(a, b): doors * [self.places[b].address] for a, b in directions})
        self._lines: list[Line] = []

    def line(self, a: int, b: int, which: int = 0) -> Line:
        """Open a connection from a to b."""
        dialled = socket.create_connection(parse_address(self.proxies.address(a, b, which)), WAIT_S)
        line = Line(dialled, self.places[b].listening.accept()[0])
        self._lines.append(line)
        return line

    def hang_up(self) -> None:
        """Close all connections."""
        while self._lines:
            self._lines.pop().close()

    def close(self) -> None:
        self.hang_up()
        self.proxies.close()
        for place in self.places.values():
            place.listening.close()
