"""The message ids that a partition remembers: the replicated half of deduplication by id.

An id stands in a NoteMessageId command, and counts only if the very next entry is the record's batch: the command names
the checksum and the length of that batch. So an id without its record counts for nothing, whichever of the two entries
a change of leaders keeps. The state changes only in `apply`, by the entries of the log, and is the same on every
replica. Packed, little-endian, oldest first:

    offset size field
         0   16 id         of the message (tinymq.broker.partition.message_ids makes it)
        16    8 offset     u64  of the record
        24    8 append_us  i64  append time of its entry
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import NamedTuple

from tinymq.base.errors import CorruptData, InvalidRequest
from tinymq.broker.state.outcome import OffsetBounds
from tinymq.format.entry import EntryHeader
from tinymq.proto import partition_pb2 as pb

# Part of the replicated behaviour, not settings: replicas with different values would compute different states.
IDS_MAX = 100_000
ID_BYTES = 16

_ID = struct.Struct("<16sQq")


class RememberedId(NamedTuple):
    """The record that was stored under an id."""

    offset: int
    append_us: int


class AwaitedRecord(NamedTuple):
    """An id whose record has to be in the next entry."""

    message_id: bytes
    entry_index: int  # of that entry
    payload_crc: int
    length: int


class MessageIds:
    """The remembered ids of one partition, by the time of their append."""

    __slots__ = ("_awaited", "_ids")

    def __init__(self) -> None:
        self._ids: OrderedDict[bytes, RememberedId] = OrderedDict()  # the oldest append first
        self._awaited: AwaitedRecord | None = None  # noted by the last entry

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
            self._ids.popitem(last=False)
        if command.message_id:
            self._awaited = AwaitedRecord(command.message_id, index + 1, command.payload_crc, command.length)

    def applied(self, header: EntryHeader) -> None:
        """Remember the awaited id, if this entry is its record. Called for every entry before its own commands."""
        awaited, self._awaited = self._awaited, None
        if awaited is None or not is_record_of(awaited, header):
            return
        self._ids.pop(awaited.message_id, None)  # an id from before its window: it takes its place anew
        self._ids[awaited.message_id] = RememberedId(header.base_offset, header.append_time_us)
        if len(self._ids) > IDS_MAX:
            self._ids.popitem(last=False)

    # ---- as bytes

    def dump(self, state: pb.State) -> None:
        pack = _ID.pack
        state.message_ids = b"".join([pack(message_id, *found) for message_id, found in self._ids.items()])
        if (awaited := self._awaited) is not None:
            state.awaited_message.CopyFrom(
                pb.AwaitedMessage(
                    message_id=awaited.message_id,
                    index=awaited.entry_index,
                    payload_crc=awaited.payload_crc,
                    length=awaited.length,
                )
            )

    @classmethod
    def load(cls, state: pb.State, end: int) -> MessageIds:
        """The inverse of `dump`, for a log that ends at `end`. Raises CorruptData for anything that `dump` cannot
        write."""
        ids = cls()
        _check(len(state.message_ids) % _ID.size == 0 and len(state.message_ids) <= IDS_MAX * _ID.size)
        before_us = 0
        for message_id, offset, append_us in _ID.iter_unpack(state.message_ids):
            _check(message_id not in ids._ids and offset < end and append_us >= before_us)
            before_us = append_us
            ids._ids[message_id] = RememberedId(offset, append_us)
        if state.HasField("awaited_message"):
            awaited = state.awaited_message
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
        and header.record_count == 1
        and header.payload_crc == awaited.payload_crc
        and header.length == awaited.length
    )


def _check(holds: bool) -> None:
    if not holds:
        raise CorruptData("the applied state's message ids are out of range")
