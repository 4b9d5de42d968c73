"""A worker's place at one partition that is led here: what it may still take, and where its answers go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from tinymq.base.errors import TinymqError
from tinymq.broker.groups.lease_values import Era, Grant
from tinymq.broker.work.granted_records import GrantedBatch


class Verb(Enum):
    """What a worker says of records that it holds."""

    START = "start"
    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    EXTEND = "extend"
    RELEASE = "release"


class Refused(NamedTuple):
    """A part of a settlement that was not carried out."""

    error: TinymqError
    grants: list[Grant]


class AttachRequest(NamedTuple):
    """What a worker says when it attaches."""

    number: int  # of the attachment, on its stream
    topic_id: bytes
    partition: int
    group: str
    group_id: int
    session: bytes
    held: Sequence[Grant]  # all that it holds there
    credit_records: int
    credit_bytes: int
    term: int  # the newest one that it has seen there


class Attached(NamedTuple):
    """The answer to an attach."""

    term: int
    era: Era
    known: bool  # the partition knew the session
    lost: list[Grant]
    lease_s: float
    session_s: float
    keyed: bool


class WorkerPort(Protocol):
    """The end of a worker's stream. Nothing here waits or raises: a stream that is closed drops what it gets."""

    @property
    def client(self) -> str:
        """The worker's client id, or its host."""
        ...

    @property
    def heard_s(self) -> float:
        """The time of the newest sign of life."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be sent that no more records are to be granted."""
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

    number: int  # chosen by the client, on its stream
    port: WorkerPort
    session: bytes
    connection: int  # unique on this broker: an older attachment of the session has a lower one
    credit_records: int
    credit_bytes: int
    sent_records: int = 0
    sent_bytes: int = 0
    reading: bool = False  # records are being read for it: it gets no others meanwhile
    over: bool = False

    @property
    def worker(self) -> str:
        """The worker, for people."""
        return f"{self.port.client} {self.session.hex()[:8]}"

    def most(self, record_bytes: int) -> int:
        """How many records of that size it may be granted now."""
        if self.over or self.reading or self.port.is_full:
            return 0
        fit = (self.credit_bytes - self.sent_bytes) // max(1, record_bytes)
        return max(0, min(self.credit_records - self.sent_records, fit))

    @property
    def lacks_bytes_only(self) -> bool:
        """Whether it would get a record if that had no size. One that holds nothing gets one."""
        return not (self.over or self.reading or self.port.is_full) and self.credit_records > self.sent_records

    def raise_credit(self, records: int, size: int) -> None:
        """Note sums of credit. They never fall."""
        self.credit_records = max(self.credit_records, records)
        self.credit_bytes = max(self.credit_bytes, size)


@dataclass(slots=True)
class Settlement:
    """One settlement of a worker, until it is answered."""

    attachment: Attachment
    request_id: int  # 0: no answer
    refused: list[Refused]
    proposed: dict[int, Grant]  # by offset: what waits for its proposal

    def answer(self) -> None:
        """Answer, or tell what was lost of a settlement that wants no answer."""
        at = self.attachment
        if at.over:
            return
        if self.request_id:
            at.port.settled(at.number, self.request_id, self.refused)
            return
        for refused in self.refused:
            if not refused.error.retriable:
                at.port.revoked(at.number, refused.grants, refused.error)
