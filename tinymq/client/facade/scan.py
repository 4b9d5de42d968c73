"""Scan: an AsyncScan for `with` and `for`. Batches cross threads in a queue of C code, not by the loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from queue import Empty
from types import TracebackType
from typing import Self

import pyarrow as pa

from tinymq.client.consume.scan import AsyncScan
from tinymq.client.facade.loop_thread import LoopThread


class Scan:
    """Made by Client.scan(). Iterate over it, in `with`: record batches of TABLE_SCHEMA. As AsyncScan; for one thread
    at a time."""

    def __init__(self, engine: LoopThread, core: AsyncScan) -> None:
        self._engine = engine
        self._core = core
        self._opened = False

    @property
    def offset(self) -> int:
        """As AsyncScan.offset."""
        return self._core.offset

    @property
    def served(self) -> Mapping[int, int]:
        """As AsyncScan.served."""
        return self._core.served

    @property
    def skipped(self) -> int:
        """As AsyncScan.skipped."""
        return self._core.skipped

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        """As AsyncScan: the next batch; ends at `end`."""
        try:
            batch = self._core.take(block=False)
        except Empty:
            self.open()  # raises in a forked child, where nothing would ever come
            batch = self._core.take(block=True)
        if batch is None:
            raise StopIteration
        return batch

    def open(self) -> None:
        """As AsyncScan.open: start to fetch, now rather than at the first use."""
        if not self._opened or not self._engine.alive:
            self._engine.run(self._core.open())
            self._opened = True

    def close(self) -> None:
        """As AsyncScan.close."""
        if self._engine.alive:
            self._engine.run(self._core.close())

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
