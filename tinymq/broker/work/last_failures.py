"""Why the deliveries of records failed. Bounded, in the leader's memory only, and lost with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tinymq.broker.groups.lease_values import Grant, Proposal
from tinymq.broker.state.queue_group import REJECTED, Failure
from tinymq.broker.work.attachment import Verb

RECORDS_MAX = 1000  # per group and partition; above it, the record that failed least recently is forgotten


class FailureCause(Enum):
    """The reason why a delivery failed."""

    NACK = "nack"
    REJECT = "reject"
    LEASE_EXPIRED = "lease_expired"
    SESSION_ENDED = "session_ended"


_CAUSES = {Verb.NACK: FailureCause.NACK, Verb.REJECT: FailureCause.REJECT, Verb.EXPIRE: FailureCause.LEASE_EXPIRED}
WORDS = {
    FailureCause.LEASE_EXPIRED: "the lease ran out: the worker neither settled the record nor extended its lease",
    FailureCause.SESSION_ENDED: "the worker died, or left without settling the record",
}


@dataclass(frozen=True, slots=True)
class LastFailure:
    """The last failure of a record, and the time of its first failure under this leader."""

    cause: FailureCause
    delivery: int
    error: str  # the last one that a worker reported, such as a traceback; "": none did
    worker: str  # "": not known
    first_us: int  # append time of the first failure
    last_us: int  # append time of the last failure

    @property
    def reason(self) -> str:
        """Why it failed, in one line; "": the worker did not say."""
        reported = self.error.strip().rsplit("\n", 1)[-1].strip()
        words = WORDS.get(self.cause)
        if words is None:
            return reported
        return f"{words}; an earlier delivery failed: {reported}" if reported else words


class DeadRecord(NamedTuple):
    """A record that is to be buried."""

    offset: int
    deliveries: int  # how many deliveries failed
    rejected: bool
    failure: LastFailure | None  # None: this leader does not know it

    @classmethod
    def of(cls, offset: int, known: Failure, failure: LastFailure | None) -> DeadRecord:
        """A record as the applied state knows it, and its last failure."""
        return cls(offset, known.deliveries & ~REJECTED, bool(known.deliveries & REJECTED), failure)


class LastFailures:
    """The last failures of one group in one partition. The record that failed most recently is last."""

    def __init__(self) -> None:
        self._by_offset: dict[int, LastFailure] = {}

    def note(self, offset: int, cause: FailureCause, delivery: int, error: str, worker: str, now_us: int) -> None:
        """Note a failure. An error stays until a worker reports another one, or fails without any."""
        known = self._by_offset.pop(offset, None)
        if known is not None and cause in WORDS:
            error = known.error
        first_us = known.first_us if known is not None else now_us
        self._by_offset[offset] = LastFailure(cause, delivery, error, worker, first_us, now_us)
        if len(self._by_offset) > RECORDS_MAX:
            del self._by_offset[next(iter(self._by_offset))]

    def note_verb(self, verb: Verb, grant: Grant, error: str, worker: str, now_us: int) -> None:
        """Note a failure that a worker reported by NACK, REJECT or EXPIRE."""
        self.note(grant.offset, _CAUSES[verb], grant.delivery, error, worker, now_us)

    def note_charges(self, proposals: Iterable[Proposal], now_us: int) -> None:
        """Note the charges that no worker asked for. Those of nacks and rejects are noted already."""
        for proposal in proposals:
            cause = FailureCause.SESSION_ENDED if proposal.ends else FailureCause.LEASE_EXPIRED
            worker = proposal.ends.hex()[:8]
            for offset, delivery, _ in proposal.charges:
                known, number = self._by_offset.get(offset), delivery & ~REJECTED
                if known is None or known.delivery != number:
                    self.note(offset, cause, number, "", worker, now_us)

    def get(self, offset: int) -> LastFailure | None:
        return self._by_offset.get(offset)

    def clear(self) -> None:
        """Forget all records: a new era counts their deliveries from 1 again."""
        self._by_offset.clear()

    def forget(self, offset: int) -> None:
        """Forget a record that is settled."""
        self._by_offset.pop(offset, None)
