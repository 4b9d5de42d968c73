"""The staged entries of one partition: record batches of transactions, which have no offsets yet. Pure, and replicated.

A batch of a transaction is stored as a STAGED entry and takes no offsets. A PUBLISH entry ends the transaction in this
partition and gives all its records their offsets; a DISCARD entry drops them. This state has the staged batches of
transactions that have not ended here. Nothing is remembered of transactions that have ended: the leader asks the
transaction's coordinator before it appends the first batch of a transaction (tinymq/broker/transactions/staging.py).

The leader decided before it appended an entry, so no rule here refuses one: an entry with nothing new has no effect.
The entries of a transaction lie packed, in 32 bytes each, so that 100,000 of them take 4 MB and a snapshot copies them.
A snapshot has one block for each transaction, in the order in which they began. All numbers are little-endian.

A batch may be copied: a later STAGED entry has it again, and takes the place of the one that it names. The batch keeps
its place among those of its transaction, which is the place of its records when the transaction is published.

    offset size field
         0    8 producer_id      u64  the first three name the transaction
         8    8 number           u64
        16    4 epoch            u32
        20    4 coordinator      u32  number of the partition of __coordinator that has the transaction
        24    4 count            u32  of entries, at least 1
        28    4 reserved         u32  0
        32  32n entries               in the order in which their batches were staged

    an entry
         0    8 entry_index      u64  of the STAGED entry that has the batch now
         8    4 record_count     u32
        12    4 length           u32  bytes of its batch
        16    8 max_timestamp_us i64  greatest record timestamp
        24    4 batch_crc        u32  crc32c of its batch
        28    4 writer           u32
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from tinymq.base.errors import CorruptData

_TRANSACTION = struct.Struct("<QQIIII")
_ENTRY = struct.Struct("<QIIqII")
assert (_TRANSACTION.size, _ENTRY.size) == (32, 32)


class TransactionId(NamedTuple):
    """The identity of one transaction. No two transactions of a cluster have the same one."""

    producer_id: int
    epoch: int  # of the producer id: a registration raises it, and fences the owner before
    number: int  # from the coordinator, from 1; rises within a producer id


class StagedBatch(NamedTuple):
    """The key of a batch within its partition."""

    transaction: TransactionId
    writer: int  # the number of the client or task that wrote it, within the transaction
    number: int  # from 0, without gaps, for each transaction, partition and writer


class StagedEntry(NamedTuple):
    """The place of a STAGED entry and its metadata for readers, as a PUBLISH entry lists them."""

    entry_index: int
    record_count: int
    length: int  # bytes of its batch
    max_timestamp_us: int
    batch_crc: int


class Waiting(NamedTuple):
    """The room that batches without offsets take in a partition's bounds."""

    batches: int
    records: int
    bytes: int  # that their records will take

    def plus(self, other: Waiting) -> Waiting:
        return Waiting(self.batches + other.batches, self.records + other.records, self.bytes + other.bytes)

    def minus(self, other: Waiting) -> Waiting:
        return Waiting(self.batches - other.batches, self.records - other.records, self.bytes - other.bytes)


NOTHING = Waiting(0, 0, 0)


class Totals:
    """The waiting batches of all replicas of one broker. Not replicated: each broker has other replicas."""

    def __init__(self) -> None:
        self.batches = 0
        self.bytes = 0

    def change(self, batches: int, size: int) -> None:
        self.batches += batches
        self.bytes += size


