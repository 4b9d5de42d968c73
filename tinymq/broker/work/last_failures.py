"""The errors that workers reported for failed records. Bounded, in the leader's memory only, and lost with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

RECORDS_MAX = 1000  # per group and partition; above it, the record that failed least recently is forgotten


@dataclass(frozen=True, slots=True)
class LastFailure:
    """The last failure of a record, and the time of its first failure under this leader."""

    error: str  # what the worker reported, such as a traceback; "": it reported nothing, or died
    worker: str
    first_us: int  # append time of the first failure
    last_us: int  # append time of the last failure


class DeadRecord(NamedTuple):
    """A record that is to be buried."""

    offset: int
    deliveries: int  # how many deliveries failed
    rejected: bool
    failure: LastFailure | None  # None: this leader does not know it


class LastFailures:
    """The last failures of one group in one partition. The record that failed most recently is last."""

    def __init__(self) -> None:
        self._by_offset: dict[int, LastFailure] = {}

    def note(self, offset: int, error: str, worker: str, now_us: int) -> None:
        """Note a failure."""
        known = self._by_offset.pop(offset, None)
        if known is not None:
            self._by_offset[offset] = replace(known, error=error, worker=worker, last_us=now_us)
        else:
            self._by_offset[offset] = LastFailure(error, worker, now_us, now_us)
        if len(self._by_offset) > RECORDS_MAX:
            del self._by_offset[next(iter(self._by_offset))]

    def get(self, offset: int) -> LastFailure | None:
        return self._by_offset.get(offset)

    def forget(self, offset: int) -> None:
        """Forget a record that is settled."""
        self._by_offset.pop(offset, None)
