"""Counts the connections of the gRPC port by host, and closes connections of a host that has too many.

gRPC's server accepts connections by itself. It bounds those of all hosts together, but not those of one host, and it
does not list them. So this module scans the process's own sockets now and then. It knows most of them from the previous
scan, and then a socket costs a microsecond.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tinymq.net.acceptor import RefusalLog
from tinymq.net.connection_limits import ConnectionRefusal, Places, host_of

LOOK_S = 1.0  # between two scans
CROWDED_LOOK_S = 0.25  # while the port is more than half full
SLICE = 256  # descriptors checked in one turn of the loop
FOLDER = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


class Seen(NamedTuple):
    """A socket's descriptor at the last scan."""

    inode: int
    host: str | None  # the other end's host; None: not a connection of this port


def surplus(seen: Mapping[int, Seen], host_connections_max: int) -> list[tuple[int, Seen]]:
    """Return the surplus connections: of each host with more than `host_connections_max`, the ones found last. Pure."""
    kept: Counter[str] = Counter()
    surplus = []
    for fd, each in seen.items():
        if each.host is not None:
            kept[each.host] += 1
            if kept[each.host] > host_connections_max:
                surplus.append((fd, each))
    return surplus


class ClientConnections:
    """Scans the connections from `start` to `stop`. `places.open` is their number at the last scan."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._log = RefusalLog(places)
        self._port = 0
        self._seen: dict[int, Seen] = {}  # by descriptor, in the order in which they were found
        self._task: asyncio.Task[None] | None = None

    def start(self, port: int) -> None:
        """Watch the connections that this process accepted on `port`."""
        self._port = port
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Stop watching. Does nothing if not started."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(OSError):  # no descriptor is left for the scan itself
                await self.look()
            crowded = self.places.open * 2 > self.places.connections_max
            await asyncio.sleep(CROWDED_LOOK_S if crowded else LOOK_S)

    async def look(self) -> None:
        """Count the connections, and close surplus ones. Raises OSError."""
        found: dict[int, Seen] = {}
        for at, fd in enumerate(map(int, os.listdir(FOLDER))):
            if at % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            each = self._look_at(fd)
            if each is not None:
                found[fd] = each
        known = {fd: each for fd, each in self._seen.items() if found.get(fd) == each}
        self._seen = known | found
        ended = 0
        for fd, each in surplus(self._seen, self.places.host_connections_max):
            ended += _end(fd, each.inode)
            del self._seen[fd]
        self.places.recount(each.host for each in self._seen.values() if each.host is not None)
        if ended:
            self.places.refuse(ConnectionRefusal.HOST, ended)
            self._log.note(ConnectionRefusal.HOST, ended)

    def _look_at(self, fd: int) -> Seen | None:
        """Describe a descriptor. None: it is not a socket, or it is closed."""
        try:
            status = os.fstat(fd)
        except OSError:
            return None
        if not stat.S_ISSOCK(status.st_mode):
            return None
        known = self._seen.get(fd)
        return known if known is not None and known.inode == status.st_ino else self._asked(fd, status.st_ino)

    def _asked(self, fd: int, inode: int) -> Seen | None:
        try:
            with _duplicate(fd, inode) as sock:
                here, there = sock.getsockname(), sock.getpeername()
        except OSError:  # a listening socket, or a closed one
            return None
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or here[1] != self._port:
            return Seen(inode, None)
        return Seen(inode, host_of(there[0]))


def _duplicate(fd: int, inode: int) -> socket.socket:
    """Return the same socket under a descriptor of our own, so that closing `fd` in between does no harm. Raises
    OSError."""
    sock = socket.socket(fileno=os.dup(fd))
    if os.fstat(sock.fileno()).st_ino != inode:
        sock.close()
        raise OSError("the descriptor belongs to another file now")
    return sock


def _end(fd: int, inode: int) -> bool:
    """Shut down a connection of gRPC's server, which treats it as closed by the client."""
    try:
        with _duplicate(fd, inode) as sock:
            sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    return True
