"""What became of a record: one completion per batch, shared by a slotted handle per record.

A batch lives in two threads at most: the one that sends fills it (under the batcher's lock), the loop's ends it, or
that same one, if the record is alone.
Its completion may be waited for from any thread or loop. No I/O.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tinymq.base.errors import Closed, TinymqError, Unsent
from tinymq.base.types import RecordMetadata
from tinymq.base.value import value
from tinymq.client.common.argument_checks import FORK_HINT, check_wait
from tinymq.format.batch import SCHEMA, Codec, Headers, encode

if TYPE_CHECKING:
    from tinymq.client.produce.send_queue import SendQueue

LOG = logging.getLogger("tinymq.client")

# One lock for all batches: it is taken when somebody waits and when a batch ends, never per record.
_COMPLETION = threading.Lock()

LOOP_HINT = "close the AsyncClient, or use it in `async with`, before its event loop ends"


@value
class BatchMetadata:
    """Where an acknowledged batch lies: record i has offset base_offset + i."""

    topic: str
    partition: int
    base_offset: int
    record_count: int
    append_time_us: int
    duplicate: bool = False


class ProducerBatch:
    """Records that travel together, from the first one's send to the end of their delivery."""

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
        "duplicate",
        "epoch",
        "error",
        "first_sequence",
        "headers",
        "message",
        "opened_s",
        "process",
        "queue",
        "request_id",
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
        # Filled by the sender, emptied when encoded. A value, a key and a time for each record, one after the other, so
        # that no interrupt can strike between them; headers are rare: by row.
        self.cells: list[Any] = []
        self.headers: dict[int, Headers] = {}
        self.bound = False  # some record must go to this partition, because it has a key or names the partition
        self.count = 0
        self.bytes = 0  # what the buffer's bound counts
        # Set when encoded.
        self.message: pa.Buffer | None = None
        self.codec = 0
        # The send queue's.
        self.sent = False  # an attempt is on its way
        self.unknown = False  # whether an earlier attempt was written can no longer be found out
        self.unanswered: frozenset[int] = frozenset()  # requests of earlier attempts whose answers may still come
        self.epoch = 0
        self.first_sequence = -1
        self.request_id = 0
        self.attempt_s = 0.0
        # The completion.
        self.process = os.getpid()
        self.done = False
        self.base_offset = -1
        self.append_time_us = 0
        self.duplicate = False
        self.error: TinymqError | None = None
        self.waiters: list[Callable[[], None]] | None = None
        self.seen: set[int] | None = None  # rows of a failed batch whose error somebody has taken

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
        self.codec = codec  # first: who sees a message may send it
        self.message = message
        self.cells, self.headers = [], {}

    def succeed(self, base_offset: int, append_time_us: int, duplicate: bool) -> None:
        self.base_offset, self.append_time_us, self.duplicate = base_offset, append_time_us, duplicate
        self.message = None
        self._end()

    def fail(self, error: TinymqError) -> None:
        self.error = error
        self._end()

    def _end(self) -> None:
        with _COMPLETION:
            self.done = True
            waiters, self.waiters = self.waiters, None
        for waiter in waiters or ():
            waiter()

    def when_done(self, waiter: Callable[[], None]) -> None:
        """Call `waiter` once at the end, from the loop's thread; now, if it has ended. It must not raise."""
        if not self.done:
            with _COMPLETION:
                if not self.done:
                    if self.waiters is None:
                        self.waiters = []
                    self.waiters.append(waiter)
                    return
        waiter()

    def wait(self, timeout_s: float | None) -> bool:
        """Block this thread until the end. False: not within `timeout_s`."""
        check_wait(timeout_s)
        if self.done:
            return True
        self.check_home()
        ended = _locked()
        self.when_done(ended.release)
        return _acquired(ended, timeout_s)

    async def wait_async(self) -> None:
        """Wait for the end from any event loop."""
        if self.done:
            return
        self.check_home()
        loop = asyncio.get_running_loop()
        here = threading.get_ident()
        ended = loop.create_future()

        def resolve() -> None:
            if not ended.done():
                ended.set_result(None)

        def wake() -> None:
            if threading.get_ident() == here:
                resolve()
            elif not loop.is_closed():
                loop.call_soon_threadsafe(resolve)

        self.when_done(wake)
        await ended

    def check_home(self) -> None:
        """Raises Closed where nothing can end this delivery any more: in a forked child, or after its event loop has
        ended."""
        if self.process != os.getpid():
            raise Closed("this record was sent before this process forked: only the parent is told", hint=FORK_HINT)
        if self.queue.loop_ended():
            raise Closed("the event loop that should deliver this record has ended", hint=LOOP_HINT)

    def metadata(self) -> BatchMetadata:
        assert self.done, "asked before the end"
        queue = self.queue
        return BatchMetadata(
            queue.topic, queue.partition, self.base_offset, self.count, self.append_time_us, self.duplicate
        )

    def unsent(self) -> list[Unsent]:
        """The records of a failed batch that nobody has been told about through their Delivery."""
        error, queue = self.error, self.queue
        assert error is not None, "only a failed batch has unsent records"
        seen = self.seen or ()
        return [
            Unsent(queue.topic, queue.partition, key, value, headers, time_us, error)
            for row, (key, value, headers, time_us) in enumerate(self._records())
            if row not in seen
        ]

    def _records(self) -> list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]]:
        if self.message is None:
            cells, headers = self.cells, [tuple(self.headers.get(row, ())) for row in range(self.count)]
            return list(zip(cells[1::3], cells[0::3], headers, cells[2::3], strict=True))
        return rows_of(pa.ipc.read_record_batch(self.message, SCHEMA))


