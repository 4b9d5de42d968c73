"""The handles of records that are being sent: a slotted one per record, delayed or not, and one per `send_batch`.

A Delivery shares the completion of its batch (producer_batch.py).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from typing import Any, Generic, Self, TypeVar

from tinymq.base.errors import TinymqError
from tinymq.base.types import RecordMetadata
from tinymq.base.value import value
from tinymq.client.common.argument_checks import check_wait
from tinymq.client.common.traces import untraced
from tinymq.client.common.values import as_datetime
from tinymq.client.produce.producer_batch import BatchMetadata, ProducerBatch, acquired, locked

LOG = logging.getLogger("tinymq.client")

Result = TypeVar("Result")


@value
class Scheduled:
    """A record that is stored, and that its partition delivers when it is due. It gets its offset then.

    scheduled = mq.send("orders", b"remind 17", delay=3600)
    print(scheduled.partition, scheduled.schedule_id, scheduled.deliver_at)
    """

    topic: str
    partition: int
    schedule_id: int  # unique in its partition, also later; 0: the duplicate of a record that was not delayed
    deliver_at: datetime  # in UTC; not before this, by the clock of the partition's leader
    duplicate: bool = False  # an earlier attempt of the same send, or a record with its message id, is stored already


class _RecordDelivery(ABC, Generic[Result]):
    """The common base of deliveries of one record. Each shares its batch's completion, so it is cheap."""

    __slots__ = ("_batch", "_row")

    # Without __init__, which would take as long again as the rest of the object: `delivery_of` sets both.
    _batch: ProducerBatch
    _row: int

    def done(self) -> bool:
        """Has the delivery ended, in success or failure? Never blocks."""
        return self._batch.done

    def result(self, timeout: float | None = None) -> Result:
        """Wait until the record is acknowledged, and return the result.

        Raises the error that ended the delivery: a definite failure, or OutcomeUnknown. After `timeout` seconds it
        raises TimeoutError, and the record is still being sent.
        """
        error = self.exception(timeout)
        if error is not None:
            raise untraced(error)
        return self._result()

    def exception(self, timeout: float | None = None) -> TinymqError | None:
        """Return the error that ended the delivery; None if the record was acknowledged.

        Blocks as `result` does. Raises TimeoutError after `timeout` seconds.
        """
        if not self._batch.wait(timeout):
            raise TimeoutError(f"not delivered within {timeout} s; it may be delivered later")
        return self._batch.take_error((self._row,))

    def add_done_callback(self, call: Callable[[Self], object]) -> None:
        """Call `call(self)` at the end, in the client's thread; now, if it has ended. `call` must not block."""

        def wake() -> None:
            try:
                call(self)
            except Exception:  # of the caller's own code: it is logged, and must not stop the producer
                LOG.exception("a delivery's callback raised")

        self._batch.when_done(wake)

    def __await__(self) -> Generator[Any, None, Result]:
        batch = self._batch
        if not batch.done:
            yield from batch.ended_on_loop()
        error = None if batch.error is None else batch.take_error((self._row,))
        if error is not None:
            raise untraced(error)
        return self._result()

    def __repr__(self) -> str:
        batch = self._batch
        state = "waiting" if not batch.done else "failed" if batch.error else self._place()
        return f"<{type(self).__name__} {batch.queue.topic}/{batch.queue.partition} {state}>"

    @abstractmethod
    def _result(self) -> Result:
        """The result of a delivery that has succeeded."""

    @abstractmethod
    def _place(self) -> str:
        """The record's place in its partition, for people."""


class Delivery(_RecordDelivery[RecordMetadata]):
    """The delivery of one record. It shares its batch's completion, so it is cheap. Awaitable, and usable in any
    thread.

        delivery = producer.send("orders", b"...")
        delivery.add_done_callback(lambda ended: print(ended.exception()))
        print(delivery.result(timeout=30.0).offset, delivery.done())
    """

    __slots__ = ()

    def _result(self) -> RecordMetadata:
        batch, queue = self._batch, self._batch.queue
        offset = batch.base_offset + self._row if batch.base_offset >= 0 else -1
        return RecordMetadata(queue.topic, queue.partition, offset, batch.append_time_us, batch.duplicate)

    def _place(self) -> str:
        return f"offset {self._batch.base_offset + self._row}"


