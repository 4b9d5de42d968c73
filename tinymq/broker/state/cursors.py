"""The table of a partition's cursors, and the records that Consume requests took.

The table is replicated: it changes only in `apply`, by the entries of the log, and is the same on every replica. A
cursor's generation is a number that no cursor of the partition had before. A seek gives the cursor a new one, and a
channel that is deleted and opened again has a new one, so that a commit from before either is refused.

The table remembers which record each Consume request took, for the partition as a whole, so that one bound holds for
any number of channels. Packed, little-endian, oldest first:

    offset size field
         0    4 number      u32  of the cursor
         4   16 request_id
        20    8 offset      u64  of the record that the request took
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tinymq.base.errors import (
    CorruptData,
    InvalidName,
    InvalidRequest,
    QuotaExceeded,
    TinymqError,
    UnknownChannel,
    UnknownGroup,
)
from tinymq.base.types import check_channel_name
from tinymq.broker.state.cursor import (
    GROUP_KINDS,
    KINDS,
    REQUEST_ID_BYTES,
    SESSION_BYTES_MAX,
    Cursor,
    CursorKind,
    check_identity,
    check_request_id,
    committed,
    made,
    next_record,
    opened,
    published,
    sought,
)
from tinymq.broker.state.outcome import CommandOutcome, OffsetBounds
from tinymq.proto import partition_pb2 as pb

# Part of the replicated behaviour, not settings: replicas with different values would compute different states.
CHANNELS_MAX = 1000  # cursors of a partition, for entries that builds of feature level 1 can read
CURSORS_MAX = 2000  # of all kinds, for entries of feature level 2
TAKEN_MAX = 10_000  # remembered Consume requests, of all channels together

_NUMBERS = 1 << 32
_TAKEN = struct.Struct("<I16sQ")


def cursors_max(version: int) -> int:
    """How many cursors a partition may have after a command in an entry of that version."""
    return CURSORS_MAX if version >= 2 else CHANNELS_MAX


class CursorVerdict(NamedTuple):
    """The outcome that a command would have. Judging it changes nothing."""

    outcome: CommandOutcome
    cursor: Cursor | None  # the cursor after the command; None: it does not exist then
    changes: bool  # whether applying the command changes the table
    settled: bool = False  # whether the outcome is certain even if this leader is deposed and does not know it


class Cursors:
    """All cursors of a partition, by name, and the records that Consume requests took."""

    __slots__ = ("_cursors", "_last_number", "_taken", "by_name")

    def __init__(self) -> None:
        self._cursors: dict[str, Cursor] = {}
        self.by_name: Mapping[str, Cursor] = MappingProxyType(self._cursors)
        """A view of the present cursors."""
        self._taken: OrderedDict[tuple[int, bytes], int] = OrderedDict()  # offset by (cursor number, request id)
        self._last_number = 0  # the newest number or generation; wraps at 2^32

    def judge(self, name: str, command: Any, bounds: OffsetBounds) -> CursorVerdict:
        """The verdict on the command that pb.Command calls `name`. Never raises, and changes nothing."""
        cursor = self._cursors.get(cursor_name(command))
        try:
            if cursor is not None and name not in ("make", "drop"):
                check_identity(cursor, command.channel, *_identity(name, command))
            return _RULES[name](self, cursor, command, bounds)
        except TinymqError as error:
            return CursorVerdict(_outcome(cursor, bounds, error=error), cursor, False)

    def apply(self, name: str, command: Any, bounds: OffsetBounds) -> CommandOutcome:
        """Carry out a command on a cursor, and return its outcome. Never raises."""
        outcome, cursor, changes, _ = self.judge(name, command, bounds)
        if changes:
            self._change(command, outcome, cursor)
        return outcome

    def _change(self, command: Any, outcome: CommandOutcome, cursor: Cursor | None) -> None:
        name = cursor_name(command)
        if cursor is None:
            del self._cursors[name]
            return
        self._cursors[name] = cursor
        if cursor.generation == self._next_number():  # the rule has used the next number
            self._last_number = cursor.generation
        if outcome.taken:
            self._taken[cursor.number, command.request_id] = outcome.offset
            if len(self._taken) > TAKEN_MAX:
                self._taken.popitem(last=False)

    def move(self, name: str, position: int, now_us: int) -> None:
        """Move the cursor of a queue group forward, over records that it has settled."""
        self._cursors[name] = self._cursors[name]._replace(position=position, moved_us=now_us)

    def check_staged(self, commit: pb.Commit, bounds: OffsetBounds) -> None:
        """Raise what refuses a commit that a transaction stages: UnknownGroup, WrongKind, InvalidRequest, Fenced,
        OffsetOutOfRange."""
        if commit.kind != pb.STREAM:
            raise InvalidRequest("a transaction commits offsets of stream groups only")
        cursor = _existing(self._cursors.get(commit.channel), commit.channel, commit.kind)
        check_identity(cursor, commit.channel, commit.kind, commit.group_id)
        committed(cursor, commit, bounds)

    def publish(self, commit: pb.Commit, now_us: int) -> None:
        """Carry out a commit that a transaction has staged, and that was committed with it."""
        cursor = self._cursors.get(commit.channel)
        if cursor is not None:
            self._cursors[commit.channel] = published(cursor, commit, now_us)

    def _next_number(self) -> int:
        return (self._last_number + 1) % _NUMBERS

    def _check_count(self, bounds: OffsetBounds) -> None:
        if len(self._cursors) >= bounds.cursors_max:
            hint = "delete the channels and groups that are no longer read"
            raise QuotaExceeded(f"a partition has at most {bounds.cursors_max} channels and groups", hint=hint)

    def _open(self, cursor: Cursor | None, command: pb.OpenChannel, bounds: OffsetBounds) -> CursorVerdict:
        if cursor is None:
            if command.kind != pb.CHANNEL:
                raise _unknown(command.channel, command.kind)
            check_channel_name(command.channel)
            self._check_count(bounds)
        return _moved(cursor, opened(cursor, command, bounds, self._next_number()), bounds)

    def _commit(self, cursor: Cursor | None, command: pb.Commit, bounds: OffsetBounds) -> CursorVerdict:
        cursor = _existing(cursor, command.channel, command.kind)
        # `settled` is True although a deposed leader may be answering: a commit that does not move the cursor is
        # harmless. In the worst case this confirms a commit of a consumer that is fenced already.
        return _moved(cursor, committed(cursor, command, bounds), bounds)._replace(settled=True)

    def _seek(self, cursor: Cursor | None, command: pb.Seek, bounds: OffsetBounds) -> CursorVerdict:
        check_request_id(command.request_id)
        cursor = _existing(cursor, command.channel, command.kind)
        return _moved(cursor, sought(cursor, command, bounds, self._next_number()), bounds)

    def _consume(self, cursor: Cursor | None, command: pb.Consume, bounds: OffsetBounds) -> CursorVerdict:
        check_request_id(command.request_id)
        cursor = _existing(cursor, command.channel)
        offset = self._taken.get((cursor.number, command.request_id))
        if offset is not None:
            # A repeat gets the record that it took the first time, even if that record is removed by now.
            return CursorVerdict(_outcome(cursor, bounds, taken=True, offset=offset), cursor, False, True)
        offset = next_record(cursor, bounds)
        if offset is None:
            return CursorVerdict(_outcome(cursor, bounds), cursor, False)
        cursor = cursor._replace(position=offset + 1, moved_us=bounds.now_us)
        return CursorVerdict(_outcome(cursor, bounds, taken=True, offset=offset), cursor, True)

    def _delete(self, cursor: Cursor | None, command: pb.DeleteChannel, bounds: OffsetBounds) -> CursorVerdict:
        return CursorVerdict(_outcome(_existing(cursor, command.channel), bounds), None, True)

    def _make(self, cursor: Cursor | None, command: pb.MakeCursor, bounds: OffsetBounds) -> CursorVerdict:
        check_channel_name(command.name)
        if int(command.kind) not in GROUP_KINDS or not command.group_id:
            raise InvalidRequest(f"kind {command.kind} and id {command.group_id} name no group")
        if cursor is None:
            self._check_count(bounds)
        return _moved(cursor, made(cursor, command, bounds, self._next_number()), bounds)

    def _drop(self, cursor: Cursor | None, command: pb.DropCursor, bounds: OffsetBounds) -> CursorVerdict:
        # Leave a channel, or the cursor of a later group of the same name, as it is: the command is not about it.
        if cursor is None or cursor.kind == CursorKind.CHANNEL or cursor.group_id > command.group_id:
            return CursorVerdict(_outcome(None, bounds), cursor, False)
        return CursorVerdict(_outcome(None, bounds), None, True)

    # ---- as bytes

    def dump(self, state: pb.State) -> None:
        """Write the table into `state`, in an order that depends on nothing but the table."""
        state.last_number = self._last_number
        for name, c in sorted(self._cursors.items()):
            state.channels.add(
                channel=name, position=c.position, epoch=c.epoch, generation=c.generation, moved_us=c.moved_us,
                number=c.number, last_seek=c.last_seek, kind=pb.CursorKind.ValueType(c.kind), group_id=c.group_id,
                session=c.session,
            )  # fmt: skip
        pack = _TAKEN.pack
        state.taken = b"".join([pack(number, request, offset) for (number, request), offset in self._taken.items()])

    @classmethod
    def load(cls, state: pb.State, end: int) -> Cursors:
        """The inverse of `dump`, for a log that ends at `end`. Raises CorruptData for anything that `dump` cannot
        write."""
        cursors = cls()
        cursors._last_number = state.last_number
        before = ""
        for c in state.channels:
            _check(c.channel > before and c.position <= end and len(c.last_seek) in (0, REQUEST_ID_BYTES))
            _check(c.kind in KINDS and bool(c.group_id) == (int(c.kind) in GROUP_KINDS))
            _check(not c.session or (c.kind == pb.STREAM and len(c.session) <= SESSION_BYTES_MAX))
            try:
                before = check_channel_name(c.channel)
            except InvalidName as error:
                raise CorruptData(f"the applied state's cursors: {error.message}") from None
            cursors._cursors[before] = Cursor(
                number=c.number, position=c.position, epoch=c.epoch, generation=c.generation, moved_us=c.moved_us,
                last_seek=c.last_seek, kind=c.kind, group_id=c.group_id, session=c.session,
            )  # fmt: skip
        _check(len(cursors._cursors) <= CURSORS_MAX and len(state.taken) % _TAKEN.size == 0)
        cursors._taken = OrderedDict(
            ((number, request), offset) for number, request, offset in _TAKEN.iter_unpack(state.taken)
        )
        count = len(state.taken) // _TAKEN.size
        _check(len(cursors._taken) == count <= TAKEN_MAX and all(offset < end for offset in cursors._taken.values()))
        return cursors


_RULES: dict[str, Callable[[Cursors, Cursor | None, Any, OffsetBounds], CursorVerdict]] = {
    "open": Cursors._open,
    "commit": Cursors._commit,
    "seek": Cursors._seek,
    "delete": Cursors._delete,
    "consume": Cursors._consume,
    "make": Cursors._make,
    "drop": Cursors._drop,
}
CURSOR_COMMANDS = frozenset(_RULES)


def cursor_name(command: Any) -> str:
    """The name of the cursor that a command is about."""
    name: str = command.name if isinstance(command, pb.MakeCursor | pb.DropCursor) else command.channel
    return name


def _identity(name: str, command: Any) -> tuple[int, int]:
    """The kind and the group id that a command names. `delete` and `consume` exist for channels only."""
    return (command.kind, command.group_id) if name in ("open", "commit", "seek") else (CursorKind.CHANNEL, 0)


def _existing(cursor: Cursor | None, name: str, kind: int = CursorKind.CHANNEL) -> Cursor:
    if cursor is None:
        raise _unknown(name, kind)
    return cursor


def _unknown(name: str, kind: int) -> TinymqError:
    if kind == CursorKind.CHANNEL:
        return UnknownChannel(f"no channel {name[:300]!r}")
    return UnknownGroup(f"this partition has no cursor of a group {name[:300]!r}")


def _moved(before: Cursor | None, cursor: Cursor, bounds: OffsetBounds) -> CursorVerdict:
    return CursorVerdict(_outcome(cursor, bounds), cursor, cursor is not before)


def _outcome(
    cursor: Cursor | None,
    bounds: OffsetBounds,
    *,
    error: TinymqError | None = None,
    taken: bool = False,
    offset: int = 0,
) -> CommandOutcome:
    if cursor is None:
        return CommandOutcome(error, log_start=bounds.log_start, high_watermark=bounds.end)
    position = max(cursor.position, bounds.log_start)
    return CommandOutcome(
        error=error,
        position=position,
        epoch=cursor.epoch,
        generation=cursor.generation,
        taken=taken,
        offset=offset,
        log_start=bounds.log_start,
        high_watermark=bounds.end,
    )


def _check(holds: bool) -> None:
    if not holds:
        raise CorruptData("the applied state's cursors are out of range")