def _locked() -> threading.Lock:
    """What one thread waits for and another one releases. A threading.Event would do the same in Python: who is
    interrupted in it may leave it locked, and the loop that sets it then waits for ever."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def _acquired(lock: threading.Lock, timeout_s: float | None) -> bool:
    return lock.acquire(timeout=-1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))


def rows_of(
    batch: pa.RecordBatch,
) -> list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]]:
    """(key, value, headers, timestamp_us) of every record of a batch of SCHEMA."""
    keys, values = batch.column(0).to_pylist(), batch.column(1).to_pylist()
    return list(zip(keys, values, headers_of(batch.column(2)), times_of(batch.column(3)), strict=True))


def headers_of(column: pa.Array) -> Sequence[tuple[tuple[str, bytes | None], ...]]:
    """The headers of every record, () where there are none."""
    if column.null_count == len(column):
        return ((),) * len(column)
    return [tuple((h["key"], h["value"]) for h in row) if row else () for row in column.to_pylist()]


def times_of(column: pa.Array) -> list[int]:
    """Timestamps as microseconds since 1970 UTC."""
    times: list[int] = column.cast(pa.int64()).to_pylist()
    return times


class Delivery:
    """One record on its way. Cheap: it shares its batch's completion. Usable from any thread, and awaitable."""

    __slots__ = ("_batch", "_row")

    def __init__(self, batch: ProducerBatch, row: int) -> None:
        self._batch = batch
        self._row = row

    def done(self) -> bool:
        """Has it ended, one way or the other? Never blocks."""
        return self._batch.done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record lies. Blocks up to `timeout` seconds, then raises TimeoutError (and goes on being sent).

        Raises what ended the delivery: a definite failure, or OutcomeUnknown.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._metadata()

    def exception(self, timeout: float | None = None) -> TinymqError | None:
        """What ended the delivery, None when it was acknowledged. Blocks as `result` does."""
        if not self._batch.wait(timeout):
            raise TimeoutError(f"not delivered within {timeout} s; it may yet be")
        return self._error()

    def add_done_callback(self, call: Callable[[Delivery], object]) -> None:
        """Call `call(self)` at the end, in the client's thread; at once if it has ended. It must not block."""

        def wake() -> None:
            try:
                call(self)
            except Exception:  # the caller's own code: its failure is reported, and must not stop the producer
                LOG.exception("a delivery's callback raised")

        self._batch.when_done(wake)

    def hasten(self, deadline_s: float) -> None:
        """End by `deadline_s`, with the batch: this send has waited before it got its place."""
        self._batch.deadline_s = min(self._batch.deadline_s, deadline_s)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from self._batch.wait_async().__await__()
        error = self._error()
        if error is not None:
            raise error
        return self._metadata()

    def _error(self) -> TinymqError | None:
        batch = self._batch
        if batch.error is not None:
            with _COMPLETION:
                if batch.seen is None:
                    batch.seen = set()
                batch.seen.add(self._row)
        return batch.error

    def _metadata(self) -> RecordMetadata:
        batch, queue = self._batch, self._batch.queue
        offset = batch.base_offset + self._row if batch.base_offset >= 0 else -1
        return RecordMetadata(queue.topic, queue.partition, offset, batch.append_time_us, batch.duplicate)

    def __repr__(self) -> str:
        batch = self._batch
        state = "waiting" if not batch.done else "failed" if batch.error else f"offset {batch.base_offset + self._row}"
        return f"<Delivery {batch.queue.topic}/{batch.queue.partition} {state}>"


class BatchDelivery:
    """The batches that one send_batch became, on their way."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[ProducerBatch]) -> None:
        self._parts = tuple(parts)

    def done(self) -> bool:
        """Have all batches ended?"""
        return all(part.done for part in self._parts)

    def result(self, timeout: float | None = None) -> list[BatchMetadata]:
        """Where every batch lies, in the order of the rows. Blocks and raises as Delivery.result."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return [part.metadata() for part in self._parts]

    def exception(self, timeout: float | None = None) -> TinymqError | None:
        """The first batch's error that has one."""
        check_wait(timeout)
        for part in self._parts:
            if not part.done:
                part.check_home()
        ended = _locked()
        self._when_all_done(ended.release)
        if not _acquired(ended, timeout):
            raise TimeoutError(f"not delivered within {timeout} s; it may yet be")
        return self._error()

    def add_done_callback(self, call: Callable[[BatchDelivery], object]) -> None:
        """As Delivery.add_done_callback, once, when all batches have ended."""

        def wake() -> None:
            try:
                call(self)
            except Exception:  # as above
                LOG.exception("a delivery's callback raised")

        self._when_all_done(wake)

    def __await__(self) -> Generator[Any, None, list[BatchMetadata]]:
        for part in self._parts:
            yield from part.wait_async().__await__()
        error = self._error()
        if error is not None:
            raise error
        return [part.metadata() for part in self._parts]

    def _when_all_done(self, call: Callable[[], None]) -> None:
        parts = iter(self._parts)

        def step() -> None:
            part = next(parts, None)
            if part is None:
                call()
            else:
                part.when_done(step)

        step()

    def _error(self) -> TinymqError | None:
        first = None
        for part in self._parts:
            if part.error is not None:
                part.seen = set(range(part.count))
                first = first or part.error
        return first
