"""Scan: an AsyncScan for threads. Batches cross threads in a queue of C code, not by the loop."""

from __future__ import annotations

import contextlib
from queue import Empty

import pyarrow as pa

from tinymq.base.errors import TinymqError
from tinymq.client.common.one_thread import OneThread
from tinymq.client.common.traces import trim
from tinymq.client.consume.scan import ScanCore
from tinymq.client.facade.generated.scan import ScanCalls
from tinymq.client.facade.loop_thread import LoopThread


class Scan(ScanCalls):
    """Reads a range of a partition. Made by Client.scan(). Iterate over it, in `with`: record batches of TABLE_SCHEMA,
    as they are stored, in the order of their offsets. For one thread at a time. Raises as AsyncScan.

        scan = mq.scan("orders", partition=0, start=0, end=2)
        scan.open()
        for batch in scan:
            print(batch.num_rows, scan.offset)
        print(scan.served, scan.skipped)
        scan.close()
    """

    def __init__(self, loop_thread: LoopThread, asynchronous: ScanCore) -> None:
        super().__init__(loop_thread, asynchronous)
        self._opened = False
        self._one_thread = OneThread("scan")

    def __next__(self) -> pa.RecordBatch:
        """The next batch, of one row or more. Waits for it; ends at `end`."""
        try:
            with self._one_thread:
                with contextlib.suppress(Empty):
                    return self._take(block=False)
                self.open()  # raises in a forked child, where no batch would ever come
                return self._take(block=True)
        except TinymqError as raised:
            trim(raised)
            raise

    def _take(self, block: bool) -> pa.RecordBatch:
        batch = self._async.take(block)
        if batch is None:
            raise StopIteration
        return batch

    def open(self) -> None:
        """Start to fetch, and wait for nothing. Done by the first use, or by `with`. A second call does nothing."""
        if not self._opened or not self._loop_thread.alive:
            self._loop_thread.run(self._async.open())
            self._opened = True
