"""The send queue of one partition of one producer: which batch is sent next, and what an answer means. Pure.

    QUEUED -take-> SENT -acknowledged-> (ended)
                   SENT -refused-> AGAIN     certainly not written: may get a new sequence number
                   SENT -lost----> AGAIN     may have been written (unclear): keeps its sequence and epoch
                   SENT -given up> AGAIN     the same, until a late answer says that this attempt was not written
                   AGAIN -take-> SENT        only when no other attempt is in flight, and in order
    any -deadline-> (ended: OutcomeUnknown when unclear; else QuotaExceeded if that was the last answer;
                    else DeadlineExceeded)

Draining keeps the order: after a failure nothing is sent until every attempt in flight has ended; then all batches are
sent again, first to last. A batch that ends with an unknown outcome may or may not leave a gap in the sequence: the
queue is `torn`. The batches behind it get a new epoch, from sequence 0, except a batch that is itself unclear.
Semantics: Kafka's idempotent producer (KIP-98, KIP-360). The time is an argument.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from tinymq.base.errors import DeadlineExceeded, OutcomeUnknown, QuotaExceeded, TinymqError
from tinymq.base.retry import Backoff
from tinymq.client.produce.producer_batch import ProducerBatch

Ended = tuple[ProducerBatch, TinymqError]

BACKOFF = Backoff(0.02, 1.0)
LAST_ATTEMPT_S = 0.1  # with less time left, a refused batch is not sent again: the answer would come too late
PARTIAL_INFLIGHT_MAX = 2  # while this many batches are in flight, a batch that is not full waits and becomes fuller


class QueueOwner(Enum):
    """The owner of a send queue, which alone may touch the batches in flight."""

    NOBODY = 0
    LOOP = 1
    THREAD = 2  # a thread that delivers a lone record by itself (tinymq/client/produce/blocking_sender.py)


class SendQueue:
    """The batches of one partition that wait or are in flight.

    The batcher's lock guards `open`, `sealed` and `owner`. Everything else belongs to the owner.
    """

    __slots__ = (
        "_draining", "_in_flight", "_limit", "_next_sequence", "_numbered", "_staged", "_torn", "_written_sequence",
        "epoch", "failures", "loop_ended", "open", "owner", "partition", "refusal", "resume_s", "sealed", "topic",
        "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        *,
        limit: int,
        numbered: bool,
        staged: bool = False,
        loop_ended: Callable[[], bool] = bool,
    ) -> None:
        """`limit` is the maximum of batches in flight. With `numbered`, batches get sequence numbers and may be sent
        again. `loop_ended` returns True once the event loop that sends the batches is closed.

        With `staged`, the batches belong to a transaction. Each takes one number, however many records it has. No new
        epoch begins: a transaction that has lost a batch cannot be committed, so nothing is sent behind it.
        """
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.open: ProducerBatch | None = None  # being filled
        self.sealed: deque[ProducerBatch] = deque()  # full or due, in order; sent once encoded
        # Invariant: NOBODY only if nothing is sealed or in flight, or if the loop was woken to take the queue.
        self.owner = QueueOwner.NOBODY
        self.resume_s = 0.0  # monotonic time before which nothing is sent
        self.failures = 0  # failed attempts in a row
        self.refusal: TinymqError | None = None  # the error of the last failure, until a batch is acknowledged
        self.epoch = 0  # of the producer at this partition; rises when the queue is torn
        self.loop_ended = loop_ended
        self._limit = limit
        self._numbered = numbered
        self._staged = staged
        self._in_flight: list[ProducerBatch] = []  # SENT or AGAIN, in order
        self._draining = False  # invariant: if True, some batch of _in_flight is SENT
        self._torn = False  # whether the next number would follow a gap, so that a new epoch has to begin first
        # Sequence numbers of this epoch. No number may go to two batches: the broker would answer the second one as a
        # duplicate, and it would be lost.
        self._written_sequence = 0  # the first number that is not known to be written
        self._next_sequence = 0  # the number of the next batch; invariant when it is given out: >= _written_sequence

    @property
    def idle(self) -> bool:
        """Is nothing sealed or in flight?"""
        return not self.sealed and not self._in_flight

    @property
    def written(self) -> int:
        """How many sequence numbers are known to be written. Of a transaction: how many batches are staged."""
        return self._written_sequence

    @property
    def takes_partial(self) -> bool:
        """May a batch that is due but not full be sealed now? While a thread sends a lone record, it grows instead."""
        few = len(self._in_flight) < min(self._limit, PARTIAL_INFLIGHT_MAX)
        return few and not self.sealed and self.owner is not QueueOwner.THREAD

    @property
    def in_flight(self) -> tuple[ProducerBatch, ...]:
        """The batches that were taken and have not ended, in order."""
        return tuple(self._in_flight)

    @property
    def deadline_s(self) -> float:
        """The earliest deadline of a batch; infinite if there is none."""
        sealed = self.sealed[0].deadline_s if self.sealed else math.inf
        return min((b.deadline_s for b in self._in_flight), default=sealed)

    def take(self, now_s: float) -> ProducerBatch | None:
        """Take the batch to send now, marked as sent and, in a numbered queue, with epoch and sequence. None: wait."""
        if self._draining or now_s < self.resume_s or (self._staged and self._torn):
            return None
        # A batch that failed goes before every batch that was never sent.
        for place, batch in enumerate(self._in_flight):
            if not batch.sent:
                over = isinstance(self.refusal, QuotaExceeded) and not batch.unclear
                if over and batch.deadline_s - now_s < LAST_ATTEMPT_S:
                    return None
                return self._again(place, batch, now_s)
        if self._torn and self._in_flight:
            return None  # unclear batches end in their own epoch, before the new one begins
        if not self.sealed or self.sealed[0].message is None or len(self._in_flight) >= self._limit:
            return None
        if self._torn:
            self._begin_epoch()
        elif not self._in_flight:  # batches that were rejected or timed out have used no number
            self._next_sequence = self._written_sequence
        batch = self.sealed[0]
        self._in_flight.append(batch)  # before it leaves `sealed`: `flush` reads that first, and must miss no batch
        self.sealed.popleft()
        self._number(batch)
        return self._send(batch, now_s)

    def _again(self, place: int, batch: ProducerBatch, now_s: float) -> ProducerBatch | None:
        if place == 0:
            self._next_sequence = self._written_sequence
        if batch.unclear:
            # Later batches may be acknowledged already, if a lost attempt of this batch arrived after all.
            self._next_sequence = max(self._next_sequence, self._behind(batch))
            return self._send(batch, now_s)
        if self._torn:
            # A certain batch waits for the new epoch, and the new epoch for the unclear batches of this one.
            later_unclear = next((b for b in self._in_flight if b.unclear), None)
            if later_unclear is not None:
                return self._send(later_unclear, now_s) if not later_unclear.sent else None
            if any(b.sent for b in self._in_flight):
                return None
            self._begin_epoch()
        self._number(batch)
        return self._send(batch, now_s)

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self._torn = False
        self._written_sequence = self._next_sequence = 0

    def _number(self, batch: ProducerBatch) -> None:
        if self._numbered:
            assert self._next_sequence >= self._written_sequence, "a sequence would be given twice"
            batch.epoch, batch.first_sequence = self.epoch, self._next_sequence
            self._next_sequence = self._behind(batch)

    def _behind(self, batch: ProducerBatch) -> int:
        """The number behind those of a numbered batch."""
        return batch.first_sequence + (1 if self._staged else batch.count)

    def _send(self, batch: ProducerBatch, now_s: float) -> ProducerBatch:
        batch.sent = True
        batch.attempt_s = now_s
        return batch

    def acknowledged(self, batch: ProducerBatch) -> None:
        """Remove a batch that the broker has written. The caller ends its delivery."""
        self._remove(batch)
        self.failures = 0
        self.refusal = None
        if self._numbered and batch.epoch == self.epoch:
            self._written_sequence = max(self._written_sequence, self._behind(batch))
            self._next_sequence = max(self._next_sequence, self._written_sequence)

    def refused(self, batch: ProducerBatch, now_s: float, delay_s: float | None = None) -> None:
        """Send the batch again: this attempt was certainly not written. `delay_s`: the pause that the broker wants."""
        self._fail(batch, now_s, delay_s)

    def lost(self, batch: ProducerBatch, now_s: float, error: TinymqError) -> list[Ended]:
        """Send the batch again under its number: this attempt may have been written. Without numbers, end it."""
        if not self._numbered:
            self._remove(batch)
            return [(batch, _unknown(batch, error))]
        batch.unknown = True
        self._fail(batch, now_s, None)
        return []

    def given_up(self, batch: ProducerBatch, now_s: float) -> None:
        """Give up an attempt at a former leader that has not answered, because a new leader is known. The former leader
        may still answer: see `answered_late`."""
        assert self._numbered, "without sequences two attempts could both be written"
        batch.unanswered |= {batch.request_id}
        self._fail(batch, now_s, None)

    def answered_late(self, batch: ProducerBatch, request_id: int, *, unknown: bool) -> None:
        """An attempt that was given up has failed. Either it was not written, or its outcome stays `unknown` because
        its connection has broken."""
        batch.unanswered -= {request_id}
        batch.unknown = batch.unknown or unknown
        self.end_pause()

    def out_of_sequence(self, batch: ProducerBatch, now_s: float, error: TinymqError) -> list[Ended]:
        """The broker lacks an earlier batch, or does not know this producer."""
        if batch is not self._in_flight[0]:
            self._fail(batch, now_s, 0.0)  # because an earlier batch failed: this one is sent again behind it
            return []
        self._torn = True
        if batch.unknown or self._staged:
            self._remove(batch)
            self._drain()
            return [(batch, _unknown(batch, error) if batch.unknown else error)]
        # While attempts are unanswered, the batch is sent again under its number. Once all are refused, it gets a new
        # epoch.
        self._fail(batch, now_s, None)
        return []

    def back_off(self, now_s: float) -> None:
        """Send nothing for a while. The pause grows with every failure in a row."""
        self.failures += 1
        self.resume_s = max(self.resume_s, now_s + BACKOFF.pause_s(self.failures))

    def end_pause(self) -> None:
        """Send again at once, because another leader is known."""
        self.resume_s = 0.0

    def rejected(self, batch: ProducerBatch, error: TinymqError) -> Ended:
        """End a batch that the broker will never write. Later batches get new numbers once nothing is in flight."""
        self._remove(batch)
        self._drain()
        if batch.unclear:
            self._torn = True
            return (batch, _unknown(batch, error))
        return (batch, error)

    def expire(self, now_s: float, trouble: Callable[[], str] = str) -> list[Ended]:
        """End every batch whose deadline has passed. `trouble` returns the reason for the error's text."""
        ended: list[Ended] = []
        for batch in [b for b in self._in_flight if b.deadline_s <= now_s]:
            unclear = batch.sent or batch.unclear
            self._remove(batch)
            ended.append(self._expired(batch, unclear, trouble()))
        while self.sealed and self.sealed[0].deadline_s <= now_s:
            ended.append(self._expired(self.sealed.popleft(), False, trouble()))
        if ended:
            self._drain()
        return ended

    def abandon(self, error: TinymqError) -> list[Ended]:
        """End every batch, because the topic was deleted or the producer closes. Sent batches may have been written."""
        ended = [(b, _unknown(b, error) if b.sent or b.unclear else error) for b in self._in_flight]
        for batch in self._in_flight:
            batch.sent = False  # a late answer is ignored
        self._in_flight.clear()
        self._draining = False
        while self.sealed:
            ended.append((self.sealed.popleft(), error))
        self._torn = True
        return ended

    def withdraw(self) -> list[ProducerBatch]:
        """Remove and return, in order, the batches that may go to another partition.

        These batches are not bound to this partition, and certainly not written. The owner calls this under the
        batcher's lock.
        """
        # If one attempt may have been written, the batches behind it keep their numbers, too.
        movable = not any(batch.sent or batch.unclear for batch in self._in_flight)
        free = [batch for batch in self._in_flight if movable and not batch.bound]
        for batch in free:
            self._remove(batch)
        waiting = [batch for batch in self.sealed if batch.message is not None and not batch.bound]
        for batch in waiting:
            self.sealed.remove(batch)
        return free + waiting

    def forget(self, batch: ProducerBatch) -> None:
        """Remove a batch whose thread was interrupted at an unknown step, and begin a new epoch with the next batch."""
        self._torn = True
        self._draining = False
        for queue in (self.sealed, self._in_flight):
            while batch in queue:
                queue.remove(batch)

    def _expired(self, batch: ProducerBatch, unclear: bool, trouble: str) -> Ended:
        because = f": {trouble}" if trouble else ""
        if unclear:
            self._torn = True
            return (batch, _unknown(batch, OutcomeUnknown(f"no answer before the deadline{because}")))
        return (batch, self.unwritten(f"not delivered before the deadline, and not written{because}"))

    def unwritten(self, what: str, hint: str | None = None) -> TinymqError:
        """Return the error of a batch that was certainly not written: QuotaExceeded if that was the last refusal."""
        text, last = f"{self.topic}/{self.partition}: {what}", self.refusal
        if isinstance(last, QuotaExceeded):
            return QuotaExceeded(text, hint=last.hint, **last.detail)
        return DeadlineExceeded(text, hint=hint)

    def _fail(self, batch: ProducerBatch, now_s: float, delay_s: float | None) -> None:
        batch.sent = False
        self._drain()
        if delay_s is None:
            self.back_off(now_s)
        else:
            self.resume_s = max(self.resume_s, now_s + delay_s)

    def _remove(self, batch: ProducerBatch) -> None:
        self._in_flight.remove(batch)
        batch.sent = False
        if self._draining:
            self._drain()

    def _drain(self) -> None:
        self._draining = any(b.sent for b in self._in_flight)


class SenderTransaction(Protocol):
    """The transaction of all batches of a sender, as the sender uses it. All calls are made on the loop."""

    def admits(self, queue: SendQueue, then: Callable[[], None]) -> bool:
        """Is the queue's partition in the transaction? If not, it is added, and `then` is called when it is in."""
        ...

    def place_of(self, batch: ProducerBatch) -> bytes:
        """Return the place of a numbered batch in the transaction, as it is sent: a BatchTransaction."""
        ...

    def failed(self, error: TinymqError) -> None:
        """Note that a batch has failed. The transaction cannot be committed any more."""
        ...


def _unknown(batch: ProducerBatch, error: TinymqError) -> OutcomeUnknown:
    where = f"{batch.queue.topic}/{batch.queue.partition}"
    return OutcomeUnknown(f"{where}: it may have been written: {error.message}", **error.detail)
