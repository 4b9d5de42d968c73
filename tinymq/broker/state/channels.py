"""The cursors of a partition's channels: pure rules, and the table that they are applied to.

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

# Part of the replicated behaviour, not settings: replicas with different values would compute different states.
CHANNELS_MAX = 1000
TAKEN_MAX = 10_000  # remembered Consume requests, of all channels together
REQUEST_ID_BYTES = 16

_NUMBERS = 1 << 32
_TAKEN = struct.Struct("<I16sQ")


class Cursor(NamedTuple):
    """The place from which a channel reads on, and the newest consumer that may move it."""

    number: int  # its first generation; names the cursor for as long as the channel exists
    position: int  # next offset to read; below the log start, the log start counts
    epoch: int  # of the newest consumer, which fences all earlier ones; 0: no consumer was assigned
    generation: int  # changes with every seek
    moved_us: int  # append time of the last entry that changed the cursor
    last_seek: bytes  # request id of the last seek, which a repeat does not carry out again; b"": none


class ConsumerVerdict(NamedTuple):
    """The outcome that a command has, before anything is changed."""

    outcome: CommandOutcome
    cursor: Cursor | None  # as the command leaves it; None: the channel does not exist afterwards
    changes: bool  # whether applying the command changes the table
    settled: bool = False  # no other replica can know anything that leads to another outcome


# ---- the rules --------------------------------------------------------------------------------------------------


def opened(cursor: Cursor | None, command: pb.OpenChannel, bounds: OffsetBounds, number: int) -> Cursor:
    """The cursor of an opened channel, made if there is none. A higher epoch fences all earlier consumers, and epoch 0
    fences nobody. Raises Fenced."""
    if cursor is None:
        position = min(max(command.start, bounds.log_start), bounds.end)
        return Cursor(number, position, command.epoch, number, bounds.now_us, b"")
    if command.epoch and command.epoch < cursor.epoch:
        raise Fenced(f"epoch {command.epoch} of channel {command.channel!r}: the newest is {cursor.epoch}")
    return _of_epoch(cursor, command.epoch, bounds)


def committed(cursor: Cursor, command: pb.Commit, bounds: OffsetBounds) -> Cursor:
    """The cursor after a commit, which moves it forward only. Raises Fenced, OffsetOutOfRange."""
    check_epoch(cursor, command.channel, command.epoch)
    if command.generation != cursor.generation:
        raise Fenced(f"channel {command.channel!r} was moved by another consumer, to {cursor.position}")
    check_within(command.offset, 0, bounds)
    cursor = _of_epoch(cursor, command.epoch, bounds)
    return (
        cursor._replace(position=command.offset, moved_us=bounds.now_us) if command.offset > cursor.position else cursor
    )


def sought(cursor: Cursor, command: pb.Seek, bounds: OffsetBounds, number: int) -> Cursor:
    """The cursor after a seek to any kept offset, once per request. Raises Fenced, OffsetOutOfRange."""
    if command.request_id == cursor.last_seek:
        return cursor
    check_epoch(cursor, command.channel, command.epoch)
    check_within(command.offset, bounds.log_start, bounds)
    return Cursor(cursor.number, command.offset, command.epoch, number, bounds.now_us, command.request_id)


def next_record(cursor: Cursor, bounds: OffsetBounds) -> int | None:
    """The offset of the channel's next record; None: there is no such record yet."""
    offset = max(cursor.position, bounds.log_start)
    return offset if offset < bounds.end else None


def _of_epoch(cursor: Cursor, epoch: int, bounds: OffsetBounds) -> Cursor:
    return cursor._replace(epoch=epoch, moved_us=bounds.now_us) if epoch > cursor.epoch else cursor


def check_epoch(cursor: Cursor, channel: str, epoch: int) -> None:
    """Raise Fenced if a newer consumer has replaced the one of `epoch`."""
    if epoch < cursor.epoch:
        raise Fenced(f"epoch {epoch} of channel {channel!r}: the newest is {cursor.epoch}")


def check_within(offset: int, least: int, bounds: OffsetBounds) -> None:
    """Raise OffsetOutOfRange unless `offset` lies between `least` and the end of the log."""
    if not least <= offset <= bounds.end:
        raise OffsetOutOfRange(
            f"offset {offset} is not within {least} and {bounds.end}",
            hint="the error's detail has the log start and the high watermark",
            log_start=bounds.log_start,
            high_watermark=bounds.end,
        )


def _check_request_id(request_id: bytes) -> None:
    if len(request_id) != REQUEST_ID_BYTES:
        raise InvalidRequest(f"a request id has {REQUEST_ID_BYTES} bytes, not {len(request_id)}")


# ---- the table --------------------------------------------------------------------------------------------------


