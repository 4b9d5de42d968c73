"""The cursors of a partition's channels: each rule a pure function, and the table that they are applied to.

Replicated: it changes in `apply` alone, by what the log says, the same on every replica. A cursor's generation is a
number that no cursor of the partition has had before; a seek gives a new one, and so does a channel that is made
again, so that a commit on its way from before either is refused.

What was taken by Consume is remembered by request, for the partition as a whole, so that one bound holds for any
number of channels. Packed, little-endian, oldest first:

    offset size field
         0    4 number      u32  of the cursor
         4   16 request_id
        20    8 offset      u64  the record that it got
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tinymq.base.errors import (
    CorruptData,
    Fenced,
    InvalidName,
    InvalidRequest,
    OffsetOutOfRange,
    QuotaExceeded,
    TinymqError,
    UnknownChannel,
)
from tinymq.base.types import check_channel_name
from tinymq.broker.state.outcome import CommandOutcome, OffsetBounds
from tinymq.proto import partition_pb2 as pb

# Part of the replicated behaviour, not settings: brokers that differed here would differ in state.
CHANNELS_MAX = 1000
TAKEN_MAX = 10_000  # Consumes that are remembered, of all channels together
REQUEST_ID_BYTES = 16

_NUMBERS = 1 << 32
_TAKEN = struct.Struct("<I16sQ")


class Cursor(NamedTuple):
    """Where a channel goes on reading, and who may move it."""

    number: int  # its first generation
    position: int  # may be below the log start: `OffsetBounds.log_start` counts then
    epoch: int  # of the newest consumer; 0: none was assigned
    generation: int
    moved_us: int
    last_seek: bytes  # request id; b"": none


class ConsumerVerdict(NamedTuple):
    """What a command comes to, before anything is changed."""

    outcome: CommandOutcome
    cursor: Cursor | None  # as it will be; None: there is none
    changes: bool
    settled: bool = False  # nothing that other replicas know could make it another one


# ---- the rules --------------------------------------------------------------------------------------------------


def opened(cursor: Cursor | None, said: pb.OpenChannel, at: OffsetBounds, number: int) -> Cursor:
    """Made where there is none. A higher epoch fences the consumers before it, 0 nobody. Raises Fenced."""
    if cursor is None:
        position = min(max(said.start, at.log_start), at.end)
        return Cursor(number, position, said.epoch, number, at.now_us, b"")
    if said.epoch and said.epoch < cursor.epoch:
        raise Fenced(f"epoch {said.epoch} of channel {said.channel!r}: the newest is {cursor.epoch}")
    return _of_epoch(cursor, said.epoch, at)


def committed(cursor: Cursor, said: pb.Commit, at: OffsetBounds) -> Cursor:
    """Forward only. Raises Fenced, OffsetOutOfRange."""
    check_epoch(cursor, said.channel, said.epoch)
    if said.generation != cursor.generation:
        raise Fenced(f"channel {said.channel!r} was moved by somebody else, to {cursor.position}")
    check_within(said.offset, 0, at)
    cursor = _of_epoch(cursor, said.epoch, at)
    return cursor._replace(position=said.offset, moved_us=at.now_us) if said.offset > cursor.position else cursor


def sought(cursor: Cursor, said: pb.Seek, at: OffsetBounds, number: int) -> Cursor:
    """Anywhere, once per request. Raises Fenced, OffsetOutOfRange."""
    if said.request_id == cursor.last_seek:
        return cursor
    check_epoch(cursor, said.channel, said.epoch)
    check_within(said.offset, at.log_start, at)
    return Cursor(cursor.number, said.offset, said.epoch, number, at.now_us, said.request_id)


def next_record(cursor: Cursor, at: OffsetBounds) -> int | None:
    """The offset that the channel's next reader gets; None: there is none yet."""
    offset = max(cursor.position, at.log_start)
    return offset if offset < at.end else None


