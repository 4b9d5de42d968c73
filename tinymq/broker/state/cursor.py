"""One cursor of a partition, of a channel or of a group, and the pure rules of its commands.

A cursor has a kind, and the id of its group. A command that names another kind or another id is refused: otherwise a
channel's consumer could take a group's records, or fence the group's members for good. Opening a channel makes its
cursor. A group's cursor is made by `make` alone, which the brokers send while the group is made.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from tinymq.base.errors import AlreadyExists, Fenced, InvalidRequest, OffsetOutOfRange, WrongKind
from tinymq.broker.state.outcome import OffsetBounds
from tinymq.proto import partition_pb2 as pb

REQUEST_ID_BYTES = 16
SESSION_BYTES_MAX = 16  # the id of a member's session


class CursorKind(IntEnum):
    """The kind of reader to which a cursor belongs."""

    CHANNEL = 0
    STREAM = 1
    QUEUE = 2


KINDS = frozenset(int(kind) for kind in CursorKind)
GROUP_KINDS = (CursorKind.STREAM, CursorKind.QUEUE)


class Cursor(NamedTuple):
    """The position of a channel or a group, and the newest consumer, which alone may move it."""

    number: int  # its first generation; names the cursor for as long as it exists
    position: int  # next offset to read; below the log start, the log start counts
    epoch: int  # of the newest consumer, which fences all earlier ones; 0: no consumer was assigned
    generation: int  # changes with every seek
    moved_us: int  # append time of the last entry that changed the cursor
    last_seek: bytes  # request id of the last seek, which a repeat does not carry out again; b"": none
    kind: int = CursorKind.CHANNEL
    group_id: int = 0  # 0: a channel; a group that is deleted and made again has a higher id
    session: bytes = b""  # of a stream group's member that has `epoch`


def opened(cursor: Cursor | None, command: pb.OpenChannel, bounds: OffsetBounds, number: int) -> Cursor:
    """The cursor after an OpenChannel command, which makes the cursor of a new channel. A higher epoch fences all
    earlier consumers; epoch 0 fences nobody. Raises Fenced."""
    if cursor is None:
        position = min(max(command.start, bounds.log_start), bounds.end)
        return Cursor(number, position, command.epoch, number, bounds.now_us, b"")
    if cursor.kind == CursorKind.CHANNEL:
        if command.epoch:
            check_epoch(cursor, command.channel, command.epoch)
        return _of_epoch(cursor, command.epoch, bounds)
    if cursor.kind != CursorKind.STREAM or not 0 < len(command.session) <= SESSION_BYTES_MAX:
        raise InvalidRequest("only a member of a stream group opens a group's cursor, by its session")
    check_epoch(cursor, command.channel, command.epoch)
    check_session(cursor, command)
    return _of_epoch(cursor, command.epoch, bounds)._replace(session=command.session)


def committed(cursor: Cursor, command: pb.Commit, bounds: OffsetBounds) -> Cursor:
    """The cursor after a commit, which never moves it backward. Raises Fenced, OffsetOutOfRange."""
    if cursor.kind == CursorKind.QUEUE:
        raise InvalidRequest("a queue group settles records one by one, and commits no offset")
    check_epoch(cursor, command.channel, command.epoch)
    if cursor.kind != CursorKind.CHANNEL and command.epoch != cursor.epoch:
        # Only `open` names the session of an epoch, so that no commit may bring a new one.
        raise Fenced(f"epoch {command.epoch} of group {command.channel!r} has not opened this partition")
    if command.generation != cursor.generation:
        raise Fenced(f"the cursor of {command.channel!r} was moved by another consumer, to {cursor.position}")
    check_within(command.offset, 0, bounds)
    cursor = _of_epoch(cursor, command.epoch, bounds)
    return (
        cursor._replace(position=command.offset, moved_us=bounds.now_us) if command.offset > cursor.position else cursor
    )


def published(cursor: Cursor, commit: pb.Commit, now_us: int) -> Cursor:
    """The cursor after a staged commit, once its transaction is committed.

    A member that was fenced since then moves it, too: the transaction was decided, and the new owner waits for it. A
    seek since the staging wins, and so does a group of the same name that was made since.
    """
    same = (cursor.kind, cursor.group_id, cursor.generation) == (commit.kind, commit.group_id, commit.generation)
    if not same or commit.offset <= cursor.position:
        return cursor
    return cursor._replace(position=commit.offset, moved_us=now_us)


def sought(cursor: Cursor, command: pb.Seek, bounds: OffsetBounds, number: int) -> Cursor:
    """The cursor after a seek to any kept offset. A repeat of the newest request changes nothing. In a group, epoch 0
    stands for the present epoch: the member keeps the partition, and reads on from the new place. Raises Fenced,
    OffsetOutOfRange."""
    if command.request_id == cursor.last_seek:
        return cursor
    epoch = command.epoch
    if cursor.kind == CursorKind.CHANNEL or epoch:
        check_epoch(cursor, command.channel, epoch)
    if cursor.kind != CursorKind.CHANNEL:
        epoch = cursor.epoch
    check_within(command.offset, bounds.log_start, bounds)
    return cursor._replace(
        position=command.offset, epoch=epoch, generation=number, moved_us=bounds.now_us, last_seek=command.request_id
    )


def made(cursor: Cursor | None, command: pb.MakeCursor, bounds: OffsetBounds, number: int) -> Cursor:
    """The new cursor of a group that is being made.

    It replaces a cursor with a lower group id, which belongs to a group that was deleted while this partition could not
    be reached. Raises AlreadyExists if a channel has the name, WrongKind if the cursor has a higher group id.
    """
    if cursor is not None:
        if cursor.kind == CursorKind.CHANNEL:
            raise AlreadyExists(f"a channel of this partition has the name {command.name!r}")
        if cursor.group_id >= command.group_id:
            check_identity(cursor, command.name, command.kind, command.group_id)
            return cursor
    position = min(max(command.start, bounds.log_start), bounds.end)
    return Cursor(
        number=number,
        position=position,
        epoch=0,
        generation=number,
        moved_us=bounds.now_us,
        last_seek=b"",
        kind=command.kind,
        group_id=command.group_id,
    )


def next_record(cursor: Cursor, bounds: OffsetBounds) -> int | None:
    """The offset of the channel's next record; None: there is no such record yet."""
    offset = max(cursor.position, bounds.log_start)
    return offset if offset < bounds.end else None


