"""Ports for a cluster's processes, that no other cluster of this harness takes while they are kept.

A port that is free now may be somebody else's when its broker is started again. So each one that is taken here is held
by its name, too: a socket in Linux's abstract namespace, which no network sees and which goes with its process. Runs
beside this one look for that; where there is none (other systems), ports are only as free as when they were found.
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
    """Taken one by one, given back all at once."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, count: int) -> list[int]:
        """`count` more. They lie below the range from which the system takes ports for outgoing connections. Raises
        PortInUse when there are not so many."""
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
        """Others may have them."""
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
