"""What faults are done to: a cluster of real processes behind proxies, ours or another's. A protocol, nothing else.

All of it is plain and blocking, and may be called from any thread: who lives on an event loop calls it in a thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tinymq_chaos.real.net.network import CLIENTS, Network

__all__ = ["CLIENTS", "Target"]


class Target(Protocol):
    """Brokers 1..N, each a process with a data folder and a log file, and the network between them and to clients.

    What is asked of a broker that cannot do it (to kill one that does not run, to wipe one that does) is a broken
    invariant of the caller's, but for `kill`, `resume` and `close`: those are done whatever came before.
    """

    @property
    def name(self) -> str:
        """As reports call it, such as "tinymq"."""
        ...

    @property
    def version(self) -> str: ...
    @property
    def folder(self) -> Path:
        """Everything that the cluster writes lies below."""
        ...

    @property
    def brokers(self) -> tuple[int, ...]:
        """Ids, from 1, whether they run or not."""
        ...

    @property
    def net(self) -> Network: ...

    def start(self, *brokers: int) -> None:
        """Their processes run when this returns; nobody waits until they serve (`unhealthy` says when they do)."""
        ...

    def running(self, broker: int) -> bool:
        """Is there a process? A paused one runs."""
        ...

    def kill(self, *brokers: int) -> None:
        """SIGKILL to all, before one is waited for; they are gone when this returns."""
        ...

    def stop(self, broker: int, within_s: float = 30.0) -> None:
        """SIGTERM, and wait for a polite end. After `within_s` it is killed, and RuntimeError raised."""
        ...

    def pause(self, *brokers: int) -> None:
        """SIGSTOP: they hold what they hold, and do nothing."""
        ...

    def resume(self, *brokers: int) -> None:
        """SIGCONT; those that are not paused, or are gone, are passed over."""
        ...

    def leader(self, topic: str, partition: int) -> int | None:
        """Who leads by the brokers' own word, of the newest term; not asked through proxies. None: nobody says so."""
        ...

    def unhealthy(self) -> str:
        """What is not as it should be, in words; "" when all brokers serve and all replicas take part and follow."""
        ...

    def data(self, broker: int) -> Path:
        """Its data folder."""
        ...

    def said(self, broker: int) -> Path:
        """Its log file, of all of its starts."""
        ...

    def wipe(self, broker: int) -> None:
        """Remove the data folder of a stopped broker, as if its disk were a new one."""
        ...

    def close(self) -> None:
        """Everything ends: brokers, proxies, the proxies' server. Done at exit and on signals, too; twice is once."""
        ...