def _of_epoch(cursor: Cursor, epoch: int, at: OffsetBounds) -> Cursor:
    return cursor._replace(epoch=epoch, moved_us=at.now_us) if epoch > cursor.epoch else cursor


def check_epoch(cursor: Cursor, channel: str, epoch: int) -> None:
    """Raise Fenced if a newer consumer has replaced the one of `epoch`."""
    if epoch < cursor.epoch:
        raise Fenced(f"epoch {epoch} of channel {channel!r}: the newest is {cursor.epoch}")


def check_within(offset: int, least: int, at: OffsetBounds) -> None:
    """Raise OffsetOutOfRange unless `offset` lies between `least` and the end of the log."""
    if not least <= offset <= at.end:
        raise OffsetOutOfRange(
            f"offset {offset} is not within {least} and {at.end}",
            hint="what is there is in the error's detail",
            log_start=at.log_start,
            high_watermark=at.end,
        )


def _check_request_id(request_id: bytes) -> None:
    if len(request_id) != REQUEST_ID_BYTES:
        raise InvalidRequest(f"a request id has {REQUEST_ID_BYTES} bytes, not {len(request_id)}")


# ---- the table --------------------------------------------------------------------------------------------------


class Channels:
    """All cursors of a partition, by name."""

    __slots__ = ("_cursors", "_given", "_taken")

    def __init__(self) -> None:
        self._cursors: dict[str, Cursor] = {}
        self._taken: OrderedDict[tuple[int, bytes], int] = OrderedDict()
        self._given = 0  # the newest number or generation

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        """As they are now; a view."""
        return MappingProxyType(self._cursors)

    def judge(self, name: str, command: Any, at: OffsetBounds) -> ConsumerVerdict:
        """What `command`, the channel command called `name` in pb.Command, comes to at `at`. Total, changes nothing."""
        cursor = self._cursors.get(command.channel)
        try:
            return _RULES[name](self, cursor, command, at)
        except TinymqError as error:
            return ConsumerVerdict(_outcome(cursor, at, error=error), cursor, False)

    def apply(self, name: str, command: Any, at: OffsetBounds) -> CommandOutcome:
        """As `judge`, and the table is what it comes to. Never raises."""
        outcome, cursor, changes, _ = self.judge(name, command, at)
        if changes:
            self._change(command, outcome, cursor)
        return outcome

    def _change(self, command: Any, outcome: CommandOutcome, cursor: Cursor | None) -> None:
        if cursor is None:
            del self._cursors[command.channel]
            return
        self._cursors[command.channel] = cursor
        if cursor.generation == self._next_number():
            self._given = cursor.generation
        if outcome.taken:
            self._taken[cursor.number, command.request_id] = outcome.offset
            if len(self._taken) > TAKEN_MAX:
                self._taken.popitem(last=False)

    def _next_number(self) -> int:
        return (self._given + 1) % _NUMBERS

    def _open(self, cursor: Cursor | None, command: pb.OpenChannel, at: OffsetBounds) -> ConsumerVerdict:
        if cursor is None:
            check_channel_name(command.channel)
            if len(self._cursors) >= CHANNELS_MAX:
                raise QuotaExceeded(
                    f"a partition has at most {CHANNELS_MAX} channels", hint="delete those that nobody reads any more"
                )
        return _moved(cursor, opened(cursor, command, at, self._next_number()), at)

    def _commit(self, cursor: Cursor | None, command: pb.Commit, at: OffsetBounds) -> ConsumerVerdict:
        cursor = _known(cursor, command.channel)
        return _moved(cursor, committed(cursor, command, at), at)._replace(settled=True)

    def _seek(self, cursor: Cursor | None, command: pb.Seek, at: OffsetBounds) -> ConsumerVerdict:
        _check_request_id(command.request_id)
        cursor = _known(cursor, command.channel)
        return _moved(cursor, sought(cursor, command, at, self._next_number()), at)

    def _consume(self, cursor: Cursor | None, command: pb.Consume, at: OffsetBounds) -> ConsumerVerdict:
        _check_request_id(command.request_id)
        cursor = _known(cursor, command.channel)
        offset = self._taken.get((cursor.number, command.request_id))
        if offset is not None:
            return ConsumerVerdict(_outcome(cursor, at, taken=True, offset=offset), cursor, False, True)
        offset = next_record(cursor, at)
        if offset is None:
            return ConsumerVerdict(_outcome(cursor, at), cursor, False)
        cursor = cursor._replace(position=offset + 1, moved_us=at.now_us)
        return ConsumerVerdict(_outcome(cursor, at, taken=True, offset=offset), cursor, True)

    def _delete(self, cursor: Cursor | None, command: pb.DeleteChannel, at: OffsetBounds) -> ConsumerVerdict:
        return ConsumerVerdict(_outcome(_known(cursor, command.channel), at), None, True)

    # ---- as bytes

    def dump(self, state: pb.State) -> None:
        """Into `state`, in an order that the table alone decides."""
        state.numbers_given = self._given
        cursors = self._cursors
        state.channels.extend(
            [
                pb.Cursor(
                    channel=name, position=c.position, epoch=c.epoch, generation=c.generation, moved_us=c.moved_us,
                    number=c.number, last_seek=c.last_seek,
                )
                for name, c in sorted(cursors.items())
            ]
        )  # fmt: skip
        pack = _TAKEN.pack
        state.taken = b"".join([pack(number, request, at) for (number, request), at in self._taken.items()])

    @classmethod
    def load(cls, state: pb.State, end: int) -> Channels:
        """The inverse of `dump`, for a log that ends at `end`. Raises CorruptData for what it did not make."""
        made = cls()
        made._given = state.numbers_given
        before = ""
        for c in state.channels:
            _check(c.channel > before and c.position <= end and len(c.last_seek) in (0, REQUEST_ID_BYTES))
            try:
                before = check_channel_name(c.channel)
            except InvalidName as error:
                raise CorruptData(f"the applied state's channels: {error.message}") from None
            made._cursors[before] = Cursor(c.number, c.position, c.epoch, c.generation, c.moved_us, c.last_seek)
        _check(len(made._cursors) <= CHANNELS_MAX and len(state.taken) % _TAKEN.size == 0)
        made._taken = OrderedDict(((number, request), at) for number, request, at in _TAKEN.iter_unpack(state.taken))
        count = len(state.taken) // _TAKEN.size
        _check(len(made._taken) == count <= TAKEN_MAX and all(at < end for at in made._taken.values()))
        return made


