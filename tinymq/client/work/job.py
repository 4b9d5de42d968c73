"""A job: a record that is leased to this worker, and the verbs that settle it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING

from tinymq.base.errors import InvalidRequest
from tinymq.client.consume.records import Message
from tinymq.client.work.grants import Grant, Verb

if TYPE_CHECKING:
    from tinymq.client.work.partition_work import PartitionWork

ERROR_LENGTH_MAX = 4096  # what a broker keeps of the error of a nack or a reject
DELAY_S_MAX = 30 * 86_400.0


class State(Enum):
    """What has become of a job."""

    WAITING = 0  # leased, and not handed out
    STARTED = 1  # in the application's hand
    SETTLED = 2  # by the application; the answer may not have come yet
    RELEASED = 3  # given back, without having been handed out
    LOST = 4  # another worker may have it


class Job:
    """One record of a queue group. Its verbs only send: none of them waits for a broker, and each thread may call them.

        for job in worker:
            handle(job.value)
            job.ack()

    A job that is not settled stays leased as long as its worker lives. What can no longer be settled is told by the
    worker's `on_lost`, and raised by `worker.flush()`.
    """

    __slots__ = ("_settle", "bytes", "freed", "grant", "message", "partition_work", "since_s", "state")

    def __init__(
        self,
        message: Message,
        grant: Grant,
        partition_work: PartitionWork,
        settle: Callable[[Job, Verb, float | None, str], None],
        size: int,
    ) -> None:
        self.message = message
        self.grant = grant
        self.partition_work = partition_work
        self.state = State.WAITING
        self.since_s = 0.0  # when it was granted, or handed out
        self.bytes = size  # of credit
        self.freed = False  # whether the leader may grant another record instead of it
        self._settle = settle

    def __repr__(self) -> str:
        return f"<Job {self.topic}/{self.partition} at {self.offset}, delivery {self.delivery}>"

    @property
    def topic(self) -> str:
        return self.message.topic

    @property
    def partition(self) -> int:
        return self.message.partition

    @property
    def offset(self) -> int:
        return self.message.offset

    @property
    def key(self) -> bytes | None:
        return self.message.key

    @property
    def value(self) -> bytes | None:
        return self.message.value

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        return self.message.headers

    @property
    def timestamp(self) -> datetime:
        """The sender's time, in UTC."""
        return self.message.timestamp

    @property
    def delivery(self) -> int:
        """1 for the first delivery, and one more after each that failed."""
        return self.grant.delivery

    @property
    def in_hand(self) -> bool:
        """Whether this worker has the job and has not settled it yet."""
        return self.state is State.STARTED

    def header(self, name: str) -> bytes | None:
        """Return the value of the last header of that name; None if there is none."""
        return self.message.header(name)

    def ack(self) -> None:
        """The record is done. A second call, of any of the verbs, does nothing."""
        if self.state is State.STARTED:
            self.state = State.SETTLED
            self._settle(self, Verb.ACK, None, "")

    def nack(self, delay: float | None = None, error: str = "") -> None:
        """This delivery failed: deliver the record again after `delay` seconds, or after the group's next delay.

        `error`: for people; the last 4 KiB are kept. Raises InvalidRequest (delay).
        """
        if delay is not None and not 0 <= delay <= DELAY_S_MAX:
            raise InvalidRequest(f"delay={delay!r}", hint=f"pass seconds, from 0 to {DELAY_S_MAX:g}, or None")
        if self.state is State.STARTED:
            self.state = State.SETTLED
            self._settle(self, Verb.NACK, delay, error[-ERROR_LENGTH_MAX:])

    def reject(self, reason: str = "") -> None:
        """No delivery of this record can succeed: it goes to the dead letters."""
        if self.state is State.STARTED:
            self.state = State.SETTLED
            self._settle(self, Verb.REJECT, None, reason[-ERROR_LENGTH_MAX:])

    def extend(self) -> None:
        """Begin the lease again. The worker does this by itself while it lives."""
        if self.state is State.STARTED:
            self._settle(self, Verb.EXTEND, None, "")
