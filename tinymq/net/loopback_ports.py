"""Ports of this machine for the clusters that run on it: free ones, and reservations that other clusters respect.

A port that is free now may be taken while its broker restarts. So a cluster of tests or of the chaos harness reserves
its ports by name: each is a socket in Linux's abstract namespace, which no network sees and which ends with its
process. Every function here respects the reservations of other processes. On other systems than Linux a port is only as
free as when it was found.
"""

from __future__ import annotations

import contextlib
import random
import socket
import sys

from tinymq.base.errors import PortInUse

HOST = "127.0.0.1"
# Below the range from which the system takes ports for outgoing connections, so that none of them is in the way of a
# broker that restarts.
PORTS = range(20_000, 30_000)


class PortReservation:
    """Ports that are taken one by one and released together."""

    def __init__(self) -> None:
        self._names: list[socket.socket] = []  # bound, one for each port

    def take(self, count: int) -> list[int]:
        """Reserve `count` more ports, all different, on which no process listens now. Raises PortInUse."""
        found: list[int] = []
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            if len(found) == count:
                break
            if self._reserve(port):
                if is_free(port):
                    found.append(port)
                else:
                    self._release_last()
        if len(found) < count:
            raise PortInUse(f"fewer than {count} free ports between {PORTS.start} and {PORTS.stop}")
        return found

    def __enter__(self) -> PortReservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release all ports. Again: nothing happens."""
        while self._names:
            self._release_last()

    def _reserve(self, port: int) -> bool:
        name = socket.socket(socket.AF_UNIX)
        try:
            if sys.platform == "linux":
                name.bind(f"\0tinymq-port-{port}")
        except OSError:
            name.close()
            return False
        self._names.append(name)
        return True

    def _release_last(self) -> None:
        with contextlib.suppress(OSError):
            self._names.pop().close()


def is_free(port: int) -> bool:
    """Can a broker listen on `port` now? Connections that have just ended there do not matter."""
    if port >= 1 << 16:
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Return `count` ports, all different, that are neither used nor reserved now. Raises PortInUse."""
    with PortReservation() as reservation:
        return reservation.take(count)