class StagedTransaction:
    """The staged entries of one transaction in this partition, in the order in which their batches were staged."""

    __slots__ = ("_lowest_index", "_packed", "_rows", "bytes", "coordinator", "records")

    def __init__(self, coordinator: int) -> None:
        self.coordinator = coordinator  # number of the partition of __coordinator that has the transaction
        self.records = 0
        self.bytes = 0  # of their batches
        self._packed = bytearray()  # the entries, as drawn above
        self._rows: dict[int, array[int]] = {}  # the places of each writer's entries in `_packed`, by batch number
        self._lowest_index: int | None = None  # None: not known

    def __len__(self) -> int:
        return len(self._packed) // _ENTRY.size

    @property
    def entries(self) -> Sequence[StagedEntry]:
        return [StagedEntry(*fields[:5]) for fields in _ENTRY.iter_unpack(self._packed)]

    def entries_of(self, writers: Collection[int]) -> Sequence[StagedEntry]:
        """Those of some writers."""
        return [StagedEntry(*fields[:5]) for fields in _ENTRY.iter_unpack(self._packed) if fields[5] in writers]

    def held(self, writers: Collection[int]) -> int:
        """The number of entries of some writers."""
        return sum(len(self._rows.get(writer, ())) for writer in writers)

    @property
    def waiting(self) -> Waiting:
        """The room that the entries take."""
        return Waiting(len(self), self.records, self.bytes)

    @property
    def lowest_index(self) -> int:
        """The lowest Raft index of an entry."""
        if self._lowest_index is None:
            self._lowest_index = min(self.indexes)
        return self._lowest_index

    @property
    def indexes(self) -> Iterator[int]:
        """The Raft indexes of the entries."""
        return (fields[0] for fields in _ENTRY.iter_unpack(self._packed))

    def between(self, first_index: int, last_index: int) -> Iterator[tuple[int, int, StagedEntry]]:
        """The entries that lie there, each with its writer and its batch number."""
        for row, fields in enumerate(_ENTRY.iter_unpack(self._packed)):
            if first_index <= fields[0] <= last_index:
                writer = fields[5]
                yield writer, bisect_left(self._rows[writer], row), StagedEntry(*fields[:5])

    def next_number(self, writer: int) -> int:
        return len(self._rows.get(writer, ()))

    def entry_of(self, writer: int, number: int) -> StagedEntry | None:
        """The entry that has a batch; None: the batch is not here."""
        rows = self._rows.get(writer, ())
        if not 0 <= number < len(rows):
            return None
        return StagedEntry(*_ENTRY.unpack_from(self._packed, rows[number] * _ENTRY.size)[:5])

    def index_of(self, writer: int, number: int) -> int | None:
        """The Raft index of a batch; None: it is not here."""
        entry = self.entry_of(writer, number)
        return None if entry is None else entry.entry_index

    def add(self, writer: int, entry: StagedEntry) -> None:
        rows = self._rows.get(writer)
        if rows is None:
            rows = self._rows[writer] = array("I")
        rows.append(len(self))
        self._packed += _ENTRY.pack(*entry, writer)
        self.records += entry.record_count
        self.bytes += entry.length

    def carry(self, writer: int, number: int, entry_index: int) -> None:
        """Note that another entry has a batch now."""
        at = self._rows[writer][number] * _ENTRY.size
        entry = StagedEntry(*_ENTRY.unpack_from(self._packed, at)[:5])
        _ENTRY.pack_into(self._packed, at, *entry._replace(entry_index=entry_index), writer)
        if self._lowest_index == entry.entry_index:
            self._lowest_index = None

    # ---- as bytes

    def dump(self, transaction: TransactionId) -> bytes:
        producer_id, epoch, number = transaction
        reserved = 0
        return _TRANSACTION.pack(producer_id, number, epoch, self.coordinator, len(self), reserved) + self._packed

    @classmethod
    def load(cls, packed: memoryview) -> tuple[TransactionId, StagedTransaction, memoryview]:
        """The first transaction in `packed`, and the rest of the bytes. Raises CorruptData."""
        _check(len(packed) >= _TRANSACTION.size)
        producer_id, number, epoch, coordinator, count, reserved = _TRANSACTION.unpack_from(packed)
        end = _TRANSACTION.size + count * _ENTRY.size
        _check(count > 0 and not reserved and end <= len(packed))
        staged = cls(coordinator)
        for *fields, writer in _ENTRY.iter_unpack(packed[_TRANSACTION.size : end]):
            entry = StagedEntry._make(fields)
            _check(entry.entry_index > 0 and entry.record_count > 0 and entry.length > 0)
            staged.add(writer, entry)
        return TransactionId(producer_id, epoch, number), staged, packed[end:]