_RULES: dict[str, Callable[[Channels, Cursor | None, Any, OffsetBounds], ConsumerVerdict]] = {
    "open": Channels._open,
    "commit": Channels._commit,
    "seek": Channels._seek,
    "delete": Channels._delete,
    "consume": Channels._consume,
}
CHANNEL_COMMANDS = frozenset(_RULES)


def _known(cursor: Cursor | None, channel: str) -> Cursor:
    if cursor is None:
        raise UnknownChannel(f"no channel {channel[:300]!r}")
    return cursor


def _moved(before: Cursor | None, cursor: Cursor, at: OffsetBounds) -> ConsumerVerdict:
    return ConsumerVerdict(_outcome(cursor, at), cursor, cursor is not before)


def _outcome(
    cursor: Cursor | None, at: OffsetBounds, *, error: TinymqError | None = None, taken: bool = False, offset: int = 0
) -> CommandOutcome:
    if cursor is None:
        return CommandOutcome(error, log_start=at.log_start, high_watermark=at.end)
    position = max(cursor.position, at.log_start)
    return CommandOutcome(error, position, cursor.epoch, cursor.generation, taken, offset, at.log_start, at.end)


def _check(holds: bool) -> None:
    if not holds:
        raise CorruptData("the applied state's channels are out of range")
