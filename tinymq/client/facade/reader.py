"""Reader: an AsyncReader for threads. Messages cross threads a batch at a time: what was fetched already is taken in
the calling thread."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tinymq.client.common.argument_checks import check_count, check_wait
from tinymq.client.consume.reader import AsyncReader
from tinymq.client.consume.records import Message
from tinymq.client.facade.generated.reader import ReaderCalls
from tinymq.client.facade.loop_thread import LoopThread


class Reader(ReaderCalls):
    """Reads a topic. Made by Client.reader(); opened by the first use. For one thread at a time.

    with mq.reader("orders", start="earliest", end="latest") as reader:
        for message in reader:
            handle(message)
    """

    def __init__(self, loop_thread: LoopThread, asynchronous: AsyncReader) -> None:
        super().__init__(loop_thread, asynchronous)
        self._buffer = asynchronous.buffer  # fetched messages; any thread may take them

    def __repr__(self) -> str:
        return repr(self._async).replace("AsyncReader", "Reader", 1)

    def __next__(self) -> Message:
        """The next message. Waits for it; ends at `end`. Raises when a partition is served by no replica any more."""
        message = self._buffer.next_message()
        while message is None:
            if not self._loop_thread.run(self._async.arrival(None)):
                raise StopIteration
            message = self._buffer.next_message()
        return message

    def poll(self, timeout: float | None = None, max_records: int = 500) -> list[Message]:
        """Up to `max_records` messages: at once if there are any, else after up to `timeout` seconds ([] then).

        Without a timeout it waits for one message at least; [] at once when the end is reached (`at_end`).
        """
        check_wait(timeout)
        check_count("max_records", max_records, 1)
        messages = self._buffer.next_messages(max_records)
        return messages or self._loop_thread.run(self._async.poll(timeout, max_records))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read on as record batches with the columns of `to_arrow`, as they are stored, up to `end`.

        Those of a partition come in order; partitions are interleaved. Without `end` it waits for new records.
        """
        while True:
            chunk = self._buffer.take_chunk()
            if chunk is not None:
                yield chunk.table()
            elif not self._loop_thread.run(self._async.arrival(None)):
                return
