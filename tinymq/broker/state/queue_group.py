"""One queue group's replicated state in a partition, and the pure rules of its commands.

The group's cursor (tinymq/broker/state/cursor.py) is the offset below which every record is settled. This state has the
exceptions above it: records that are settled out of order, acks that wait for the end of a transaction, deliveries that
failed, records that are being buried, the ids of the workers' sessions, and the mark below which records may have been
granted. Leases are not part of it: they are in the memory of the partition's leader. A delivery therefore costs no
entry of the log, and a batch of acks costs one.

A deposed leader does not know that it is deposed, and messages may arrive late or twice. So each rule ignores a command
that is a repeat, comes too late, or was decided before a seek.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tinymq.base.errors import LeaseLost, QuotaExceeded
from tinymq.broker.state.staged import TransactionId

# Part of the replicated behaviour, not settings: replicas with different values would compute different states.
RANGES_MAX = 20_000  # ranges that are settled out of order; leaders stop granting long before this number
# ranges of a stored state; more than RANGES_MAX, because ends of burials settle records beyond it
LOADED_RANGES_MAX = 2 * RANGES_MAX
FAILURES_MAX = 20_000
SESSIONS_MAX = 1000
BURIALS_MAX = 64
SESSION_BYTES = 16
MESSAGE_ID_BYTES = 16
BURIAL_BYTES_MAX = 64 << 10  # of the headers of one copy
STATE_BYTES_MAX = 1 << 20  # of all groups of a partition together


REJECTED = 1 << 31
"""This bit marks a rejected record in `Failure.deliveries`. It is greater than every delivery number, so a later charge
cannot replace it."""

Span = tuple[int, int]
"""(start, end): the offsets from `start` up to, and not including, `end`."""


class EntryContext(NamedTuple):
    """The surroundings of a group at the entry whose command is applied."""

    position: int  # of the group's cursor; never below the log start
    end: int  # of the log: the offset behind its last record
    now_us: int  # append time of the entry
    has_room: bool = True  # whether the partition's groups together are below STATE_BYTES_MAX


class Failure(NamedTuple):
    """The failed deliveries of a record that is not settled."""

    deliveries: int  # number of the newest failed delivery, with the bit REJECTED if the worker rejected the record
    returns: int  # how often a session died while it held the record unstarted
    not_before_us: int  # append time before which the record is not granted again


class Burial(NamedTuple):
    """A record whose copy is on its way to the dead letters. Each attempt sends the same id and the same headers."""

    message_id: bytes
    generation: int  # of the group when the burial began
    topic_id: bytes  # of the topic of dead letters
    partition: int  # in that topic
    end: int  # of that partition when the burial began: the copy lies at or behind this offset
    headers: bytes  # all headers of the copy, packed by the leader; never interpreted here


class Charge(NamedTuple):
    """A failed delivery: delivery number `delivery` of a record, which may be granted again after `delay_ms`."""

    offset: int
    delivery: int
    delay_ms: int


class Ack(NamedTuple):
    """A command to settle the records from `start` up to `end`. With `prior`, it is one record of a keyed group."""

    start: int
    end: int
    prior: int | None = None  # offset of the previous record with the same key, which has to be settled first


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
        run = bisect_right(self._starts, offset) - 1
        return run >= 0 and offset < self._ends[run]

    def count_from(self, position: int) -> int:
        """How many offsets at or above a position are settled."""
        run = bisect_right(self._ends, position)  # the ranges before it end at or below the position
        count = sum(self._ends[run:]) - sum(self._starts[run:])
        return count - max(0, position - self._starts[run]) if run < len(self._starts) else count

    def add(self, start: int, end: int) -> None:
        """Add the offsets from `start` up to, and not including, `end`."""
        # Merge all ranges that touch the new one with it.
        first = bisect_right(self._ends, start - 1)
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def touches(self, start: int, end: int) -> bool:
        """Whether some range overlaps `start` to `end`, or lies directly beside it."""
        return bisect_right(self._ends, start - 1) < bisect_right(self._starts, end)

    def pop_from(self, position: int) -> int:
        """Drop the ranges that begin at or below `position`, and return the first unsettled offset from there on."""
        run = bisect_right(self._starts, position)
        if run and self._ends[run - 1] > position:
            position = self._ends[run - 1]
            # The next range cannot begin here, because touching ranges are one.
        del self._starts[:run], self._ends[:run]
        return position

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()


@dataclass(slots=True)
class QueueGroup:
    """The state of one queue group in one partition, above its cursor."""

    generation: int  # of the cursor; changes with a seek, and when the group is deleted and made again
    settled: Settled = field(default_factory=Settled)
    failures: dict[int, Failure] = field(default_factory=dict)  # by offset; only unsettled records
    burials: dict[int, Burial] = field(default_factory=dict)  # by offset, in the order in which they began
    sessions: dict[bytes, None] = field(default_factory=dict)  # session ids, in the order in which they began
    granted_below: int = 0  # the mark: no record at or above this offset was ever granted
    staged: Mapping[int, TransactionId] = field(default_factory=dict)
    """By offset: the transaction whose decision settles the record, or gives it back. Each change makes a new mapping:
    a leader sees by its identity whether there was one. Invariant: `settled` has room for a range for each."""

    @property
    def state_bytes(self) -> int:
        """How much of STATE_BYTES_MAX this group's state uses, in bytes."""
        buried = sum(100 + len(burial.headers) for burial in self.burials.values())
        ranges = len(self.settled) + len(self.staged)
        return 16 * ranges + 24 * len(self.failures) + SESSION_BYTES * len(self.sessions) + buried

    def sought(self, generation: int, position: int) -> None:
        """Follow a seek of the cursor to `position`: all records from there on count as never delivered. Staged acks
        settle nothing any more, as if their transactions had ended before the seek."""
        self.generation = generation
        self.settled.clear()
        self.failures.clear()
        self.staged = {}
        # Grants of the old generation end, and their records may be granted again at once.
        self.granted_below = position

    def is_settled(self, offset: int, position: int) -> bool:
        """Whether the record is settled. `position` is that of the group's cursor."""
        return offset < position or offset in self.settled

    def is_open(self, offset: int, position: int) -> bool:
        """Whether a worker may get or settle the record: it is not settled, no transaction has its ack, and it is not
        being buried. `position` is that of the group's cursor."""
        if offset < position or offset in self.settled:
            return False
        return offset not in self.burials and offset not in self.staged

    def ack(self, acks: Iterable[Ack], context: EntryContext) -> tuple[int, list[Span]]:
        """Settle records. Returns the cursor's new position, and the refused ranges, whose workers get LeaseLost.

        An ack of a record that is already settled, or that retention has removed, succeeds without an effect.
        """
        position, refused = context.position, []
        for ack in acks:
            if ack.prior is not None and not self.is_settled(ack.prior, position):
                refused.append((ack.start, ack.end))  # a later record of a key is not settled before an earlier one
                continue
            for start, end in self.without_taken(max(ack.start, position), min(ack.end, context.end), refused):
                if not self._has_room_for_range(start, end, context) and start > position:
                    refused.append((start, end))
                    continue
                self.settled.add(start, end)
                self._forget_failures(start, end)
                position = self.settled.pop_from(position)
            if ack.end > context.end:
                refused.append((max(ack.start, context.end), ack.end))
        return position, refused

    def _has_room_for_range(self, start: int, end: int, context: EntryContext) -> bool:
        if self.settled.touches(start, end):
            return True  # the new range merges with one that is there
        return context.has_room and len(self.settled) + len(self.staged) < RANGES_MAX

    def without_taken(self, start: int, end: int, refused: list[Span]) -> Iterator[Span]:
        """The parts of a range without the records that only their burials or their transactions may settle."""
        for offset in sorted(offset for offset in (*self.burials, *self.staged) if start <= offset < end):
            refused.append((offset, offset + 1))
            if start < offset:
                yield start, offset
            start = offset + 1
        if start < end:
            yield start, end

    def check_stage(self, spans: Iterable[Span], context: EntryContext) -> None:
        """Raise LeaseLost unless a transaction may settle all these records, QuotaExceeded if there is no room."""
        count = 0
        for start, end in spans:
            if not context.position <= start < end <= context.end:
                raise LeaseLost("a record is settled already, or was removed")
            for offset in range(start, end):
                if not self.is_open(offset, context.position):
                    raise LeaseLost(f"the record at {offset} is settled, is being buried, or has a staged ack")
            count += end - start
        if not context.has_room or len(self.settled) + len(self.staged) + count > RANGES_MAX:
            hint = "end transactions that are open"
            raise QuotaExceeded("the group has too many settled and staged ranges in the partition", hint=hint)

    def stage(self, transaction: TransactionId, spans: Iterable[Span]) -> None:
        """Leave it to the decision of a transaction whether these records are settled. They passed `check_stage`."""
        offsets = [offset for start, end in spans for offset in range(start, end)]
        self.staged = {**self.staged, **dict.fromkeys(offsets, transaction)}

    def end_staged(self, spans: Iterable[Span], position: int, *, settle: bool) -> int:
        """End what was staged: settle the records, or give them back uncharged. Returns the cursor's new position."""
        ended = {offset for start, end in spans for offset in range(start, end)}
        self.staged = {offset: transaction for offset, transaction in self.staged.items() if offset not in ended}
        for start, end in spans if settle else ():
            if end > position:  # not for records that were removed meanwhile
                self.settled.add(max(start, position), end)
                self._forget_failures(start, end)
                position = self.settled.pop_from(position)
        return position

    def _forget_failures(self, start: int, end: int) -> None:
        if end - start <= len(self.failures):
            for offset in range(start, end):
                self.failures.pop(offset, None)
        elif self.failures:
            self.failures = {o: f for o, f in self.failures.items() if not start <= o < end}

    def charge(self, charges: Iterable[Charge], context: EntryContext) -> list[Span]:
        """Note failed deliveries, and return the records for which there is no room. A charge names its delivery, so a
        repeated charge counts once."""
        refused: list[Span] = []
        for charge in charges:
            offset = charge.offset
            if not self._is_open(offset, context):
                continue
            known = self.failures.get(offset)
            if known is None and not self._has_room_for_failure(context):
                refused.append((offset, offset + 1))
            elif charge.delivery > (known or _NONE).deliveries:
                not_before_us = min(context.now_us + charge.delay_ms * 1000, _TIME_MAX)
                self.failures[offset] = Failure(charge.delivery, (known or _NONE).returns, not_before_us)
        return refused

    def put_off(self, now_us: int, jump_us: int) -> None:
        """Extend the delays that run at `now_us` by `jump_us`, because the append clock jumps forward by that."""
        for offset, failure in self.failures.items():
            if failure.not_before_us > now_us:
                later_us = min(failure.not_before_us + jump_us, _TIME_MAX)
                self.failures[offset] = failure._replace(not_before_us=later_us)

    def open_session(self, session: bytes) -> None:
        self.sessions[session] = None

    def end_session(
        self, session: bytes, charges: Iterable[Charge], returned: Iterable[int], context: EntryContext
    ) -> None:
        """End a session: charge its started records, and count a return for its unstarted ones. Does nothing if the
        session has ended before."""
        if session not in self.sessions:
            return
        del self.sessions[session]
        self.charge(charges, context)
        for offset in returned:
            known = self.failures.get(offset)
            if self._is_open(offset, context) and (known is not None or self._has_room_for_failure(context)):
                known = known or _NONE
                self.failures[offset] = known._replace(returns=known.returns + 1)

    def _is_open(self, offset: int, context: EntryContext) -> bool:
        """Whether a delivery of this record may still fail: it exists, and is open."""
        return offset < context.end and self.is_open(offset, context.position)

    def _has_room_for_failure(self, context: EntryContext) -> bool:
        return context.has_room and len(self.failures) < FAILURES_MAX

    def bury(self, offset: int, burial: Burial, position: int) -> bool:
        """Begin a burial, or redirect the burial with the same id. Returns False, and changes nothing, if the record is
        settled, staged, or under another burial."""
        known = self.burials.get(offset)
        if known is not None:
            if known.message_id != burial.message_id:
                return False
            if (known.topic_id, known.partition) != (burial.topic_id, burial.partition):
                # The topic of dead letters was deleted and made again. The copy keeps its id and its headers. A repeat
                # with the same destination keeps the first `end`: a copy may already lie between that and the new one.
                moved = known._replace(topic_id=burial.topic_id, partition=burial.partition, end=burial.end)
                self.burials[offset] = moved
            return True
        if self.is_settled(offset, position) or offset in self.staged:
            return False
        self.burials[offset] = burial
        self.failures.pop(offset, None)
        return True

    def buried(self, message_id: bytes, position: int) -> int:
        """End the burial with this id, because its copy is committed, and settle the record, even if a seek has moved
        the group since. Returns the cursor's new position. An unknown id changes nothing."""
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
