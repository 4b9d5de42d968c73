"""The message ids that a partition remembers: the replicated half of deduplication by id.

A NoteMessageId command announces an id, with the checksum and the length of its record's batch. The id is remembered
only if the very next entry is that batch. If a change of leaders keeps only one of the two entries, no id is
remembered. The state changes only in `apply`, by the entries of the log, and is the same on every replica. Packed,
little-endian, oldest first:

    offset size field
         0   16 id         of the message (tinymq.broker.duplicates.message_ids makes it)
        16    8 place      u64  of the record (tinymq/broker/state/delayed.py)
        24    8 append_us  i64  append time of its entry
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import NamedTuple

from tinymq.base.errors import CorruptData, InvalidRequest
from tinymq.broker.state.delayed import delayed_place, schedule_id_at
from tinymq.broker.state.outcome import OffsetBounds
from tinymq.format.entry import EntryHeader, Kind
from tinymq.proto import partition_pb2 as pb

# Part of the replicated behaviour, not settings: replicas with different values would compute different states.
IDS_MAX = 100_000
ID_BYTES = 16

_ID = struct.Struct("<16sQq")


class RememberedId(NamedTuple):
    """The record that was stored under an id."""

    place: int
    append_us: int


class AwaitedRecord(NamedTuple):
    """An id whose record has to be in the next entry."""

    message_id: bytes
    entry_index: int  # index of the next entry
    payload_crc: int
    length: int


class MessageIds:
    """The remembered ids of one kind in one partition, by the time of their append.

    A partition has a table for the ids of users' messages and one for those of copies, so that neither kind displaces
    the other.
    """

    __slots__ = ("_awaited", "_ids", "complete_from")

    def __init__(self) -> None:
        self._ids: OrderedDict[bytes, RememberedId] = OrderedDict()  # the oldest append first
        self._awaited: AwaitedRecord | None = None  # the id that the last entry announced, if it did
        self.complete_from = 0  # the id of every record at or behind this offset is remembered

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, message_id: bytes, since_us: int) -> RememberedId | None:
        """The record of this id, if it was appended at `since_us` or later."""
        found = self._ids.get(message_id)
        return found if found is not None and found.append_us >= since_us else None

    @property
    def newest_us(self) -> int:
        """Append time of the newest id; 0: there is none."""
        return next(reversed(self._ids.values())).append_us if self._ids else 0

    def note(self, command: pb.NoteMessageId, index: int, bounds: OffsetBounds) -> None:
        """Carry out the command of the entry at `index`: forget what is older than its window, and await its record.

        Raises InvalidRequest, and then nothing has changed.
        """
        if len(command.message_id) not in (0, ID_BYTES):
            raise InvalidRequest(f"a message id has {ID_BYTES} bytes here, not {len(command.message_id)}")
        # The window stands in the command, because `apply` knows no settings.
        before_us = bounds.now_us - command.window_ms * 1000
        while self._ids and next(iter(self._ids.values())).append_us < before_us:
            self._forget_oldest()
        if command.message_id:
            self._awaited = AwaitedRecord(command.message_id, index + 1, command.payload_crc, command.length)

    def applied(self, header: EntryHeader) -> None:
        """Remember the awaited id, if this entry is its record. Called for every entry before its own commands."""
        awaited, self._awaited = self._awaited, None
        if awaited is None or not is_record_of(awaited, header):
            return
        self._ids.pop(awaited.message_id, None)  # the id may be there, older than its window: it is now the newest
        place = delayed_place(header.index) if header.kind == Kind.STAGED else header.base_offset
        self._ids[awaited.message_id] = RememberedId(place, header.append_time_us)
        if len(self._ids) > IDS_MAX:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, forgotten = self._ids.popitem(last=False)
        if not schedule_id_at(forgotten.place):
            self.complete_from = max(self.complete_from, forgotten.place + 1)

    # ---- as bytes

    def dump(self) -> bytes:
        """The remembered ids, as drawn above."""
        pack = _ID.pack
        return b"".join([pack(message_id, *found) for message_id, found in self._ids.items()])

    def dump_awaited(self) -> pb.AwaitedMessage | None:
        """The id whose record has to be the next entry; None: there is none."""
        if (awaited := self._awaited) is None:
            return None
        return pb.AwaitedMessage(
            message_id=awaited.message_id,
            index=awaited.entry_index,
            payload_crc=awaited.payload_crc,
            length=awaited.length,
        )

    @classmethod
    def load(cls, packed: bytes, awaited: pb.AwaitedMessage | None, end: int, complete_from: int = 0) -> MessageIds:
        """The inverse of `dump` and `dump_awaited`, for a log that ends at `end`. Raises CorruptData for anything that
        they cannot write."""
        ids = cls()
        _check(complete_from <= end)
        ids.complete_from = complete_from
        _check(len(packed) % _ID.size == 0 and len(packed) <= IDS_MAX * _ID.size)
        before_us = 0
        for message_id, place, append_us in _ID.iter_unpack(packed):
            _check(message_id not in ids._ids and append_us >= before_us)
            _check(place < end or schedule_id_at(place) > 0)
            before_us = append_us
            ids._ids[message_id] = RememberedId(place, append_us)
        if awaited is not None:
            _check(len(awaited.message_id) == ID_BYTES)
            ids._awaited = AwaitedRecord(awaited.message_id, awaited.index, awaited.payload_crc, awaited.length)
        return ids


def is_record_of(awaited: AwaitedRecord, header: EntryHeader) -> bool:
    """Whether the entry is the record of the awaited id.

    A leader appends both without a pause. The index alone is not enough: if the second append fails, the next entry is
    another producer's batch, or the first entry of the next leader.
    """
    return (
        header.index == awaited.entry_index
        and (header.record_count == 1 or header.kind == Kind.STAGED)  # which has one record, and counts none
        and header.payload_crc == awaited.payload_crc
        and header.length == awaited.length
    )


def _check(holds: bool) -> None:
    if not holds:
        raise CorruptData("the applied state's message ids are out of range")


def dump_ids(state: pb.State, message_ids: MessageIds, copy_ids: MessageIds) -> None:
    """Add both kinds of ids to a snapshot: those of users' records, and those of records that brokers copied."""
    state.message_ids, state.copy_ids = message_ids.dump(), copy_ids.dump()
    state.copy_ids_from = copy_ids.complete_from
    if (awaited := message_ids.dump_awaited()) is not None:
        state.awaited_message.CopyFrom(awaited)
    if (awaited := copy_ids.dump_awaited()) is not None:
        state.awaited_copy.CopyFrom(awaited)


def load_ids(state: pb.State, end: int) -> tuple[MessageIds, MessageIds]:
    """The inverse of `dump_ids`. Raises CorruptData."""
    users = state.awaited_message if state.HasField("awaited_message") else None
    copy = state.awaited_copy if state.HasField("awaited_copy") else None
    return (
        MessageIds.load(state.message_ids, users, end),
        MessageIds.load(state.copy_ids, copy, end, state.copy_ids_from),
    )
