"""One queue group's replicated state in a partition, and the pure rules of its commands.

The group's cursor (tinymq/broker/state/cursor.py) is the offset below which every record is settled. This state has
what differs above it: records that are settled out of order, deliveries that failed, records that are being buried, the
ids of the workers' sessions, and the mark below which records may have been granted. Leases are no part of it: they are
in the memory of the partition's leader, so a delivery costs no entry of the log, and a batch of acks costs one.

Deposed leaders do not know that they are deposed, and messages arrive late and twice. So each rule here is safe against
a command that comes late, again, or from before a seek: it then changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

# Part of the replicated behaviour, not settings: replicas with different values would compute different states.
RANGES_MAX = 20_000  # settled out of order; leaders stop granting long before
FAILURES_MAX = 20_000
SESSIONS_MAX = 1000
BURIALS_MAX = 64
SESSION_BYTES = 16
MESSAGE_ID_BYTES = 16
BURIAL_BYTES_MAX = 64 << 10  # of the headers of one copy
STATE_BYTES_MAX = 1 << 20  # of all groups of a partition together


REJECTED = 1 << 31
"""Added to the number of a delivery whose worker has rejected the record: it is not to be delivered again. Greater than
every number of a delivery, so it stays."""

Span = tuple[int, int]
"""The offsets from the first up to, and not including, the second."""


class Place(NamedTuple):
    """Where a group is, as of one entry."""

    position: int  # of its cursor; never below the log start
    end: int  # of the log
    now_us: int  # append time of the entry
    has_room: bool = True  # the groups of the partition have not used up what they share


class Failure(NamedTuple):
    """What is known of a record that was delivered and is not settled."""

    deliveries: int  # the greatest number of a delivery that failed, and REJECTED
    returns: int  # how often a session that died gave it back unstarted
    not_before_us: int  # append time before which it is not granted


class Burial(NamedTuple):
    """A record that is on its way to the dead letters. Every copy that is sent has this id and these headers."""

    message_id: bytes
    generation: int  # of the group when the burial began
    topic_id: bytes  # of the dead letters
    partition: int
    end: int  # of that partition when the burial began: the copy lies at or behind it
    headers: bytes  # all headers of the copy, packed by the leader; never interpreted here


class Charge(NamedTuple):
    """Delivery `delivery` of a record failed: it may be granted again after `delay_ms`."""

    offset: int
    delivery: int
    delay_ms: int


class Ack(NamedTuple):
    """Records `start` to `end` are done. With `prior`, it is one record of a keyed group."""

    start: int
    end: int
    prior: int | None = None  # the record of the same key before it, which has to be settled first


class Settled:
    """The offsets at or above a position that are settled, as disjoint ranges in order."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # invariant: starts[i] < ends[i] < starts[i + 1]

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Span]:
        return iter(zip(self._starts, self._ends, strict=True))

    def __contains__(self, offset: int) -> bool:
        place = bisect_right(self._starts, offset) - 1
        return place >= 0 and offset < self._ends[place]

    def count_from(self, position: int) -> int:
        """How many offsets at or above a position are settled."""
        place = bisect_right(self._ends, position)  # the ranges before it end at or below the position
        count = sum(self._ends[place:]) - sum(self._starts[place:])
        return count - max(0, position - self._starts[place]) if place < len(self._starts) else count

    def add(self, start: int, end: int) -> None:
        """Add the offsets from `start` up to, and not including, `end`."""
        # All ranges that touch the new one become one with it.
        first = bisect_right(self._ends, start - 1)
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def touches(self, start: int, end: int) -> bool:
        """Whether some range has an offset of `start` to `end`, or ends or begins next to it."""
        return bisect_right(self._ends, start - 1) < bisect_right(self._starts, end)

    def pop_from(self, position: int) -> int:
        """Drop what is settled below and at `position`, and return the first offset from there on that is not."""
        place = bisect_right(self._starts, position)
        if place and self._ends[place - 1] > position:
            position = self._ends[place - 1]
            # The next range cannot begin here, because touching ranges are one.
        del self._starts[:place], self._ends[:place]
        return position

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()


