"""Ports for a cluster's processes, which no other cluster of this harness takes while they are reserved.

A port that is free now may be taken when its broker restarts. So each one is also reserved by name: a socket in Linux's
abstract namespace, which no network sees and which ends with its process. Other runs on this machine check for it. On
other systems, ports are only as free as when they were found.
"""

from __future__ import annotations

import contextlib
import random
import socket
import sys

from tinymq.base.errors import PortInUse
from tinymq.dev.dev_folder import HOST, PORTS, is_free

__all__ = ["HOST", "Ports"]


class Ports:
    """Ports that are taken one by one and released together."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, count: int) -> list[int]:
        """Take `count` more.

        They lie below the range of the system's outgoing connections. Raises PortInUse if there are too few.
        """
        found: list[int] = []
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            if len(found) < count and self._hold(port):
                if is_free(port):
                    found.append(port)
                else:
                    self._let_go()
        if len(found) == count:
            return found
        raise PortInUse(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")

    def release(self) -> None:
        """Release the ports."""
        while self._held:
            self._let_go()

    def _hold(self, port: int) -> bool:
        name = socket.socket(socket.AF_UNIX)
        try:
            if sys.platform == "linux":
                name.bind(f"\0tinymq-port-{port}")
        except OSError:
            name.close()
            return False
        self._held.append(name)
        return True

    def _let_go(self) -> None:
        with contextlib.suppress(OSError):
            self._held.pop().close()
