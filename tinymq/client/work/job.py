"""A job: a record that is leased to this worker, and the verbs that settle it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Literal, overload

from tinymq.base.errors import InvalidRequest, LeaseLost, TinymqError
from tinymq.client.consume.records import Message
from tinymq.client.work.grants import Grant, Verb

if TYPE_CHECKING:
    from tinymq.client.work.partition_work import PartitionWork

ERROR_LENGTH_MAX = 4096  # bytes that a broker keeps of the error of a nack or a reject
DELAY_S_MAX = 30 * 86_400.0


class JobState(Enum):
    """The state of a job."""

    WAITING = 0  # leased, and not handed out
    TAKEN = 1  # in the application's hand, which has not begun it
    STARTED = 2  # begun by the application: if its process dies, the delivery has failed
    SETTLED = 3  # by the application; the answer may not have come yet
    RELEASED = 4  # given back, without having been begun
    LOST = 5  # another worker may have it
    STAGED = 6  # acked in a transaction, which settles it if it is committed


UNSTARTED = (JobState.WAITING, JobState.TAKEN, JobState.RELEASED)
IN_HAND = (JobState.TAKEN, JobState.STARTED)
OUTCOMES = {Verb.ACK: "acknowledged", Verb.NACK: "nacked", Verb.REJECT: "rejected", Verb.RELEASE: "released"}


class Answer:
    """The answer to a settlement that somebody waits for. All on the client's loop."""

    __slots__ = ("arrived", "error")

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.error: TinymqError | None = None

    def give(self, error: TinymqError | None) -> None:
        """The settlement is done, or has failed with an error."""
        self.error = error
        self.arrived.set()


