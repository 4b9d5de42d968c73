"""Batches of transactions as bytes: the payloads of STAGED (versions 2 and 3), of PUBLISH, and of DISCARD (version 2).

A batch of a transaction is stored in a STAGED entry, where it takes no offsets. A PUBLISH entry ends the transaction in
the partition: it lists the entries with their batches and gives all records their offsets. The batches stay where they
lie, and readers are sent them under headers made for their offsets (`made_head`). A DISCARD entry drops them. While a
transaction has no end, a STAGED entry of version 3 may have one of its batches again, and takes the place of the
earlier entry, so that the earlier one's segment can be removed. All numbers are little-endian.

    STAGED, version 2
    offset size field
         0    8 producer_id      u64  the first three name the transaction
         8    8 number           u64
        16    4 epoch            u32
        20    4 coordinator      u32  number of the partition of __coordinator that has the transaction
        24    4 writer           u32  number of the program that wrote the batch, within the transaction
        28    4 batch_number     u32  of the writer's batches in this partition, from 0
        32    8 max_timestamp_us i64  greatest record timestamp
        40    … batch                 tinymq/format/batch.py

    STAGED, version 3: a copy of a batch
    offset size field
         0    8 producer_id      u64  the fields up to batch_number as in version 2
         8    8 number           u64
        16    4 epoch            u32
        20    4 coordinator      u32
        24    4 writer           u32
        28    4 batch_number     u32
        32    8 replaced_index   u64  of the STAGED entry that had the batch before
        40    … batch

    PUBLISH, versions 1 and 2
         0    8 producer_id      u64
         8    8 number           u64
        16    4 epoch            u32
        20    4 count            u32  of items, at least 1
        24  36n items                 in the order in which the batches were staged: in version 1, that of their entries

    an item
         0    8 entry_index      u64  of the STAGED entry
         8    8 first            u64  records of the items before: the offset of its first record, from the base offset
        16    8 max_timestamp_us i64
        24    4 record_count     u32
        28    4 length           u32  bytes of the batch
        32    4 batch_crc        u32  crc32c of the batch

    DISCARD, version 2
         0    8 producer_id      u64
         8    8 number           u64
        16    4 epoch            u32
        20    4 reserved         u32  0
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from tinymq.base.errors import CorruptData
from tinymq.base.value import value

TRANSACTIONAL_VERSION = 2  # of STAGED and DISCARD entries that belong to a transaction
COPIED_VERSION = 3  # of a STAGED entry that has a transaction's batch again
RISING_VERSION = 1  # of a PUBLISH entry whose items name entries in the order of the log
SCATTERED_VERSION = 2  # of a PUBLISH entry whose items name them in another order, because some were copied
MADE_VERSION = 3  # of a DATA frame that is made for readers, and never stored; its payload is the batch
ITEMS_MAX = 100_000  # staged entries of one transaction in one partition

Buffer = TypeVar("Buffer", bytes, memoryview)

_STAGED = struct.Struct("<QQIIIIq")
_COPIED = struct.Struct("<QQIIIIQ")
_END = struct.Struct("<QQII")
_ITEM = struct.Struct("<QQqIII")
STAGED_HEAD_SIZE, END_SIZE, ITEM_SIZE = _STAGED.size, _END.size, _ITEM.size
assert (STAGED_HEAD_SIZE, END_SIZE, ITEM_SIZE) == (40, 24, 36)
assert _COPIED.size == STAGED_HEAD_SIZE  # so that a reader of the batch need not know the version


class TransactionName(NamedTuple):
    """The fields that name a transaction, in the order of the drawing."""

    producer_id: int
    number: int
    epoch: int


@value
class TransactionalHead:
    """The header of a batch in a STAGED entry of version 2: the fields in the order of the drawing, with its units."""

    producer_id: int
    number: int
    epoch: int
    coordinator: int
    writer: int
    batch_number: int
    max_timestamp_us: int


@value
class CopiedHead:
    """The head of a STAGED entry of version 3: the fields in the order of the drawing.

    The greatest timestamp is not repeated: the applied state has it from the batch's first entry.
    """

    producer_id: int
    number: int
    epoch: int
    coordinator: int
    writer: int
    batch_number: int
    replaced_index: int


class Item(NamedTuple):
    """A staged batch as a PUBLISH entry lists it: the fields in the order of the drawing, with its units."""

    entry_index: int
    first: int
    max_timestamp_us: int
    record_count: int
    length: int
    batch_crc: int


# ---- STAGED and DISCARD ------------------------------------------------------------------------------------------


def pack_transactional(head: TransactionalHead, batch: bytes) -> bytes:
    """The payload of a STAGED entry of version 2."""
    return _STAGED.pack(*_place_of(head), head.max_timestamp_us) + batch


def unpack_transactional(payload: Buffer) -> tuple[TransactionalHead, Buffer]:
    """The inverse of `pack_transactional`. The batch is not checked. Raises CorruptData."""
    if len(payload) <= STAGED_HEAD_SIZE:
        raise CorruptData("a STAGED entry of a transaction is cut short")
    return TransactionalHead(*_STAGED.unpack_from(payload)), payload[STAGED_HEAD_SIZE:]


def pack_copied(head: CopiedHead, batch: bytes) -> bytes:
    """The payload of a STAGED entry of version 3."""
    return _COPIED.pack(*_place_of(head), head.replaced_index) + batch


def _place_of(head: TransactionalHead | CopiedHead) -> tuple[int, ...]:
    return head.producer_id, head.number, head.epoch, head.coordinator, head.writer, head.batch_number


def unpack_copied(payload: Buffer) -> tuple[CopiedHead, Buffer]:
    """The inverse of `pack_copied`. The batch is not checked. Raises CorruptData."""
    if len(payload) <= STAGED_HEAD_SIZE:
        raise CorruptData("a copied batch of a transaction is cut short")
    return CopiedHead(*_COPIED.unpack_from(payload)), payload[STAGED_HEAD_SIZE:]


def is_transactional(version: int) -> bool:
    """Whether a STAGED or DISCARD entry of this version belongs to a transaction. The batch of a STAGED one lies behind
    STAGED_HEAD_SIZE bytes."""
    return version in (TRANSACTIONAL_VERSION, COPIED_VERSION)


def pack_discard(name: TransactionName) -> bytes:
    """The payload of a DISCARD entry of version 2."""
    return _END.pack(*name, 0)


def unpack_discard(payload: bytes | memoryview) -> TransactionName:
    """The inverse of `pack_discard`. Raises CorruptData."""
    if len(payload) != END_SIZE:
        raise CorruptData(f"a DISCARD entry of a transaction has {len(payload)} bytes")
    *name, reserved = _END.unpack(payload)
    if reserved:
        raise CorruptData("a DISCARD entry of a transaction is out of range")
    return TransactionName(*name)


# ---- PUBLISH -------------------------------------------------------------------------------------------------------


def pack_publish(name: TransactionName, items: Sequence[Item]) -> bytes:
    """The payload of a PUBLISH entry."""
    return b"".join((_END.pack(*name, len(items)), *(_ITEM.pack(*item) for item in items)))


def publish_version(items: Sequence[Item]) -> int:
    """The version of a PUBLISH entry with these items. An older build can read any items in the order of the log."""
    rise = all(a.entry_index < b.entry_index for a, b in pairwise(items))
    return RISING_VERSION if rise else SCATTERED_VERSION


def items_of(staged: Iterable[tuple[int, int, int, int, int]]) -> list[Item]:
    """The items for staged entries in the order in which they were staged: (index, records, bytes of the batch,
    greatest timestamp in microseconds, crc32c of the batch) of each."""
    items, first = list[Item](), 0
    for entry_index, record_count, length, max_timestamp_us, batch_crc in staged:
        items.append(Item(entry_index, first, max_timestamp_us, record_count, length, batch_crc))
        first += record_count
    return items


class PublishedItems(Sequence[Item]):
    """The items of a PUBLISH entry, read from its payload one by one: a reader that needs one of 100,000 unpacks 17."""

    __slots__ = ("_payload", "name")

    def __init__(self, payload: bytes | memoryview) -> None:
        """Raises CorruptData unless the payload has the size that it says."""
        if len(payload) < END_SIZE:
            raise CorruptData("a PUBLISH entry is cut short")
        *name, count = _END.unpack_from(payload)
        if not 1 <= count <= ITEMS_MAX or len(payload) != END_SIZE + count * ITEM_SIZE:
            raise CorruptData(f"a PUBLISH entry of {count} items has {len(payload)} bytes")
        self.name = TransactionName(*name)
        self._payload = payload

    def __len__(self) -> int:
        return (len(self._payload) - END_SIZE) // ITEM_SIZE

    def __getitem__(self, number: int) -> Item:  # type: ignore[override]
        if not 0 <= number < len(self):
            raise IndexError(number)
        return Item(*_ITEM.unpack_from(self._payload, END_SIZE + number * ITEM_SIZE))

    def __iter__(self) -> Iterator[Item]:
        return map(Item._make, _ITEM.iter_unpack(self._payload[END_SIZE:]))

    def behind(self, number: int) -> Iterator[Item]:
        """The items but for the first `number`, without a copy of them."""
        return map(Item._make, _ITEM.iter_unpack(memoryview(self._payload)[END_SIZE + number * ITEM_SIZE :]))

    @property
    def record_count(self) -> int:
        """All records, as the entry's header has them."""
        last = self[len(self) - 1]
        return last.first + last.record_count

    def number_at(self, record: int) -> int:
        """The number of the item with this record of the entry, which has more than `record` records."""
        return bisect_right(self, record, key=lambda item: item.first) - 1

    @property
    def lowest_index(self) -> int:
        """The lowest index that an item names."""
        indexes: Iterator[int] = (fields[0] for fields in _ITEM.iter_unpack(self._payload[END_SIZE:]))
        return min(indexes)

    def kept_from(self, first_index: int) -> int:
        """The number of the first item behind all that name entries below `first_index`."""
        fields = enumerate(_ITEM.iter_unpack(self._payload[END_SIZE:]), 1)
        return max((number for number, (entry_index, *_) in fields if entry_index < first_index), default=0)

    def check(self, index: int, version: int, record_count: int) -> None:
        """Raises CorruptData unless the items are those that a leader can append at `index`, in an entry of this
        version.

        They name earlier entries, each once and with records, and have `record_count` records without a gap. In version
        1, their indexes rise.
        """
        rising = version == RISING_VERSION
        before, first, seen = 0, 0, set[int]()
        for entry_index, item_first, _, item_records, length, _ in _ITEM.iter_unpack(self._payload[END_SIZE:]):
            if not (0 < entry_index < index and item_first == first and item_records and length):
                raise CorruptData("the items of a PUBLISH entry contradict each other", index=index)
            if entry_index <= before if rising else entry_index in seen:
                raise CorruptData(
                    "the items of a PUBLISH entry name an entry twice, or in the wrong order", index=index
                )
            before, first = entry_index, first + item_records
            if not rising:
                seen.add(entry_index)
        if first != record_count:
            raise CorruptData("the items of a PUBLISH entry contradict each other", index=index)
