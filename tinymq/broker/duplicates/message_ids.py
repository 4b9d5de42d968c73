"""The leader's half of deduplication by message id: ids whose records are appended and not applied yet."""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import NamedTuple

from tinymq.base.errors import InvalidRequest
from tinymq.base.types import Position
from tinymq.broker.state.message_ids import ID_BYTES, MessageIds
from tinymq.broker.state.state import PartitionState
from tinymq.format.batch import BatchHeader
from tinymq.proto import partition_pb2 as pb

MESSAGE_ID_BYTES_MAX = 256
COPY_WINDOW_MS = 86_400_000  # how long ids of copies are remembered, in every topic, whatever its dedupe_window
_USERS = b"tinymq user"  # keeps users' ids apart from those of copies (tinymq/broker/dead_letters/copy_ids.py)


def stored_id(message_id: bytes) -> bytes:
    """The id under which a partition remembers a user's message id."""
    return blake2b(message_id, digest_size=ID_BYTES, person=_USERS).digest()


class CopyId(NamedTuple):
    """The id of a copy that a broker makes of a stored record (tinymq/broker/dead_letters)."""

    digest: bytes  # ID_BYTES


class RecordId(NamedTuple):
    """The id of a record that is about to be appended, as the partition remembers it."""

    stored: bytes
    window_ms: int
    of_copy: bool

    def remembered(self, state: PartitionState) -> MessageIds:
        """The applied ids of this kind."""
        return state.copy_ids if self.of_copy else state.message_ids

    def since_us(self, now_us: int) -> int:
        """The append time before which a record of this id is no duplicate any more. 0 for copies: they are duplicates
        as long as their ids are remembered."""
        return 0 if self.of_copy else now_us - self.window_ms * 1000

    def note(self, payload_crc: int, length: int) -> pb.Command:
        """The command that has to be the entry before the record."""
        note = pb.NoteMessageId(
            message_id=self.stored, payload_crc=payload_crc, length=length, window_ms=self.window_ms
        )
        return pb.Command(note_copy=note) if self.of_copy else pb.Command(note_message_id=note)


def record_id(message_id: bytes | CopyId, records: int, window_ms: int | None) -> RecordId:
    """The id of a batch in a topic with this dedupe_window. Raises InvalidRequest, as `check_message_id`."""
    if isinstance(message_id, CopyId):
        return RecordId(message_id.digest, COPY_WINDOW_MS, of_copy=True)
    check_message_id(message_id, records, window_ms)
    return RecordId(stored_id(message_id), window_ms or 0, of_copy=False)


def check_message_id(message_id: bytes, records: int, window_ms: int | None) -> None:
    """Raises InvalidRequest for a batch that cannot be recognised by its message id."""
    if window_ms is None:
        hint = "alter the topic: dedupe_window=on, or a number of milliseconds"
        raise InvalidRequest("a record has a message id, and its topic has no dedupe_window", hint=hint)
    if len(message_id) > MESSAGE_ID_BYTES_MAX:
        raise InvalidRequest(f"a message id has at most {MESSAGE_ID_BYTES_MAX} bytes, not {len(message_id)}")
    if records != 1:
        raise InvalidRequest(f"a batch of {records} records has a message id", hint="send the record by itself")


class FirstRecord(NamedTuple):
    """The first record of a message id."""

    place: int  # tinymq/broker/state/delayed.py
    append_time_us: int
    entry_index: int  # index of the record's entry while that is not applied; 0: it is applied


class UncommittedIds:
    """The ids that one leader has appended and not applied yet, for one term."""

    __slots__ = ("_by_id", "_in_order")

    def __init__(self) -> None:
        self._by_id: dict[bytes, Position] = {}
        self._in_order: deque[tuple[int, bytes]] = deque()  # (index of the record's entry, id)

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, applied: MessageIds, message_id: bytes, since_us: int) -> FirstRecord | None:
        """The first record of this id, committed or not; None: no such record was appended since `since_us`."""
        position = self._by_id.get(message_id)
        if position is not None:
            return FirstRecord(position.base_offset, position.append_time_us, position.index)
        found = applied.find(message_id, since_us)
        return None if found is None else FirstRecord(found.place, found.append_us, 0)

    def appended(self, message_id: bytes, position: Position) -> None:
        """Note that the record of this id is appended at `position`."""
        self._by_id[message_id] = position
        self._in_order.append((position.index, message_id))

    def settle(self, index: int) -> None:
        """Forget the entries up to `index`, which are applied."""
        while self._in_order and self._in_order[0][0] <= index:
            applied, message_id = self._in_order.popleft()
            if self._by_id[message_id].index == applied:
                del self._by_id[message_id]

    def clear(self) -> None:
        self._by_id.clear()
        self._in_order.clear()


def skip_duplicate(header: BatchHeader, place: int) -> pb.Command:
    """The command in the place of a duplicate of an idempotent producer: it uses up the batch's sequence number."""
    return pb.Command(
        skip_duplicate=pb.SkipDuplicate(
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            first_sequence=header.first_sequence,
            offset=place,
        )
    )