class StagedTransactions:
    """The transactions of one partition that have staged entries and no end yet, by id."""

    def __init__(self) -> None:
        self._open: dict[TransactionId, StagedTransaction] = {}  # in the order in which they began
        # Invariants: the sums over all transactions.
        self._batches = self._records = self._bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[TransactionId]:
        return iter(self._open)

    def get(self, transaction: TransactionId) -> StagedTransaction | None:
        return self._open.get(transaction)

    def held(self, transaction: TransactionId, writers: Collection[int] | None = None) -> int:
        """The number of entries that are staged of a transaction, by all its writers or by some."""
        staged = self._open.get(transaction)
        if staged is None:
            return 0
        return len(staged) if writers is None else staged.held(writers)

    @property
    def waiting(self) -> Waiting:
        """The room that all staged batches take."""
        return Waiting(self._batches, self._records, self._bytes)

    @property
    def lowest_index(self) -> int | None:
        """The lowest Raft index of a staged entry; None: nothing is staged. The log keeps its segments from here on."""
        return min((staged.lowest_index for staged in self._open.values()), default=None)

    def between(self, first_index: int, last_index: int) -> list[tuple[StagedBatch, StagedEntry]]:
        """The batches whose entries lie there."""
        return [
            (StagedBatch(transaction, writer, number), entry)
            for transaction, staged in self._open.items()
            if staged.lowest_index <= last_index
            for writer, number, entry in staged.between(first_index, last_index)
        ]

    def entry_of(self, batch: StagedBatch) -> StagedEntry | None:
        """The entry that has a batch; None: the batch is not here."""
        staged = self._open.get(batch.transaction)
        return None if staged is None else staged.entry_of(batch.writer, batch.number)

    def stage(self, batch: StagedBatch, entry: StagedEntry, coordinator: int) -> None:
        """Apply a STAGED entry. One that is there already, or that leaves out a number, changes nothing."""
        staged = self._open.get(batch.transaction) or StagedTransaction(coordinator)
        if batch.number == staged.next_number(batch.writer):
            staged.add(batch.writer, entry)
            self._open[batch.transaction] = staged
            self._count(1, entry.record_count, entry.length)

    def carry(self, batch: StagedBatch, replaced_index: int, entry_index: int, batch_crc: int) -> None:
        """Apply a STAGED entry that has a batch again, and takes the place of another one. It changes nothing if the
        transaction has ended, or if that entry does not have the batch, or not any more."""
        entry = self.entry_of(batch)
        if entry is not None and (entry.entry_index, entry.batch_crc) == (replaced_index, batch_crc):
            self._open[batch.transaction].carry(batch.writer, batch.number, entry_index)

    def end(self, transaction: TransactionId) -> StagedTransaction | None:
        """Apply a PUBLISH or a DISCARD entry. Returns what was staged; None: it has ended before."""
        staged = self._open.pop(transaction, None)
        if staged is not None:
            self._count(-len(staged), -staged.records, -staged.bytes)
        return staged

    def _count(self, batches: int, records: int, size: int) -> None:
        self._batches += batches
        self._records += records
        self._bytes += size

    # ---- as bytes

    def dump(self) -> bytes:
        """The transactions, as drawn above. Equal logs give equal bytes."""
        return b"".join([staged.dump(transaction) for transaction, staged in self._open.items()])

    @classmethod
    def load(cls, packed: bytes, applied_index: int) -> StagedTransactions:
        """The inverse of `dump`, for a log that is applied up to `applied_index`. Raises CorruptData for anything that
        `dump` cannot write."""
        loaded, left = cls(), memoryview(packed)
        while left:
            transaction, staged, left = StagedTransaction.load(left)
            _check(transaction not in loaded._open)
            loaded._open[transaction] = staged
            loaded._count(len(staged), staged.records, staged.bytes)
        indexes = set(chain.from_iterable(staged.indexes for staged in loaded._open.values()))
        _check(len(indexes) == loaded._batches and max(indexes, default=0) <= applied_index < 1 << 63)
        return loaded


def _check(holds: bool) -> None:
    if not holds:
        raise CorruptData("the applied state's staged transactions are out of range")
