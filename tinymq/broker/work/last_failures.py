"""What workers said of the records that they failed with. In the leader's memory, bounded, and lost with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

RECORDS_MAX = 1000  # of one group in one partition; the oldest goes first


@dataclass(frozen=True, slots=True)
class LastFailure:
    """The last failure of a record, and when it first failed here."""

    error: str  # by the worker, such as a traceback; "": it said nothing, or it died
    worker: str
    first_us: int  # append times
    last_us: int


class DeadRecord(NamedTuple):
    """A record that is to be buried."""

    offset: int
    deliveries: int  # that failed
    rejected: bool
    failure: LastFailure | None  # None: this leader does not know


class LastFailures:
    """The last failures of one group in one partition, the latest failed one last."""

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