class ScheduledDelivery(_RecordDelivery[Scheduled]):
    """The way of one delayed record to its partition, which ends when the record is stored there, and not when it is
    delivered. Awaitable, and usable in any thread.

        stored = producer.send("orders", b"remind 17", delay=3600)
        stored.add_done_callback(lambda ended: print(ended.exception()))
        print(stored.result(timeout=30.0).schedule_id, stored.done())
    """

    __slots__ = ()

    def _result(self) -> Scheduled:
        batch, queue = self._batch, self._batch.queue
        assert batch.scheduled is not None, "the sender sets it before the batch ends"
        schedule_id, deliver_at_us = batch.scheduled
        return Scheduled(queue.topic, queue.partition, schedule_id, as_datetime(deliver_at_us), batch.duplicate)

    def _place(self) -> str:
        scheduled = self._result()
        return f"schedule id {scheduled.schedule_id}, due at {scheduled.deliver_at:%Y-%m-%dT%H:%M:%SZ}"


@value
class Staged:
    """A record of a transaction that is on a majority of disks. It gets its offset when the transaction is committed.

    with mq.transaction("billing-4") as tx:
        staged = tx.send("orders", b"...").result(timeout=30.0)
        print(staged.topic, staged.partition)
    """

    topic: str
    partition: int


class StagedDelivery(_RecordDelivery[Staged]):
    """The way of one record of a transaction to its partition, which ends when the record is staged there: nobody sees
    it before the commit. Awaitable, and usable in any thread.

        with mq.transaction("billing-5") as tx:
            staged = tx.send("orders", b"...")
            staged.add_done_callback(lambda ended: print(ended.exception()))
            print(staged.result(timeout=30.0).partition, staged.done())
    """

    __slots__ = ()

    def _result(self) -> Staged:
        return Staged(self._batch.queue.topic, self._batch.queue.partition)

    def _place(self) -> str:
        return "staged"


def delivery_of(batch: ProducerBatch, row: int) -> Delivery:
    """Return the delivery of a batch's record."""
    delivery = Delivery()
    delivery._batch, delivery._row = batch, row
    return delivery


def scheduled_delivery_of(batch: ProducerBatch) -> ScheduledDelivery:
    """Return the delivery of the one record of a delayed batch."""
    delivery = ScheduledDelivery()
    delivery._batch, delivery._row = batch, 0
    return delivery


def staged_delivery_of(delivery: Delivery) -> StagedDelivery:
    """Return the delivery of a record that belongs to a transaction."""
    staged = StagedDelivery()
    staged._batch, staged._row = delivery._batch, delivery._row
    return staged


def hasten(delivery: Delivery | ScheduledDelivery, deadline_s: float) -> None:
    """Bring the deadline of the record's batch forward to `deadline_s`, because its send has waited for room before."""
    delivery._batch.deadline_s = min(delivery._batch.deadline_s, deadline_s)


class BatchDelivery:
    """The delivery of the batches that one send_batch became.

    delivery = producer.send_batch("orders", pa.table({"value": [b"one", b"two"]}))
    delivery.add_done_callback(lambda ended: print(ended.exception()))
    print(delivery.result(timeout=30.0), delivery.done())
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[ProducerBatch]) -> None:
        self._parts = tuple(parts)

    def done(self) -> bool:
        """Have all batches ended?"""
        return all(part.done for part in self._parts)

    def result(self, timeout: float | None = None) -> list[BatchMetadata]:
        """Wait for all batches, and return their places in the order of the rows. Raises as Delivery.result."""
        error = self.exception(timeout)
        if error is not None:
            raise untraced(error)
        return [part.metadata() for part in self._parts]

    def exception(self, timeout: float | None = None) -> TinymqError | None:
        """Return the first error of a batch; None if all were acknowledged.

        Blocks as `result` does. Raises TimeoutError after `timeout` seconds.
        """
        check_wait(timeout)
        for part in self._parts:
            if not part.done:
                part.check_home()
        ended = locked()
        self._when_all_done(ended.release)
        if not acquired(ended, timeout):
            raise TimeoutError(f"not delivered within {timeout} s; it may be delivered later")
        return self._error()

    def add_done_callback(self, call: Callable[[BatchDelivery], object]) -> None:
        """Call `call(self)` once when all batches have ended, as Delivery.add_done_callback does."""

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
            raise untraced(error)
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
            error = part.take_error(range(part.count))
            first = first or error
        return first
