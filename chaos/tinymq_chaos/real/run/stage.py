"""The stage (faults/kind.py) around a target: it writes changes of processes into the history, and serialises what
overlapping faults do to one process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tinymq_chaos.history import History
from tinymq_chaos.real.net.network import Network
from tinymq_chaos.real.system.target import Target

STOP_S = 30.0  # for a polite end


class RecordingStage:
    """Any thread may call. It ignores a request that another fault has made impossible."""

    def __init__(self, target: Target, history: History) -> None:
        self.topics: list[tuple[str, int]] = []  # written partitions; the creator of one adds it
        self._target = target
        self._history = history
        self._locks = {broker: threading.RLock() for broker in target.brokers}
        self._paused: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        """Return what else this target has."""
        return getattr(self._target, name)

    @property
    def paused(self) -> frozenset[int]:
        return frozenset(self._paused)

    def tell(self, what: str) -> None:
        """Report a change."""
        self._history.changed(what, sorted(self._paused))

    def start(self, *brokers: int) -> None:
        with self.alone(*brokers):
            down = [n for n in brokers if not self._target.running(n)]
            if down:
                self._target.start(*down)
            for broker in down:
                self.tell(f"broker {broker} is started")

    def kill(self, *brokers: int) -> None:
        with self.alone(*brokers):
            there = [n for n in brokers if self._target.running(n)]
            self._target.kill(*there)
            self._paused -= {*there}
            for broker in there:
                self.tell(f"broker {broker} is killed")

    def stop(self, broker: int, within_s: float = STOP_S) -> None:
        """Stop brokers. A paused one goes on first, because otherwise it could not end politely."""
        with self.alone(broker):
            self.resume(broker)
            if self._target.running(broker):
                self.tell(f"broker {broker} is told to stop")
                self._target.stop(broker, within_s)
                self.tell(f"broker {broker} has stopped")

    def pause(self, *brokers: int) -> None:
        with self.alone(*brokers):
            there = [n for n in brokers if self._target.running(n) and n not in self._paused]
            self._target.pause(*there)
            self._paused |= {*there}
            for broker in there:
                self.tell(f"broker {broker} stands still")

    def resume(self, *brokers: int) -> None:
        with self.alone(*brokers):
            still = [n for n in brokers if n in self._paused]
            self._target.resume(*still)
            self._paused -= {*still}
            for broker in still:
                self.tell(f"broker {broker} goes on")

    def wipe(self, broker: int) -> None:
        with self.alone(broker):
            self._target.wipe(broker)
            self.tell(f"broker {broker} loses its disk")

    @contextmanager
    def alone(self, *brokers: int) -> Iterator[None]:
        """Hold these brokers alone. Locks are taken in one order, so that two faults never wait for each other."""
        with ExitStack() as stack:
            for broker in sorted({*brokers}):
                stack.enter_context(self._locks[broker])
            yield

    # ---- calls to the target -----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def version(self) -> str:
        return self._target.version

    @property
    def folder(self) -> Path:
        return self._target.folder

    @property
    def brokers(self) -> tuple[int, ...]:
        return self._target.brokers

    @property
    def net(self) -> Network:
        return self._target.net

    def running(self, broker: int) -> bool:
        return self._target.running(broker)

    def leader(self, topic: str, partition: int) -> int | None:
        return self._target.leader(topic, partition)

    def unhealthy(self) -> str:
        return self._target.unhealthy()

    def data(self, broker: int) -> Path:
        return self._target.data(broker)

    def log_file(self, broker: int) -> Path:
        return self._target.log_file(broker)

    def close(self) -> None:
        self._target.close()
