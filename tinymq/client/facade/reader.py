"""Reader: an AsyncReader for threads. Messages cross threads a batch at a time: what was fetched already is taken in
the calling thread."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tinymq.client.common.argument_checks import check_count, check_wait
from tinymq.client.common.one_thread import OneThread
from tinymq.client.consume.message_iterator import message_iterator
from tinymq.client.consume.reader import ReaderCore
from tinymq.client.consume.records import Chunk, Message
from tinymq.client.facade.generated.reader import ReaderCalls
from tinymq.client.facade.loop_thread import LoopThread


class Reader(ReaderCalls):
    """Reads a topic. Made by Client.reader(); opened by the first use. For one thread at a time.

        with mq.reader("orders", start="earliest", end="latest") as reader:
            for message in reader:
                handle(message)

    Single steps:

        reader = mq.reader("orders", partitions=[0], end="latest")
        reader.open()
        print(reader.poll(timeout=5.0, max_records=1), reader.position(), reader.skipped)
        for batch in reader.batches():
            print(batch.num_rows)
        print(reader.at_end)
        print(mq.reader("orders").to_arrow(limit=1000).num_rows)
        reader.close()
    """

    def __init__(self, loop_thread: LoopThread, asynchronous: ReaderCore) -> None:
        super().__init__(loop_thread, asynchronous)
        self._buffer = asynchronous.buffer  # fetched messages; the thread that reads takes them
        self._one_thread = OneThread("reader")

    def __repr__(self) -> str:
        return repr(self._async).replace("AsyncReader", "Reader", 1)

    def __iter__(self) -> Iterator[Message]:
        """The messages from here on. Waits for each; ends at `end`. Raises as `next` does, and can be used after
        that."""
        return message_iterator(self._more_at_hand)

    def __next__(self) -> Message:
        """The next message. Waits for it; ends at `end`. Raises when a partition is served by no replica any more."""
        while True:
            for message in self._buffer.at_hand:
                return message
            if self._more_at_hand() is None:
                raise StopIteration

    def _more_at_hand(self) -> Iterator[Message] | None:
        """Wait for the next messages to be drawn. None: the end is reached."""
        with self._one_thread:
            while not self._buffer.more():
                if not self._loop_thread.run(self._async.arrival(None)):
                    return None
            return self._buffer.at_hand

    def poll(self, timeout: float | None = None, max_records: int = 500) -> list[Message]:
        """Up to `max_records` messages: at once if there are any, else after up to `timeout` seconds ([] then).

        Without a timeout it waits for one message at least; [] at once when the end is reached (`at_end`).
        """
        check_wait(timeout)
        check_count("max_records", max_records, 1)
        with self._one_thread:
            messages = self._buffer.next_messages(max_records)
            return messages or self._loop_thread.run(self._async.poll(timeout, max_records))

    def to_arrow(self, limit: int | None = None) -> pa.Table:
        """Read everything up to the end (`end`, or the end when the reader was opened) as one table.

        Rows are ordered by partition, then offset. Columns: partition, offset, key, value, headers, timestamp. With
        `limit`, the table has at most that many rows, and the next call continues behind them. After this call the
        reader does not follow new records: it ends where the table ends.
        """
        with self._one_thread:
            return self._loop_thread.run(self._async.to_arrow(limit))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read on as record batches with the columns of `to_arrow`, as they are stored, up to `end`.

        Those of a partition come in order; partitions are interleaved. Without `end` it waits for new records.
        """
        while (chunk := self._next_chunk()) is not None:
            yield chunk.table()

    def _next_chunk(self) -> Chunk | None:
        """Wait for the next rows. None: the end is reached."""
        with self._one_thread:
            while (chunk := self._buffer.take_chunk()) is None:
                if not self._loop_thread.run(self._async.arrival(None)):
                    return None
            return chunk