@dataclass(slots=True)
class QueueGroup:
    """The state of one queue group in one partition, above its cursor."""

    generation: int  # of the cursor: a seek, and making the group again, give it another one
    settled: Settled = field(default_factory=Settled)
    failures: dict[int, Failure] = field(default_factory=dict)  # by offset, none of them settled
    burials: dict[int, Burial] = field(default_factory=dict)  # by offset, in the order in which they began
    sessions: dict[bytes, None] = field(default_factory=dict)  # in the order in which they began
    granted_below: int = 0  # no record at or above it was ever granted

    @property
    def state_bytes(self) -> int:
        """What the state takes of the bytes that all groups of a partition share."""
        buried = sum(100 + len(burial.headers) for burial in self.burials.values())
        return 16 * len(self.settled) + 24 * len(self.failures) + SESSION_BYTES * len(self.sessions) + buried

    def sought(self, generation: int, position: int) -> None:
        """A seek has put the cursor elsewhere: all records from there on are as if they were never delivered."""
        self.generation = generation
        self.settled.clear()
        self.failures.clear()
        # Grants of the old generation end, and their records may be granted again at once.
        self.granted_below = position

    def is_settled(self, offset: int, position: int) -> bool:
        """Whether the group is done with this record. `position`: of its cursor."""
        return offset < position or offset in self.settled

    def is_open(self, offset: int, position: int) -> bool:
        """Whether the record is neither settled nor being buried. `position`: of the group's cursor."""
        return offset >= position and offset not in self.settled and offset not in self.burials

    def ack(self, acks: Iterable[Ack], place: Place) -> tuple[int, list[Span]]:
        """Settle records. Returns the cursor's new position, and the records that were refused: LeaseLost.

        A record that is settled already is settled again without effect, and so is one that retention removed.
        """
        position, refused = place.position, []
        for ack in acks:
            if ack.prior is not None and not self.is_settled(ack.prior, position):
                refused.append((ack.start, ack.end))  # a later record of a key is not settled before an earlier one
                continue
            for start, end in self.free_of_burials(max(ack.start, position), min(ack.end, place.end), refused):
                if not self._has_room_for_range(start, end, place) and start > position:
                    refused.append((start, end))
                    continue
                self.settled.add(start, end)
                self._forget_failures(start, end)
                position = self.settled.pop_from(position)
            if ack.end > place.end:
                refused.append((max(ack.start, place.end), ack.end))
        return position, refused

    def _has_room_for_range(self, start: int, end: int, place: Place) -> bool:
        if self.settled.touches(start, end):
            return True  # it becomes a part of what is there
        return place.has_room and len(self.settled) < RANGES_MAX

    def free_of_burials(self, start: int, end: int, refused: list[Span]) -> Iterator[Span]:
        """The parts of a range without the records that are being buried: those are the burials' to settle."""
        for offset in sorted(offset for offset in self.burials if start <= offset < end):
            refused.append((offset, offset + 1))
            if start < offset:
                yield start, offset
            start = offset + 1
        if start < end:
            yield start, end

    def _forget_failures(self, start: int, end: int) -> None:
        if end - start <= len(self.failures):
            for offset in range(start, end):
                self.failures.pop(offset, None)
        elif self.failures:
            self.failures = {o: f for o, f in self.failures.items() if not start <= o < end}

    def charge(self, charges: Iterable[Charge], place: Place) -> list[Span]:
        """Note deliveries that failed, and return those for which there is no room. A charge names its delivery, so one
        that comes twice counts once."""
        refused: list[Span] = []
        for charge in charges:
            offset = charge.offset
            if not self._is_open(offset, place):
                continue
            known = self.failures.get(offset)
            if known is None and not self._has_room_for_failure(place):
                refused.append((offset, offset + 1))
            elif charge.delivery > (known or _NONE).deliveries:
                not_before_us = min(place.now_us + charge.delay_ms * 1000, _TIME_MAX)
                self.failures[offset] = Failure(charge.delivery, (known or _NONE).returns, not_before_us)
        return refused

    def put_off(self, now_us: int, jump_us: int) -> None:
        """Have what waits at `now_us` wait longer by `jump_us`, by which the append clock jumps."""
        for offset, failure in self.failures.items():
            if failure.not_before_us > now_us:
                later_us = min(failure.not_before_us + jump_us, _TIME_MAX)
                self.failures[offset] = failure._replace(not_before_us=later_us)

    def open_session(self, session: bytes) -> None:
        self.sessions[session] = None

    def end_session(self, session: bytes, charges: Iterable[Charge], returned: Iterable[int], place: Place) -> None:
        """End a session: its started records are charged, and those that it had not started are given back. A session
        that is over already changes nothing."""
        if session not in self.sessions:
            return
        del self.sessions[session]
        self.charge(charges, place)
        for offset in returned:
            known = self.failures.get(offset)
            if self._is_open(offset, place) and (known is not None or self._has_room_for_failure(place)):
                known = known or _NONE
                self.failures[offset] = known._replace(returns=known.returns + 1)

    def _is_open(self, offset: int, place: Place) -> bool:
        """Whether a delivery of this record may still fail: it exists, is not settled, and is not being buried."""
        return offset < place.end and self.is_open(offset, place.position)

    def _has_room_for_failure(self, place: Place) -> bool:
        return place.has_room and len(self.failures) < FAILURES_MAX

    def bury(self, offset: int, burial: Burial, position: int) -> bool:
        """Begin a burial, or give one of the same id another destination. False: the record is settled, or under
        another burial, and nothing changes."""
        known = self.burials.get(offset)
        if known is not None:
            if known.message_id != burial.message_id:
                return False
            if (known.topic_id, known.partition) != (burial.topic_id, burial.partition):
                # The dead letters were deleted and made again. The copy keeps its id and its headers. With the same
                # destination the first end counts: a copy may lie behind it, and before the end of a later leader.
                place = known._replace(topic_id=burial.topic_id, partition=burial.partition, end=burial.end)
                self.burials[offset] = place
            return True
        if self.is_settled(offset, position):
            return False
        self.burials[offset] = burial
        self.failures.pop(offset, None)
        return True

    def buried(self, message_id: bytes, position: int) -> int:
        """End the burial of that id, because the dead letters have its copy. The record is settled, in the generation
        of this moment. Returns the cursor's new position. An unknown id changes nothing."""
        offset = next((o for o, burial in self.burials.items() if burial.message_id == message_id), None)
        if offset is None:
            return position
        del self.burials[offset]
        if offset >= position:
            self.settled.add(offset, offset + 1)
            self.failures.pop(offset, None)
        return self.settled.pop_from(position)


_TIME_MAX = (1 << 63) - 1
_NONE = Failure(deliveries=0, returns=0, not_before_us=0)
