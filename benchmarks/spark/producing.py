"""A producer at a steady pace beside a scan: the cost of the scan for writers."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from benchmarks.measure import RECORD_BYTES, Latency
from tinymq import Client

PER_S = 100  # records of 1 KiB, one by one, each to its leader's and a follower's disk


class Producing:
    """Sends while the block runs; afterwards `latency` has the result. Records go to partitions in turn."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers, self._topic = servers, topic
        self._ended = threading.Event()
        self._took: list[float] = []
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def latency(self) -> Latency:
        """The time from the call to the answer. Raises the error that ended the sending."""
        if self._failed is not None:
            raise self._failed
        return Latency.of(self._took)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        value = bytes(RECORD_BYTES)
        try:
            with Client(self._servers) as client:
                client.send(self._topic, value)  # finds the leaders before the clock starts
                next_s = time.monotonic()
                while not self._ended.is_set():
                    started = time.perf_counter()
                    client.send(self._topic, value)
                    self._took.append(time.perf_counter() - started)
                    next_s = max(next_s + 1 / PER_S, time.monotonic())
                    self._ended.wait(next_s - time.monotonic())
        except Exception as error:
            self._failed = error