class Channels:
    """All cursors of a partition, by channel, and the records that Consume requests took."""

    __slots__ = ("_cursors", "_last_number", "_taken")

    def __init__(self) -> None:
        self._cursors: dict[str, Cursor] = {}
        self._taken: OrderedDict[tuple[int, bytes], int] = OrderedDict()  # offset by (cursor number, request id)
        self._last_number = 0  # the newest number or generation; wraps at 2^32

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        """A view of the present cursors."""
        return MappingProxyType(self._cursors)

    def judge(self, name: str, command: Any, bounds: OffsetBounds) -> ConsumerVerdict:
        """The verdict on the channel command that pb.Command calls `name`. Never raises, and changes nothing."""
        cursor = self._cursors.get(command.channel)
        try:
            return _RULES[name](self, cursor, command, bounds)
        except TinymqError as error:
            return ConsumerVerdict(_outcome(cursor, bounds, error=error), cursor, False)

    def apply(self, name: str, command: Any, bounds: OffsetBounds) -> CommandOutcome:
        """Carry out a channel command, and return its outcome. Never raises."""
        outcome, cursor, changes, _ = self.judge(name, command, bounds)
        if changes:
            self._change(command, outcome, cursor)
        return outcome

    def _change(self, command: Any, outcome: CommandOutcome, cursor: Cursor | None) -> None:
        if cursor is None:
            del self._cursors[command.channel]
            return
        self._cursors[command.channel] = cursor
        if cursor.generation == self._next_number():  # the rule has used the next number
            self._last_number = cursor.generation
        if outcome.taken:
            self._taken[cursor.number, command.request_id] = outcome.offset
            if len(self._taken) > TAKEN_MAX:
                self._taken.popitem(last=False)

    def _next_number(self) -> int:
        return (self._last_number + 1) % _NUMBERS

    def _open(self, cursor: Cursor | None, command: pb.OpenChannel, bounds: OffsetBounds) -> ConsumerVerdict:
        if cursor is None:
            check_channel_name(command.channel)
            if len(self._cursors) >= CHANNELS_MAX:
                hint = "delete the channels that are no longer read"
                raise QuotaExceeded(f"a partition has at most {CHANNELS_MAX} channels", hint=hint)
        return _moved(cursor, opened(cursor, command, bounds, self._next_number()), bounds)

    def _commit(self, cursor: Cursor | None, command: pb.Commit, bounds: OffsetBounds) -> ConsumerVerdict:
        cursor = _existing(cursor, command.channel)
        # Settled, although a deposed leader may say it: a commit that moves nothing cannot move the cursor elsewhere
        # either, so the worst case is a confirmation for a consumer that is fenced already.
        return _moved(cursor, committed(cursor, command, bounds), bounds)._replace(settled=True)

    def _seek(self, cursor: Cursor | None, command: pb.Seek, bounds: OffsetBounds) -> ConsumerVerdict:
        _check_request_id(command.request_id)
        cursor = _existing(cursor, command.channel)
        return _moved(cursor, sought(cursor, command, bounds, self._next_number()), bounds)

    def _consume(self, cursor: Cursor | None, command: pb.Consume, bounds: OffsetBounds) -> ConsumerVerdict:
        _check_request_id(command.request_id)
        cursor = _existing(cursor, command.channel)
        offset = self._taken.get((cursor.number, command.request_id))
        if offset is not None:
            # A repeat gets the record that it took the first time, even if that record is removed by now.
            return ConsumerVerdict(_outcome(cursor, bounds, taken=True, offset=offset), cursor, False, True)
        offset = next_record(cursor, bounds)
        if offset is None:
            return ConsumerVerdict(_outcome(cursor, bounds), cursor, False)
        cursor = cursor._replace(position=offset + 1, moved_us=bounds.now_us)
        return ConsumerVerdict(_outcome(cursor, bounds, taken=True, offset=offset), cursor, True)

    def _delete(self, cursor: Cursor | None, command: pb.DeleteChannel, bounds: OffsetBounds) -> ConsumerVerdict:
        return ConsumerVerdict(_outcome(_existing(cursor, command.channel), bounds), None, True)

    # ---- as bytes

    def dump(self, state: pb.State) -> None:
        """Write the table into `state`, in an order that depends on nothing but the table."""
        state.last_number = self._last_number
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
        state.taken = b"".join([pack(number, request, offset) for (number, request), offset in self._taken.items()])

    @classmethod
    def load(cls, state: pb.State, end: int) -> Channels:
        """The inverse of `dump`, for a log that ends at `end`. Raises CorruptData for anything that `dump` cannot
        write."""
        channels = cls()
        channels._last_number = state.last_number
        before = ""
        for c in state.channels:
            _check(c.channel > before and c.position <= end and len(c.last_seek) in (0, REQUEST_ID_BYTES))
            try:
                before = check_channel_name(c.channel)
            except InvalidName as error:
                raise CorruptData(f"the applied state's channels: {error.message}") from None
            channels._cursors[before] = Cursor(c.number, c.position, c.epoch, c.generation, c.moved_us, c.last_seek)
        _check(len(channels._cursors) <= CHANNELS_MAX and len(state.taken) % _TAKEN.size == 0)
        channels._taken = OrderedDict(
            ((number, request), offset) for number, request, offset in _TAKEN.iter_unpack(state.taken)
        )
        count = len(state.taken) // _TAKEN.size
        _check(len(channels._taken) == count <= TAKEN_MAX and all(offset < end for offset in channels._taken.values()))
        return channels


_RULES: dict[str, Callable[[Channels, Cursor | None, Any, OffsetBounds], ConsumerVerdict]] = {
    "open": Channels._open,
    "commit": Channels._commit,
    "seek": Channels._seek,
    "delete": Channels._delete,
    "consume": Channels._consume,
}
CHANNEL_COMMANDS = frozenset(_RULES)


def _existing(cursor: Cursor | None, channel: str) -> Cursor:
    if cursor is None:
        raise UnknownChannel(f"no channel {channel[:300]!r}")
    return cursor


def _moved(before: Cursor | None, cursor: Cursor, bounds: OffsetBounds) -> ConsumerVerdict:
    return ConsumerVerdict(_outcome(cursor, bounds), cursor, cursor is not before)


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
        raise CorruptData("the applied state's channels are out of range")
