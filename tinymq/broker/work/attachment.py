"""A worker's attachment to one partition that this broker leads: its credit, and the stream for its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from tinymq.base.errors import TinymqError
from tinymq.broker.groups.lease_values import Era, Grant
from tinymq.broker.work.granted_records import GrantedBatch


class Verb(Enum):
    """A report of a worker about records that it holds."""

    START = "start"
    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    EXTEND = "extend"
    RELEASE = "release"
    EXPIRE = "expire"  # its lease ran out, and the caller cannot be asked: a nack in its name


class Refused(NamedTuple):
    """The grants of a settlement that was refused in part, and the error."""

    error: TinymqError
    grants: list[Grant]


class AttachRequest(NamedTuple):
    """A worker's request to attach to a partition."""

    number: int  # the client's number for the attachment, unique on its stream
    topic_id: bytes
    partition: int
    group: str
    group_id: int
    session: bytes
    held: Sequence[Grant]  # all grants that the worker holds in the partition
    credit_records: int
    credit_bytes: int
    term: int  # the newest term of the partition that the worker has seen


class Attached(NamedTuple):
    """The answer to an attach."""

    term: int
    era: Era
    known: bool  # whether the session was in the applied state before
    lost: list[Grant]
    settled: list[Grant]  # those of `lost` whose acks have succeeded, if they were sent
    lease_s: float
    session_s: float
    rejoin_s: float
    keyed: bool


class WorkerPort(Protocol):
    """The broker's end of a worker's stream. No method waits or raises: a closed stream drops its messages."""

    @property
    def client(self) -> str:
        """The worker's client id, or its host."""
        ...

    @property
    def heard_s(self) -> float:
        """Monotonic time of the newest message of the worker."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether too many bytes wait to be sent. Until they are, the worker gets no more records."""
        ...

    def attached(self, attachment: int, answer: Attached) -> None: ...
    def granted(
        self, attachment: int, grants: Sequence[Grant], batches: Sequence[GrantedBatch], size: int, left_s: float
    ) -> None: ...
    def settled(self, attachment: int, request_id: int, refused: Sequence[Refused]) -> None: ...
    def asked(self, attachment: int, grants: Sequence[Grant]) -> None: ...
    def revoked(self, attachment: int, grants: Sequence[Grant], error: TinymqError) -> None: ...
    def ended(self, attachment: int, error: TinymqError | None) -> None: ...


@dataclass(slots=True, eq=False)
class Attachment:
    """One attachment, until it ends."""

    number: int  # the client's number for the attachment, unique on its stream
    port: WorkerPort
    session: bytes
    connection: int  # unique on this broker; a later attachment of the session has a higher number
    credit_records: int
    credit_bytes: int
    sent_records: int = 0
    sent_bytes: int = 0
    reading: bool = False  # whether granted records are being read from disk; no more are granted meanwhile
    over: bool = False

    @property
    def worker(self) -> str:
        """The worker's name for people: its client and the start of its session id."""
        return f"{self.port.client} {self.session.hex()[:8]}"

    def most(self, record_bytes: int) -> int:
        """How many records of `record_bytes` each the worker may be granted now."""
        if self.over or self.reading or self.port.is_full:
            return 0
        fit = (self.credit_bytes - self.sent_bytes) // max(1, record_bytes)
        return max(0, min(self.credit_records - self.sent_records, fit))

    @property
    def lacks_bytes_only(self) -> bool:
        """Whether only `credit_bytes` keeps the worker from getting a record. A worker that holds nothing gets one even
        then, because a record may be larger than all the credit."""
        return not (self.over or self.reading or self.port.is_full) and self.credit_records > self.sent_records

    def raise_credit(self, records: int, size: int) -> None:
        """Raise the credit to these totals since the attachment began. Lower totals are ignored."""
        self.credit_records = max(self.credit_records, records)
        self.credit_bytes = max(self.credit_bytes, size)


@dataclass(slots=True)
class Settlement:
    """One settlement of a worker, until it is answered."""

    attachment: Attachment
    request_id: int  # 0: the worker wants no answer
    refused: list[Refused]
    proposed: dict[int, Grant]  # by offset; the grants whose proposal is not applied yet

    def answer(self) -> None:
        """Send the answer. A worker that wants none is told only which grants it has lost."""
        at = self.attachment
        if at.over:
            return
        if self.request_id:
            at.port.settled(at.number, self.request_id, self.refused)
            return
        for refused in self.refused:
            if not refused.error.retriable:
                at.port.revoked(at.number, refused.grants, refused.error)
