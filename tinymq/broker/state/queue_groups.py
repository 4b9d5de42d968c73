"""The queue groups of a partition: their commands, and their state as bytes.

The table is replicated: it changes only in `apply`, by the entries of the log, and is the same on every replica. A
group is in the table for as long as its cursor exists. All groups share STATE_BYTES_MAX. The parts of a command that
would exceed it are refused, except acks that free room. Leaders stop granting long before.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tinymq.base.errors import CorruptData, Fenced, InvalidRequest, QuotaExceeded, TinymqError, UnknownGroup
from tinymq.broker.state.cursor import Cursor, CursorKind, check_identity
from tinymq.broker.state.outcome import CommandOutcome, OffsetBounds
from tinymq.broker.state.queue_group import (
    BURIAL_BYTES_MAX,
    BURIALS_MAX,
    FAILURES_MAX,
    LOADED_RANGES_MAX,
    MESSAGE_ID_BYTES,
    SESSION_BYTES,
    SESSIONS_MAX,
    STATE_BYTES_MAX,
    Ack,
    Burial,
    Charge,
    EntryContext,
    Failure,
    QueueGroup,
    Span,
)
from tinymq.broker.state.staged import TransactionId
from tinymq.proto import partition_pb2 as pb

_SPAN = struct.Struct("<QQ")
_CHARGE = struct.Struct("<QII")
_FAILURE = struct.Struct("<QIIq")
_OFFSET = struct.Struct("<Q")


class QueueGroups:
    """All queue groups of one partition, by name. Only `apply`, `follow` and `load` change it."""

    __slots__ = ("_groups", "by_name")

    def __init__(self) -> None:
        self._groups: dict[str, QueueGroup] = {}
        self.by_name: Mapping[str, QueueGroup] = MappingProxyType(self._groups)
        """A view of the present groups."""

    @property
    def state_bytes(self) -> int:
        return sum(group.state_bytes for group in self._groups.values())

    @property
    def lowest_burial(self) -> int | None:
        """The lowest offset that any group is burying; None: no group buries a record."""
        offsets = (offset for group in self._groups.values() for offset in group.burials)
        return min(offsets, default=None)

    def follow(self, name: str, cursor: Cursor | None, replaced: bool) -> None:
        """Note that a command has made, moved or dropped the cursor of this name. `replaced` says that the cursor now
        belongs to another group."""
        group = self._groups.get(name)
        if cursor is None or cursor.kind != CursorKind.QUEUE or replaced:
            self._groups.pop(name, None)
            group = None
        if cursor is not None and cursor.kind == CursorKind.QUEUE:
            if group is None:
                self._groups[name] = QueueGroup(cursor.generation, granted_below=cursor.position)
            elif group.generation != cursor.generation:
                group.sought(cursor.generation, cursor.position)

    def apply(
        self, name: str, command: Any, cursor: Cursor | None, history: int, bounds: OffsetBounds
    ) -> tuple[CommandOutcome, int | None]:
        """Carry out the command that pb.Command calls `name`. Returns its outcome, and where the cursor goes (None: it
        stays). Never raises.

        `history` is the term of the newest recovery of the log.
        """
        try:
            group, context, current = self._find(command.queue, cursor, history, bounds)
            assert cursor is not None, "as _find has checked"
            position, refused = _RULES[name](group, command, context, current)
        except TinymqError as error:
            return CommandOutcome(error, log_start=bounds.log_start, high_watermark=bounds.end), None
        outcome = CommandOutcome(
            position=position,
            generation=group.generation,
            log_start=bounds.log_start,
            high_watermark=bounds.end,
            refused=tuple(refused),
        )
        return outcome, position if position > cursor.position else None

    def _find(
        self, queue: pb.QueueRef, cursor: Cursor | None, history: int, bounds: OffsetBounds
    ) -> tuple[QueueGroup, EntryContext, bool]:
        """The group that a command is about, its surroundings, and whether the command comes from its present
        generation and history. Raises UnknownGroup, WrongKind."""
        if cursor is None:
            raise UnknownGroup(f"this partition has no cursor of a group {queue.group[:300]!r}")
        check_identity(cursor, queue.group, CursorKind.QUEUE, queue.group_id)
        group = self._groups[queue.group]
        has_room = self.state_bytes < STATE_BYTES_MAX
        context = EntryContext(max(cursor.position, bounds.log_start), bounds.end, bounds.now_us, has_room)
        return group, context, (queue.history, queue.generation) == (history, group.generation)

    def check_stage(self, command: pb.StageAcks, cursor: Cursor | None, history: int, bounds: OffsetBounds) -> None:
        """Raise what refuses acks that a transaction stages: UnknownGroup, WrongKind, Fenced, LeaseLost, QuotaExceeded,
        InvalidRequest."""
        group, context, current = self._find(command.queue, cursor, history, bounds)
        check_current(current)
        group.check_stage(unpack_spans(command.acked), context)

    def stage(self, name: str, transaction: TransactionId, spans: Iterable[Span]) -> None:
        """Carry out a command that passed `check_stage`."""
        self._groups[name].stage(transaction, spans)

    def end_staged(
        self, name: str, generation: int, spans: Sequence[Span], position: int, *, settle: bool
    ) -> int | None:
        """Settle records, or give them back, because their transaction has ended. Returns where the cursor goes. None:
        it stays; a seek or a deletion that came after the staging takes precedence.

        `position` is that of the cursor, never below the log start.
        """
        group = self._groups.get(name)
        if group is None or group.generation != generation:
            return None
        after = group.end_staged(spans, position, settle=settle)
        return after if after > position else None

    def put_off(self, now_us: int, jump_us: int) -> None:
        """Note that the append clock jumps by `jump_us` at `now_us`. Every delay lasts as long as without the jump."""
        for group in self._groups.values():
            group.put_off(now_us, jump_us)

    # ---- as bytes

    def dump(self, state: pb.State) -> None:
        """Write the table into `state`, in an order that depends on nothing but the table."""
        for name, group in sorted(self._groups.items()):
            state.queue_groups.append(
                pb.QueueGroup(
                    group=name,
                    generation=group.generation,
                    granted_below=group.granted_below,
                    settled=pack_spans(group.settled),
                    failures=b"".join([_FAILURE.pack(o, *failure) for o, failure in sorted(group.failures.items())]),
                    sessions=b"".join(group.sessions),
                    burials=[_dump_burial(offset, burial) for offset, burial in group.burials.items()],
                )
            )

    @classmethod
    def load(cls, state: pb.State, cursors: Mapping[str, Cursor], end: int) -> QueueGroups:
        """The inverse of `dump`, for a log that ends at `end`, but for staged acks: StagedAcks.load puts those into the
        groups. Raises CorruptData for anything that `dump` cannot write."""
        table = cls()
        before = ""
        for packed in state.queue_groups:
            cursor = cursors.get(packed.group)
            _check(packed.group > before and cursor is not None and cursor.kind == CursorKind.QUEUE)
            before = packed.group
            table._groups[before] = _load_group(packed, end)
        _check(len(table._groups) == sum(cursor.kind == CursorKind.QUEUE for cursor in cursors.values()))
        return table


# ---- the rules: each returns the cursor's new position, and the records that were refused -----------------------


def _settle(
    group: QueueGroup, command: pb.SettleRecords, context: EntryContext, current: bool
) -> tuple[int, list[Span]]:
    check_current(current)
    acks = [Ack(start, end) for start, end in _items(_SPAN, command.acked)]
    acks += [Ack(offset, offset + 1, prior) for offset, prior in sorted(_items(_SPAN, command.acked_in_order))]
    charges = _charges(command.failed)
    if not all(ack.start < ack.end for ack in acks):
        raise InvalidRequest("an empty range of acks")
    position, refused = group.ack(acks, context)
    return position, refused + group.charge(charges, context._replace(position=position))


def _open_session(
    group: QueueGroup, command: pb.OpenQueueSession, context: EntryContext, current: bool
) -> tuple[int, list[Span]]:
    if len(command.session) != SESSION_BYTES:
        raise InvalidRequest(f"a session has an id of {SESSION_BYTES} bytes, not {len(command.session)}")
    if command.session not in group.sessions and (len(group.sessions) >= SESSIONS_MAX or not context.has_room):
        raise QuotaExceeded(f"a queue group has at most {SESSIONS_MAX} workers at a partition")
    group.open_session(command.session)
    return context.position, []


def _end_session(
    group: QueueGroup, command: pb.EndQueueSession, context: EntryContext, current: bool
) -> tuple[int, list[Span]]:
    charges, returned = _charges(command.failed), [offset for (offset,) in _items(_OFFSET, command.returned)]
    # The session ends in any case. Its charges and returns count only if no seek or loss came since its grants.
    group.end_session(command.session, charges if current else (), returned if current else (), context)
    return context.position, []


def _raise_mark(
    group: QueueGroup, command: pb.RaiseGrantMark, context: EntryContext, current: bool
) -> tuple[int, list[Span]]:
    check_current(current)
    group.granted_below = max(group.granted_below, command.granted_below)
    return context.position, []


def _bury(group: QueueGroup, command: pb.BuryRecord, context: EntryContext, current: bool) -> tuple[int, list[Span]]:
    known = group.burials.get(command.offset)
    if known is None or known.message_id != command.message_id:
        check_current(current)  # not for a burial that is under way, which goes on after a seek
    if known is None and len(group.burials) >= BURIALS_MAX:
        raise QuotaExceeded(f"{BURIALS_MAX} records are being buried already", retry_after_ms=1000)
    if len(command.message_id) != MESSAGE_ID_BYTES or len(command.topic_id) != MESSAGE_ID_BYTES:
        raise InvalidRequest("a burial has a message id and a topic id of 16 bytes")
    if len(command.headers) > BURIAL_BYTES_MAX or command.offset >= context.end:
        raise InvalidRequest("a burial of a record that is not there, or with too many headers")
    burial = Burial(
        message_id=command.message_id,
        generation=group.generation,
        topic_id=command.topic_id,
        partition=command.partition,
        end=command.end,
        headers=command.headers,
    )
    done = group.bury(command.offset, burial, context.position)
    return context.position, [] if done else [(command.offset, command.offset + 1)]


def _end_burial(
    group: QueueGroup, command: pb.EndBurial, context: EntryContext, current: bool
) -> tuple[int, list[Span]]:
    return group.buried(command.message_id, context.position), []


_RULES: dict[str, Callable[[QueueGroup, Any, EntryContext, bool], tuple[int, list[Span]]]] = {
    "settle": _settle,
    "open_session": _open_session,
    "end_session": _end_session,
    "raise_mark": _raise_mark,
    "bury": _bury,
    "buried": _end_burial,
}
QUEUE_COMMANDS = frozenset(_RULES)


def check_current(current: bool) -> None:
    """Raise Fenced for a command from before a seek, or from before a loss of records."""
    if not current:
        raise Fenced("the group was moved by a seek, or records were lost, since these records were granted")


def unpack_spans(packed: bytes) -> list[Span]:
    """The ranges of a command that stages acks. Raises InvalidRequest if there are none, or if they are out of order or
    touch each other."""
    spans = [(start, end) for start, end in _items(_SPAN, packed)]
    before = -1
    for start, end in spans:
        if not before < start < end:
            raise InvalidRequest("the ranges of staged acks are out of order")
        before = end
    if not spans:
        raise InvalidRequest("a command stages acks of no record")
    return spans


def pack_spans(spans: Iterable[Span]) -> bytes:
    """The inverse of `unpack_spans`."""
    return b"".join([_SPAN.pack(*span) for span in spans])


def _charges(packed: bytes) -> list[Charge]:
    return [Charge(offset, delivery, delay_ms) for offset, delivery, delay_ms in _items(_CHARGE, packed)]


def _items(form: struct.Struct, packed: bytes) -> Iterator[tuple[Any, ...]]:
    if len(packed) % form.size:
        raise InvalidRequest(f"{len(packed)} bytes are no items of {form.size} bytes each")
    return form.iter_unpack(packed)


def _dump_burial(offset: int, burial: Burial) -> pb.Burial:
    return pb.Burial(
        offset=offset,
        message_id=burial.message_id,
        generation=burial.generation,
        topic_id=burial.topic_id,
        partition=burial.partition,
        end=burial.end,
        headers=burial.headers,
    )


def _load_group(packed: pb.QueueGroup, end: int) -> QueueGroup:
    group = QueueGroup(packed.generation, granted_below=packed.granted_below)
    _check(len(packed.settled) % _SPAN.size == len(packed.failures) % _FAILURE.size == 0)
    _check(len(packed.sessions) % SESSION_BYTES == 0)
    # `dump` writes ranges in order, and no two that touch. Refuse any other bytes, because `dump` would not reproduce
    # them.
    before = -1
    for start, stop in _SPAN.iter_unpack(packed.settled):
        _check(before < start < stop <= end)
        before = stop
        group.settled.add(start, stop)
    before = -1
    for offset, *known in _FAILURE.iter_unpack(packed.failures):
        _check(before < offset < end and offset not in group.settled)
        before = offset
        group.failures[offset] = Failure(*known)
    sessions = packed.sessions
    for at in range(0, len(sessions), SESSION_BYTES):
        group.open_session(sessions[at : at + SESSION_BYTES])
    for buried in packed.burials:
        _check(buried.offset < end and len(buried.message_id) == len(buried.topic_id) == MESSAGE_ID_BYTES)
        _check(len(buried.headers) <= BURIAL_BYTES_MAX)
        group.burials[buried.offset] = Burial(
            message_id=buried.message_id,
            generation=buried.generation,
            topic_id=buried.topic_id,
            partition=buried.partition,
            end=buried.end,
            headers=buried.headers,
        )
    _check(len(group.settled) <= LOADED_RANGES_MAX and len(group.failures) <= FAILURES_MAX)
    _check(len(group.sessions) * SESSION_BYTES == len(sessions) and len(group.sessions) <= SESSIONS_MAX)
    _check(len(group.burials) == len(packed.burials) <= BURIALS_MAX)
    return group


def _check(holds: bool) -> None:
    if not holds:
        raise CorruptData("the applied state's queue groups are out of range")
