"""A batch of records of one producer, from the first append to the end of its delivery. No I/O.

At most two threads use a batch: the thread that appends fills it, under the batcher's lock, and the loop ends it, or
the thread that delivers a lone record does. Any thread and any event loop may wait for the end.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tinymq.base.errors import Closed, TinymqError
from tinymq.base.types import Unsent
from tinymq.base.value import value
from tinymq.client.common import forks
from tinymq.client.common.argument_checks import FORK_HINT, check_wait
from tinymq.client.common.due import Due
from tinymq.client.common.rows import Row, rows_of
from tinymq.client.net.ports import PackedBatch
from tinymq.client.net.wire import batch_head, produce_batch
from tinymq.format.batch import SCHEMA, Codec, encode
from tinymq.format.columns import Headers

if TYPE_CHECKING:
    from tinymq.client.produce.buffer_pool import BufferPool
    from tinymq.client.produce.send_queue import SendQueue
    from tinymq.client.produce.topic_buffers import TopicBuffer

Cells = tuple[bytes | None, bytes | None, int]
"""The value, the key and the time of a record."""

# One lock for all batches is enough: it is taken when a call waits and when a batch ends, never per record.
_COMPLETION = threading.Lock()

SIGNAL_S = 0.25  # how late the function of a signal may run while the main thread waits

_process = os.getpid()  # kept, because a call of the system for each record that is awaited costs as much as a future


def _after_fork() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_after_fork)

LOOP_HINT = "close the AsyncClient, or use it in `async with`, before its event loop ends"


@value
class BatchMetadata:
    """The place of an acknowledged batch: record i has offset base_offset + i.

    for part in producer.send_batch("orders", pa.table({"value": [b"one", b"two"]})).result():
        print(part.partition, part.base_offset, part.record_count)
    """

    topic: str
    partition: int
    base_offset: int
    record_count: int
    append_time_us: int
    duplicate: bool = False


class ProducerBatch:
    """The records of one partition that are sent, acknowledged or failed together."""

    __slots__ = (
        "append_time_us",
        "attempt_s",
        "base_offset",
        "bound",
        "bytes",
        "cells",
        "codec",
        "count",
        "deadline_s",
        "done",
        "due",
        "duplicate",
        "epoch",
        "error",
        "first_sequence",
        "futures",
        "headers",
        "loop",
        "message",
        "message_id",
        "opened_s",
        "process",
        "queue",
        "request_id",
        "scheduled",
        "seen",
        "sent",
        "unanswered",
        "unknown",
        "waiters",
    )  # fmt: skip

    def __init__(self, queue: SendQueue, opened_s: float, deadline_s: float) -> None:
        self.queue = queue
        self.opened_s = opened_s
        self.deadline_s = deadline_s
        # Written by the threads that append, each record in one step; emptied when encoded. `cells` has the value, the
        # key and the time of each record in a row, because one `+=` of three cells cannot be interrupted half way. Few
        # records have headers: they are kept by row.
        self.cells: list[Any] = []
        self.headers: dict[int, Headers] = {}
        self.message_id = b""  # of its one record; b"": the records have none
        self.due: Due | None = None  # of its one record; None: the records are not delayed
        self.bound = False  # some record must go to this partition, because it has a key or names the partition
        self.count = 0  # of records
        self.bytes = 0  # what the buffer pool counts
        # Written when encoded.
        self.message: pa.Buffer | None = None  # None: not encoded yet, or acknowledged
        self.codec = 0
        # Written by the send queue.
        self.sent = False  # an attempt is in flight
        self.unknown = False  # an earlier attempt may have been written, and no answer can tell any more
        self.unanswered: frozenset[int] = frozenset()  # request ids of given-up attempts that may still be answered
        self.epoch = 0
        self.first_sequence = -1
        self.request_id = 0  # of the last attempt
        self.attempt_s = 0.0  # when the last attempt began
        # The completion, guarded by _COMPLETION.
        self.process = _process
        self.done = False
        self.base_offset = -1
        self.append_time_us = 0
        self.duplicate = False
        self.scheduled: tuple[int, int] | None = None  # of a delayed batch: schedule id, and when it is due (us)
        self.error: TinymqError | None = None
        self.waiters: list[Callable[[], None]] | None = None
        # The first event loop on which the end is awaited, and a future for each await. That loop alone touches them.
        self.loop: asyncio.AbstractEventLoop | None = None
        self.futures: list[asyncio.Future[None]] = []
        self.seen: set[int] | None = None  # the rows of a failed batch whose Delivery was asked for the error

    def put(
        self, buffer: TopicBuffer, pool: BufferPool, cells: Cells, pairs: Headers | None, size: int, bound: bool,
        *, locked: bool = False,
    ) -> int:  # fmt: skip
        """Add a record, and return its row; -1: there is no room, or the batch is open no more.

        The first record always has room, and is added under the batcher's lock (`locked`). The others need no lock, for
        this is one step beside other threads and interrupts: nothing is called, and nothing is allocated that Python's
        collector tracks, which might run other code.
        """
        row = self.count
        if row:
            if self.queue.open is not self or self.bytes + size > buffer.bytes_max or row >= buffer.records_max:
                return -1
        elif not locked:
            return -1
        if pairs:
            self.headers[row] = pairs
        if bound:
            self.bound = True
        self.cells += cells
        self.count, self.bytes, pool.taken_bytes = row + 1, self.bytes + size, pool.taken_bytes + size
        return row

    @property
    def unclear(self) -> bool:
        """May an earlier attempt have been written? If so, the batch keeps its sequence number and its epoch."""
        return self.unknown or bool(self.unanswered)

    def encode(self, codec: Codec) -> None:
        """Make the message of a sealed batch, which has its place in the send queue already. Two threads may do so at
        the same time, because they make the same message."""
        cells, by_row = self.cells, self.headers
        if self.done or self.message is not None:
            return
        values, keys, times = cells[0::3], cells[1::3], cells[2::3]
        headers = [by_row.get(row) for row in range(self.count)] if by_row else None
        message = encode(None if keys.count(None) == self.count else keys, values, headers, times, codec)
        self.codec = codec  # before the message: another thread may send the batch as soon as it has one
        self.message = message
        self.cells, self.headers = [], {}

    def pack(self, producer_id: int, acks: int, transaction: bytes = b"") -> tuple[PackedBatch, int]:
        """Pack the next attempt of a batch. Returns (the batch, its bytes).

        `transaction`: its place in its transaction, which numbers it instead of its producer.
        """
        assert self.message is not None, "taken before it was encoded"
        head = batch_head(
            codec=self.codec,
            record_count=self.count,
            producer_id=producer_id,
            producer_epoch=self.epoch,
            first_sequence=-1 if transaction else self.first_sequence,
        )
        left_s = self.deadline_s - self.attempt_s
        return produce_batch(
            request_id=self.request_id,
            topic_id=self.queue.topic_id,
            partition=self.queue.partition,
            head=head,
            message=self.message,
            acks=acks,
            timeout_ms=max(1, int(left_s * 1000)),
            message_id=self.message_id,
            due=self.due,
            transaction=transaction,
        )

    def succeed(self, base_offset: int, append_time_us: int, duplicate: bool) -> None:
        """End the delivery: the broker has written the batch."""
        self.base_offset, self.append_time_us, self.duplicate = base_offset, append_time_us, duplicate
        self.message = None
        self._end()

    def fail(self, error: TinymqError) -> None:
        """End the delivery with an error."""
        self.error = error
        self._end()

    def _end(self) -> None:
        with _COMPLETION:
            self.done = True
            waiters, self.waiters = self.waiters, None
        for waiter in waiters or ():
            waiter()

    def when_done(self, waiter: Callable[[], None]) -> None:
        """Call `waiter` once at the end, in the thread that ends the batch; now, if it has ended. It must not raise."""
        if not self.done:
            with _COMPLETION:
                if not self.done:
                    if self.waiters is None:
                        self.waiters = []
                    self.waiters.append(waiter)
                    return
        waiter()

    def wait(self, timeout_s: float | None) -> bool:
        """Block this thread until the end. False: it did not end within `timeout_s`."""
        check_wait(timeout_s)
        if self.done:
            return True
        self.check_home()
        if self.process != os.getpid():  # a fork without Python's hooks; beside a wait, a call of the system is nothing
            raise forks.forked()
        ended = locked()
        self.when_done(ended.release)
        return acquired(ended, timeout_s)

    async def wait_async(self) -> None:
        """Wait for the end from any event loop."""
        if not self.done:
            await self.ended_on_loop()

    def ended_on_loop(self) -> asyncio.Future[None]:
        """Return a future of the running loop for the end of this batch, which has not ended yet."""
        self.check_home()
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        if self.loop is loop:  # nearly always: its first await has arranged the wake-up
            self.futures.append(ended)
            return ended
        futures = [ended]
        with _COMPLETION:
            if self.loop is None:
                self.loop, self.futures = loop, futures
        here = threading.get_ident()

        def wake() -> None:
            if threading.get_ident() == here:
                _resolve(futures)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, futures)

        self.when_done(wake)
        return ended

    def check_home(self) -> None:
        """Raise Closed if nothing can end this delivery any more: in a forked child, or after the loop has ended."""
        if self.process != _process:
            raise Closed("this record was sent before this process forked: only the parent is told", hint=FORK_HINT)
        if self.queue.loop_ended():
            raise Closed("the event loop that should deliver this record has ended", hint=LOOP_HINT)

    def take_error(self, rows: Iterable[int]) -> TinymqError | None:
        """Return the error of a failed batch, and note that the caller is told of it for these rows."""
        if self.error is not None:
            with _COMPLETION:
                if self.seen is None:
                    self.seen = set()
                self.seen.update(rows)
        return self.error

    def metadata(self) -> BatchMetadata:
        """Return the place of an acknowledged batch."""
        assert self.done, "asked before the end"
        queue = self.queue
        return BatchMetadata(
            queue.topic, queue.partition, self.base_offset, self.count, self.append_time_us, self.duplicate
        )

    def unsent(self) -> list[Unsent]:
        """Return the records of a failed batch whose Delivery has not told the error."""
        error, queue = self.error, self.queue
        assert error is not None, "only a failed batch has unsent records"
        seen, due = self.seen or (), self.due or Due(None, None)
        return [
            Unsent(
                topic=queue.topic,
                partition=queue.partition,
                key=key,
                value=value,
                headers=headers,
                timestamp_us=time_us,
                error=error,
                delay=due.delay,
                deliver_at=due.deliver_at,
            )
            for row, (key, value, headers, time_us) in enumerate(self._records())
            if row not in seen
        ]

    def _records(self) -> list[Row]:
        if self.message is None:
            cells, headers = self.cells, [tuple(self.headers.get(row, ())) for row in range(self.count)]
            return list(zip(cells[1::3], cells[0::3], headers, cells[2::3], strict=True))
        return rows_of(pa.ipc.read_record_batch(self.message, SCHEMA))


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def locked() -> threading.Lock:
    """Return a taken lock, for one thread to wait for and another one to release.

    threading.Event is written in Python: an interrupt in its `wait` may leave it locked, and then the loop that sets it
    would wait for ever.
    """
    lock = threading.Lock()
    lock.acquire()
    return lock


def acquired(lock: threading.Lock, timeout_s: float | None) -> bool:
    """Wait until the lock is released. False: not within `timeout_s`.

    Only the main thread runs the functions of signals. The system may interrupt another thread for a signal, and then a
    longer wait would see neither Ctrl-C nor SIGTERM before its end. So it is made of short ones.
    """
    left_s = math.inf if timeout_s is None else timeout_s
    while left_s > SIGNAL_S:
        if lock.acquire(timeout=SIGNAL_S):
            return True
        left_s -= SIGNAL_S
    return lock.acquire(timeout=left_s)