def _of_epoch(cursor: Cursor, epoch: int, bounds: OffsetBounds) -> Cursor:
    return cursor._replace(epoch=epoch, moved_us=bounds.now_us) if epoch > cursor.epoch else cursor


def check_epoch(cursor: Cursor, channel: str, epoch: int) -> None:
    """Raise Fenced if a newer consumer has replaced the one of `epoch`."""
    if epoch < cursor.epoch:
        what = "channel" if cursor.kind == CursorKind.CHANNEL else "group"
        raise Fenced(f"epoch {epoch} of {what} {channel!r}: the newest is {cursor.epoch}", epoch=cursor.epoch)


def check_session(cursor: Cursor, command: pb.OpenChannel) -> None:
    """Raise Fenced if another session has the epoch already. The coordinator gives each epoch to one session only."""
    if command.epoch == cursor.epoch and cursor.session != command.session:
        raise Fenced(f"epoch {command.epoch} of group {command.channel!r} belongs to another session")


def check_within(offset: int, least: int, bounds: OffsetBounds) -> None:
    """Raise OffsetOutOfRange unless `offset` lies between `least` and the end of the log."""
    if not least <= offset <= bounds.end:
        raise OffsetOutOfRange(
            f"offset {offset} is not within {least} and {bounds.end}",
            hint="the error's detail has the log start and the high watermark",
            log_start=bounds.log_start,
            high_watermark=bounds.end,
        )


def check_identity(cursor: Cursor, name: str, kind: int, group_id: int) -> None:
    """Raise WrongKind unless the cursor is of that kind, and of that group."""
    if (cursor.kind, cursor.group_id) != (kind, group_id):
        present = _words(cursor.kind, cursor.group_id)
        raise WrongKind(f"{name[:300]!r} is {present}, not {_words(kind, group_id)}")


def _words(kind: int, group_id: int) -> str:
    if kind == CursorKind.CHANNEL:
        return "a channel"
    name = CursorKind(kind).name.lower() if kind in KINDS else f"unknown ({kind})"
    return f"the {name} group {group_id}"


def check_request_id(request_id: bytes) -> None:
    if len(request_id) != REQUEST_ID_BYTES:
        raise InvalidRequest(f"a request id has {REQUEST_ID_BYTES} bytes, not {len(request_id)}")
