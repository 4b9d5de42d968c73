"""The target of faults: a cluster of real processes behind proxies, tinymq's or another system's. Only a protocol.

All of it is blocking, and any thread may call: code on an event loop calls it in a thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tinymq_chaos.real.net.network import CLIENTS, Network

__all__ = ["CLIENTS", "Target"]


class Target(Protocol):
    """Brokers 1..N, each a process with a data directory and a log file, and the network between them and to clients.

    A request that a broker cannot fulfil (to kill one that does not run, to wipe one that does) breaks an invariant of
    the caller. `kill`, `resume` and `close` always succeed.
    """

    @property
    def name(self) -> str:
        """The name in reports, such as "tinymq"."""
        ...

    @property
    def version(self) -> str: ...
    @property
    def folder(self) -> Path:
        """The folder of everything that the cluster writes."""
        ...

    @property
    def brokers(self) -> tuple[int, ...]:
        """The ids, from 1, whether the brokers run or not."""
        ...

    @property
    def net(self) -> Network: ...

    def start(self, *brokers: int) -> None:
        """Start processes; they run on return. The call does not wait until they serve (`unhealthy` tells)."""
        ...

    def running(self, broker: int) -> bool:
        """Return whether there is a process. A paused one runs."""
        ...

    def kill(self, *brokers: int) -> None:
        """Send SIGKILL to all, then wait; they are gone on return."""
        ...

    def stop(self, broker: int, within_s: float = 30.0) -> None:
        """Send SIGTERM and wait for a polite end. After `within_s` kill the broker and raise RuntimeError."""
        ...

    def pause(self, *brokers: int) -> None:
        """SIGSTOP: they keep their state and do nothing."""
        ...

    def resume(self, *brokers: int) -> None:
        """SIGCONT; brokers that are not paused, or are gone, are ignored."""
        ...

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the leader by the brokers' own reports, of the newest term, not through proxies.

        None: no broker names one.
        """
        ...

    def unhealthy(self) -> str:
        """Return what is wrong, in words; "" if all brokers serve and all replicas take part and follow."""
        ...

    def data(self, broker: int) -> Path:
        """The broker's data directory."""
        ...

    def log_file(self, broker: int) -> Path:
        """The broker's log file, of all of its starts."""
        ...

    def wipe(self, broker: int) -> None:
        """Remove the data directory of a stopped broker, as if its disk were new."""
        ...

    def close(self) -> None:
        """End everything: brokers, proxies, the proxies' servers.

        Exit and signals call it, too; a second call does nothing.
        """
        ...