class Job:
    """One record of a queue group. Its verbs only send, and each thread may call them. None of them waits for a broker,
    except `ack(wait=True)`.

        for job in worker:
            handle(job.value)
            job.ack()

    A job that is not settled stays leased as long as its worker lives. The worker's `on_lost` reports jobs that can no
    longer be settled, and `worker.flush()` raises LeaseLost for them. The first of ack, nack, reject and release
    decides: the same verb again does nothing, and another one raises InvalidRequest. No verb raises for a job that was
    lost. A job that a transaction has acked (`tx.ack(job)`) is the transaction's: every verb but `extend` raises
    InvalidRequest.

    `grant` orders the deliveries of a record: of two, the later one has the greater `(grant.term, grant.number)`. A
    database that keeps it can refuse the write of a worker that lost its lease.

    With `start=False` a batch is charged only for the jobs that it has begun:

        for job in worker.poll(timeout=5.0, start=False):
            print(job.topic, job.partition, job.offset, job.delivery, job.timestamp, job.key, job.headers, job.in_hand)
            print(job.message.timestamp_us)
            if job.header("to") is None:
                job.start()
                job.reject("nobody to send it to")
            elif busy():
                job.release()
            else:
                job.start()
                job.extend()
                job.nack(delay=60.0, error="the mail server rests")
    """

    __slots__ = (
        "_ack_sent", "_answer", "_bytes", "_counted", "_freed", "_loss", "_message", "_partition_work", "_settle",
        "_settled_by", "_since_s", "_state", "grant",
    )  # fmt: skip

    def __init__(
        self,
        message: Message,
        grant: Grant,
        partition_work: PartitionWork,
        settle: Callable[[Job, Verb, float | None, str], None],
        size: int,
    ) -> None:
        # This whole room uses the names with an underscore. Applications see the others.
        self._message = message
        self.grant = grant
        self._partition_work = partition_work
        self._state = JobState.WAITING
        self._since_s = 0.0  # when it was granted, or handed out
        self._bytes = size  # of credit
        self._freed = False  # whether the leader may grant another record instead of it
        self._ack_sent = False  # to any leader: some leader may have carried it out without an answer
        self._answer: Answer | None = None  # while `ack(wait=True)` waits
        self._counted = -1  # the number of the worker's flush that will tell of its loss
        self._loss: TinymqError | None = None  # why another worker may have the record
        self._settle = settle
        self._settled_by: Verb | None = None  # the application's verb that decided

    def __repr__(self) -> str:
        return f"<Job {self.topic}/{self.partition} at {self.offset}, delivery {self.delivery}>"

    @property
    def message(self) -> Message:
        """The record as a Message: for a function that takes the records of readers and of workers."""
        return self._message

    @property
    def topic(self) -> str:
        """The name of the record's topic."""
        return self._message.topic

    @property
    def partition(self) -> int:
        """The number of the record's partition."""
        return self._message.partition

    @property
    def offset(self) -> int:
        """The record's offset in its partition."""
        return self._message.offset

    @property
    def key(self) -> bytes | None:
        """The record's key; None if it has none."""
        return self._message.key

    @property
    def value(self) -> bytes | None:
        """The record's value."""
        return self._message.value

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """The record's headers, as (name, value), in their order."""
        return self._message.headers

    @property
    def timestamp(self) -> datetime:
        """The sender's time, in UTC."""
        return self._message.timestamp

    @property
    def delivery(self) -> int:
        """1 for the first delivery, and one more after each that failed."""
        return self.grant.delivery

    @property
    def in_hand(self) -> bool:
        """Whether this worker has the job and has not settled it yet."""
        return self._state in IN_HAND

    def header(self, name: str) -> bytes | None:
        """Return the value of the last header of that name; None if there is none."""
        return self._message.header(name)

    def start(self) -> None:
        """Begin a job of `worker.poll(start=False)`. From now on a crash counts as a failed delivery."""
        if self._state is JobState.TAKEN:
            self._state = JobState.STARTED
            self._settle(self, Verb.START, None, "")

    @overload
    def ack(self) -> None: ...

    @overload
    def ack(self, *, wait: Literal[True], timeout: float | None = None) -> Awaitable[None]: ...

    def ack(self, *, wait: bool = False, timeout: float | None = None) -> Awaitable[None] | None:
        """The record is done. Durable when `worker.flush()`, or the worker's `with` block, has ended.

        With `wait`, durable when this returns: the settlement is on a majority of disks. A thread waits in the call; in
        a coroutine on the client's loop, write `await job.ack(wait=True)`. Raises LeaseLost if the record is delivered
        again, or was; OutcomeUnknown if there is no answer after `timeout` seconds (request_timeout_ms), or if the
        worker is closed meanwhile; otherwise the error that ended the worker. Raises InvalidRequest after nack, reject
        or release.
        """
        self._decide(Verb.ACK, None, "")
        return self._partition_work.wait(self, timeout) if wait else None

    def nack(self, delay: float | None = None, error: str = "") -> None:
        """This delivery failed: deliver the record again after `delay` seconds, or after the group's next delay.

        A record whose last delivery failed becomes a dead letter. `error`: for people; the last 4 KiB are kept. Raises
        InvalidRequest (delay: 0 to 30 days), and after ack, reject or release.
        """
        if delay is not None and not 0 <= delay <= DELAY_S_MAX:
            raise InvalidRequest(f"delay={delay!r}", hint=f"pass seconds, from 0 to {DELAY_S_MAX:g}, or None")
        self._decide(Verb.NACK, delay, error)

    def reject(self, reason: str = "") -> None:
        """No delivery of this record can succeed: it goes to the dead letters. The last 4 KiB of `reason` are kept.

        Raises InvalidRequest after ack, nack or release.
        """
        self._decide(Verb.REJECT, None, reason)

    def release(self) -> None:
        """Give the record back, uncharged: another worker, or this one unless it is stopped, may have it at once.

        Only for a job that is not begun, of `worker.poll(start=False)`. Raises InvalidRequest for one that is begun,
        and after ack, nack or reject.
        """
        if self._state is JobState.STARTED:
            hint = "take jobs by poll(start=False), or use nack(delay=0), which counts as a failed delivery"
            raise InvalidRequest(f"{self!r} is begun: it cannot be given back", hint=hint)
        self._decide(Verb.RELEASE, None, "")

    def extend(self) -> None:
        """Begin the lease again. The worker does this by itself while it lives, up to max_handler_ms."""
        if self.in_hand:
            self._settle(self, Verb.EXTEND, None, "")

    def _stage(self) -> JobState:
        """Let a transaction decide whether the job is settled. Returns the present state, for `_take_back`.

        Raises LeaseLost for a job that is lost, InvalidRequest for one that is settled or acked in a transaction.
        """
        before = self._state
        if self._loss is not None:
            raise LeaseLost(f"{self!r} was lost: {self._loss.message}")
        if before is JobState.STAGED:
            raise InvalidRequest(f"{self!r} is acked in another transaction", hint="ack a job in one transaction")
        if not self.in_hand:
            outcome = "not in hand" if self._settled_by is None else OUTCOMES[self._settled_by]
            raise InvalidRequest(f"{self!r} is {outcome} already", hint="ack it in the transaction only")
        self._state = JobState.STAGED
        return before

    def _take_back(self, before: JobState) -> None:
        """The transaction was rolled back before the ack was staged: the job is in hand again, unless it was lost."""
        self._state = before if self._loss is None else JobState.LOST

    def _give_back(self, error: LeaseLost) -> None:
        """The transaction was rolled back after the ack was staged: any worker gets the record."""
        self._state, self._loss = JobState.LOST, error

    def _decide(self, verb: Verb, delay_s: float | None, error: str) -> None:
        """Settle or release the job. Raises InvalidRequest if another verb or a transaction has decided."""
        if self._state is JobState.STAGED:
            hint = "the transaction settles it: commit it, or roll it back"
            raise InvalidRequest(f"{self!r} is acked in a transaction: {verb.name.lower()}() comes too late", hint=hint)
        if self.in_hand:
            self._settled_by = verb
            self._state = JobState.RELEASED if verb is Verb.RELEASE else JobState.SETTLED
            self._settle(self, verb, delay_s, error[-ERROR_LENGTH_MAX:])
        elif self._state is not JobState.LOST and self._settled_by not in (None, verb):
            outcome = OUTCOMES[self._settled_by]
            hint = "settle a job once: the first of ack, nack, reject and release decides"
            raise InvalidRequest(f"{self!r} is {outcome} already: {verb.name.lower()}() comes too late", hint=hint)
