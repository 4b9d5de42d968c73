"""One partition of one producer: which batch goes next, and what an answer means for it. Pure.

    QUEUED -take-> SENT -acknowledged-> (ended)
                   SENT -refused-> AGAIN     definitely not written: may get a new number
                   SENT -lost----> AGAIN     may have been written (unclear): keeps its sequence and epoch
                   SENT -given up> AGAIN     the same, until a late answer says that this attempt was not written
                   AGAIN -take-> SENT        only when nothing else is on its way, and in order
    any -its time is up-> (ended: OutcomeUnknown when unclear; else QuotaExceeded if that was the last answer;
                          else DeadlineExceeded)

Order is kept by draining: after a failure nothing is sent until every attempt on its way has ended; then all
go again, first to last. A batch that ends with an unknown outcome leaves a hole that may or may not be one
(`torn`): what follows it goes under a new epoch, from sequence 0, but never a batch that is itself unclear.
Semantics: Kafka's idempotent producer (KIP-98, KIP-360). The time is an argument.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from enum import Enum

from tinymq.base.errors import DeadlineExceeded, OutcomeUnknown, QuotaExceeded, TinymqError
from tinymq.base.retry import Backoff
from tinymq.client.produce.delivery import ProducerBatch

Ended = tuple[ProducerBatch, TinymqError]

BACKOFF = Backoff(0.02, 1.0)
LAST_ATTEMPT_S = 0.1  # with less time left, the answer there was is better than one that may not come
PARTIAL_INFLIGHT_MAX = 2  # with so many on their way a batch that is not full waits: it will be fuller


class Owner(Enum):
    """Who may touch what is on its way."""

    NOBODY = 0
    LOOP = 1
    THREAD = 2  # one that delivers a lone record by itself (tinymq/client/produce/blocking_sender.py)


class SendQueue:
    """What is queued and on its way for one partition. `open`, `sealed` and `owner` belong to the batcher's lock, the
    rest to the owner."""

    __slots__ = (
        "_draining", "_in_flight", "_limit", "_next_sequence", "_numbered", "_torn", "_written_sequence", "epoch",
        "failures", "loop_ended", "open", "owner", "partition", "refusal", "resume_s", "sealed", "topic", "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        *,
        limit: int,
        numbered: bool,
        loop_ended: Callable[[], bool] = bool,
    ) -> None:
        """`loop_ended` returns True once the event loop that sends the send queue's batches is closed."""
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.open: ProducerBatch | None = None  # being filled
        self.sealed: deque[ProducerBatch] = deque()  # full or due, in order; sent once encoded
        self.owner = Owner.NOBODY  # while something is sealed or on its way: not that, unless the loop was woken for it
        self.resume_s = 0.0  # nothing is sent before
        self.failures = 0  # in a row
        self.refusal: TinymqError | None = None  # what the last of them said
        self.epoch = 0
        self.loop_ended = loop_ended
        self._limit = limit
        self._numbered = numbered
        self._in_flight: list[ProducerBatch] = []  # SENT or AGAIN, in order
        self._draining = False  # invariant: some of _flight is SENT
        self._torn = False
        # In this epoch. A number given twice would be answered as a duplicate, and the second batch be lost.
        self._written_sequence = 0  # the first not known to be written
        self._next_sequence = 0  # invariant when a number is given: >= _written_sequence

    @property
    def idle(self) -> bool:
        """Nothing is sealed or on its way."""
        return not self.sealed and not self._in_flight

    @property
    def takes_partial(self) -> bool:
        """Should a batch that is due, but not full, be sealed now? Behind a lone record it waits, and grows."""
        few = len(self._in_flight) < min(self._limit, PARTIAL_INFLIGHT_MAX)
        return few and not self.sealed and self.owner is not Owner.THREAD

    @property
    def in_flight(self) -> tuple[ProducerBatch, ...]:
        return tuple(self._in_flight)

    @property
    def deadline_s(self) -> float:
        """When the first batch's time is up; infinite if there is none."""
        sealed = self.sealed[0].deadline_s if self.sealed else math.inf
        return min((b.deadline_s for b in self._in_flight), default=sealed)

    def take(self, now_s: float) -> ProducerBatch | None:
        """The batch to send now, if any: marked as sent and, in a numbered send queue, with epoch and sequence."""
        if self._draining or now_s < self.resume_s:
            return None
        for place, batch in enumerate(self._in_flight):
            if not batch.sent:
                over = isinstance(self.refusal, QuotaExceeded) and not batch.unclear
                if over and batch.deadline_s - now_s < LAST_ATTEMPT_S:
                    return None
                return self._again(place, batch, now_s)
        if self._torn and self._in_flight:
            return None  # unclear batches end first: the new epoch must not come between
        if not self.sealed or self.sealed[0].message is None or len(self._in_flight) >= self._limit:
            return None
        if self._torn:
            self._begin_epoch()
        elif not self._in_flight:  # what was rejected or timed out used no sequence
            self._next_sequence = self._written_sequence
        batch = self.sealed[0]
        self._in_flight.append(batch)  # before it leaves the other: who flushes looks at that first
        self.sealed.popleft()
        self._number(batch)
        return self._send(batch, now_s)

    def _again(self, place: int, batch: ProducerBatch, now_s: float) -> ProducerBatch | None:
        if place == 0:
            self._next_sequence = self._written_sequence
        if batch.unclear:
            # Later ones may be acknowledged already, when a lost attempt of this one arrived after all.
            self._next_sequence = max(self._next_sequence, batch.first_sequence + batch.count)
            return self._send(batch, now_s)
        if self._torn:
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
            self._next_sequence += batch.count

    def _send(self, batch: ProducerBatch, now_s: float) -> ProducerBatch:
        batch.sent = True
        batch.attempt_s = now_s
        return batch

    def acknowledged(self, batch: ProducerBatch) -> None:
        """The broker has it. The caller ends the delivery."""
        self._remove(batch)
        self.failures = 0
        self.refusal = None
        if self._numbered and batch.epoch == self.epoch:
            self._written_sequence = max(self._written_sequence, batch.first_sequence + batch.count)
            self._next_sequence = max(self._next_sequence, self._written_sequence)

    def refused(self, batch: ProducerBatch, now_s: float, delay_s: float | None = None) -> None:
        """This attempt was definitely not written; a later one may be. `delay_s`: the broker's own wish."""
        self._fail(batch, now_s, delay_s)

    def lost(self, batch: ProducerBatch, now_s: float, error: TinymqError) -> list[Ended]:
        """Nobody knows whether this attempt was written. Without sequences that is the end."""
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
        """The broker misses what came before, or does not know this producer."""
        if batch is not self._in_flight[0]:
            self._fail(batch, now_s, 0.0)  # only because an earlier one failed: it goes again behind that one
            return []
        self._torn = True
        if batch.unknown:
            self._remove(batch)
            self._drain()
            return [(batch, _unknown(batch, error))]
        # While attempts are unanswered, the batch is sent again under its number. Once all are refused, it gets a new
        # epoch.
        self._fail(batch, now_s, None)
        return []

    def back_off(self, now_s: float) -> None:
        """Send nothing for a while. The pause grows with every failure in a row."""
        self.failures += 1
        self.resume_s = max(self.resume_s, now_s + BACKOFF.pause_s(self.failures))

    def end_pause(self) -> None:
        """What there was to wait for has happened: another leader is known."""
        self.resume_s = 0.0

    def rejected(self, batch: ProducerBatch, error: TinymqError) -> Ended:
        """The broker will never take it. What follows is numbered anew, once nothing is on its way."""
        self._remove(batch)
        self._drain()
        if batch.unclear:
            self._torn = True
            return (batch, _unknown(batch, error))
        return (batch, error)

    def expire(self, now_s: float, trouble: Callable[[], str] = str) -> list[Ended]:
        """End every batch whose time is up. `trouble` says what stood against it."""
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
        """End everything: the topic is gone, or the producer closes. What was sent is of unknown outcome."""
        ended = [(b, _unknown(b, error) if b.sent or b.unclear else error) for b in self._in_flight]
        for batch in self._in_flight:
            batch.sent = False  # a late answer is to nobody
        self._in_flight.clear()
        self._draining = False
        while self.sealed:
            ended.append((self.sealed.popleft(), error))
        self._torn = True
        return ended

    def withdraw(self) -> list[ProducerBatch]:
        """Remove and return, in order, the batches that may go to another partition: they are not bound to this one,
        and certainly not written. The owner calls this under the batcher's lock."""
        still = not any(batch.sent or batch.unclear for batch in self._in_flight)  # otherwise they keep their numbers
        free = [batch for batch in self._in_flight if still and not batch.bound]
        for batch in free:
            self._remove(batch)
        waiting = [batch for batch in self.sealed if batch.message is not None and not batch.bound]
        for batch in waiting:
            self.sealed.remove(batch)
        return free + waiting

    def forget(self, batch: ProducerBatch) -> None:
        """Its thread was interrupted, and nobody knows between which steps: no number of this epoch is given again."""
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
        """The error of what was certainly not written, each with its own: who is over a bound hears of that."""
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


def _unknown(batch: ProducerBatch, error: TinymqError) -> OutcomeUnknown:
    where = f"{batch.queue.topic}/{batch.queue.partition}"
    return OutcomeUnknown(f"{where}: it may have been written: {error.message}", **error.detail)
