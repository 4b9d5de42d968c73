"""The file descriptors of this process: their limit, and the share that connections may take.

A broker that runs out of descriptors can neither accept a connection nor open a file. So connections get at most half
of the limit, each port gets a fixed share of that half, and files get the rest. Clients therefore never take the
descriptors that other brokers, metrics and logs need.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

DESCRIPTORS_MAX = 1 << 20  # the most that a process asks for; "unlimited" counts as this
METRICS_CONNECTIONS_MAX = 32
PEER_CONNECTIONS_MAX = 512  # 64 without a handshake yet, and two for each of 224 brokers: a cluster has at most 69
OPEN_FILES_MAX = 256  # segments that the writer keeps open
RESERVE = 8  # descriptors kept for files, for when no others are left

OUT_OF_DESCRIPTORS = frozenset((errno.EMFILE, errno.ENFILE))
OUT_OF_RESOURCES = OUT_OF_DESCRIPTORS | {errno.ENOBUFS, errno.ENOMEM}


@dataclass(frozen=True, slots=True)
class Shares:
    """How many connections each port may have open."""

    clients: int  # the gRPC port
    streams: int  # the stream port
    peers: int  # the peer port: connections from other brokers
    metrics: int

    @property
    def connections(self) -> int:
        """The connections on all ports together."""
        return self.clients + self.streams + self.peers + self.metrics


def share(descriptors: int, connections_max: int) -> Shares:
    """Return the shares of a process that may have `descriptors` open. Pure."""
    total = max(8, min(connections_max, descriptors // 2))
    metrics = max(1, min(METRICS_CONNECTIONS_MAX, total // 16))
    peers = max(2, min(PEER_CONNECTIONS_MAX, total // 4))
    streams = max(1, total // 4)  # each stream may also have a file open that it sends
    return Shares(clients=total - metrics - peers - streams, streams=streams, peers=peers, metrics=metrics)


def files_share(descriptors: int) -> int:
    """How many segments the writer may keep open. Pure."""
    return max(4, min(OPEN_FILES_MAX, descriptors // 8))


def limit() -> int:
    """How many descriptors this process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS_MAX)


def raise_limit() -> int:
    """Raise the limit as far as this process may, and return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # macOS refuses even its own hard limit
            return limit()
    return limit()


def host_share(connections_max: int) -> int:
    """How many of a port's connections one host may have."""
    return max(1, connections_max // 2)


class Reserve:
    """Keeps descriptors for files, and lends them one by one when the process has no others left. Usable from any
    thread."""

    def __init__(self, count: int = RESERVE) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._kept: list[int] = []
        weakref.finalize(self, _close_all, self._kept)
        self._refill()

    def use(self, call: Callable[[], T]) -> T:
        """Make `call`, which needs a descriptor, and return its result. If the process has no descriptor left, `call`
        gets one of the reserve. Raises the errors of `call`; when the reserve is used up, that is OSError again."""
        while True:
            try:
                result = call()
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS or not self._lend():
                    raise
            else:
                if len(self._kept) < self._count:
                    self._refill()
                return result

    def _lend(self) -> bool:
        with self._lock:
            if not self._kept:
                return False
            os.close(self._kept.pop())
            return True

    def _refill(self) -> None:
        """Refill the reserve as far as there are descriptors again."""
        with self._lock, contextlib.suppress(OSError):
            while len(self._kept) < self._count:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def _close_all(kept: list[int]) -> None:
    while kept:
        os.close(kept.pop())
