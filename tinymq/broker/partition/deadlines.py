"""Deadlines of many short waits, with one timer for all that end within the same few milliseconds.

A timer per request would cost more than the request, so waits are kept in buckets by the time they end. A wait never
ends early. It ends at most one bucket late, unless more waits end at once than one turn of the loop handles.
"""

from __future__ import annotations

from itertools import islice
from typing import Protocol

from tinymq.base.clock import Clock

BUCKET_S = 0.02
ENDED_MAX = 64  # waits that one turn of the loop ends


class Expiring(Protocol):
    """Something that waits. `expire` is called once, on the loop, unless the ticket was dropped before."""

    def expire(self) -> None: ...


class Ticket:
    """Identifies a wait. Drop it with `Deadlines.drop` when the wait ends by itself."""

    __slots__ = ("bucket", "waiting")

    def __init__(self, bucket: int, waiting: Expiring) -> None:
        self.bucket = bucket
        self.waiting = waiting


class Deadlines:
    """All waits of one broker. Not safe to share between loops."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._buckets: dict[int, dict[Ticket, None]] = {}  # by number; a replay ends waits in this order

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def now(self) -> float:
        """Monotonic seconds of the clock that counts the waits."""
        return self.clock.monotonic()

    def add(self, waiting: Expiring, timeout_s: float) -> Ticket:
        """Call `waiting.expire()` after `timeout_s` seconds, or up to BUCKET_S later."""
        now = self.clock.monotonic()
        number = int((now + max(timeout_s, 0.0)) / BUCKET_S) + 1
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            self.clock.call_later(number * BUCKET_S - now, lambda: self._end(number))
        ticket = Ticket(number, waiting)
        bucket[ticket] = None
        return ticket

    def drop(self, ticket: Ticket) -> None:
        """End a wait. Does nothing if it was dropped before or has expired."""
        bucket = self._buckets.get(ticket.bucket)
        if bucket is not None:
            bucket.pop(ticket, None)

    def _end(self, number: int) -> None:
        bucket = self._buckets.get(number, {})
        for ticket in list(islice(bucket, ENDED_MAX)):
            if ticket in bucket:  # otherwise an earlier `expire` of this loop dropped it
                del bucket[ticket]
                ticket.waiting.expire()
        if bucket:
            self.clock.call_later(0.0, lambda: self._end(number))
        else:
            self._buckets.pop(number, None)
