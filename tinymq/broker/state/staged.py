"""The staged entries of one partition: record batches of transactions, which have no offsets yet. Pure, and replicated.

A batch of a transaction is stored as a STAGED entry and takes no offsets. A PUBLISH entry ends the transaction in this
partition and gives all its records their offsets; a DISCARD entry drops them. This state has what is staged and not
ended. Nothing is remembered of transactions that have ended: the leader asks the transaction's coordinator before it
appends the first batch of a transaction (tinymq/broker/transactions/staging.py).

The leader decided before it appended an entry, so no rule here refuses one: an entry with nothing new has no effect.
The entries of a transaction lie packed, in 32 bytes each, so that 100,000 of them take 4 MB and a snapshot copies them.
A snapshot has one block for each transaction, by its first entry. All numbers are little-endian.

    offset size field
         0    8 producer_id      u64  the first three name the transaction
         8    8 number           u64
        16    4 epoch            u32
        20    4 coordinator      u32  number of the partition of __coordinator that has the transaction
        24    4 count            u32  of entries, at least 1
        28    4 reserved         u32  0
        32  32n entries               in the order of the log

    an entry
         0    8 entry_index      u64
         8    4 record_count     u32
        12    4 length           u32  bytes of its batch
        16    8 max_timestamp_us i64  greatest record timestamp
        24    4 batch_crc        u32  crc32c of its batch
        28    4 writer           u32
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, pairwise
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
    """What identifies a batch within its partition."""

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
    """The staged entries of one transaction in this partition, in the order of the log."""

    __slots__ = ("_indexes", "_packed", "bytes", "coordinator", "records")

    def __init__(self, coordinator: int) -> None:
        self.coordinator = coordinator  # number of the partition of __coordinator that has the transaction
        self.records = 0
        self.bytes = 0  # of their batches
        self._packed = bytearray()  # the entries, as drawn above
        self._indexes: dict[int, array[int]] = {}  # of the entries of each writer, by batch number

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
        return sum(len(self._indexes.get(writer, ())) for writer in writers)

    @property
    def indexes(self) -> Iterator[int]:
        """The Raft indexes of the entries, in no order."""
        return chain.from_iterable(self._indexes.values())

    @property
    def waiting(self) -> Waiting:
        """The room that the entries take."""
        return Waiting(len(self), self.records, self.bytes)

    @property
    def first_index(self) -> int:
        """The Raft index of the first entry."""
        return int(_ENTRY.unpack_from(self._packed)[0])

    def next_number(self, writer: int) -> int:
        return len(self._indexes.get(writer, ()))

    def index_of(self, writer: int, number: int) -> int | None:
        """The Raft index of a batch; None: it is not here."""
        indexes = self._indexes.get(writer, ())
        return indexes[number] if 0 <= number < len(indexes) else None

    def add(self, writer: int, entry: StagedEntry) -> None:
        self._packed += _ENTRY.pack(*entry, writer)
        indexes = self._indexes.get(writer)
        if indexes is None:
            indexes = self._indexes[writer] = array("Q")
        indexes.append(entry.entry_index)
        self.records += entry.record_count
        self.bytes += entry.length

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
        staged, before = cls(coordinator), 0
        for *fields, writer in _ENTRY.iter_unpack(packed[_TRANSACTION.size : end]):
            entry = StagedEntry._make(fields)
            _check(before < entry.entry_index and entry.record_count > 0 and entry.length > 0)
            staged.add(writer, entry)
            before = entry.entry_index
        return TransactionId(producer_id, epoch, number), staged, packed[end:]


class StagedTransactions:
    """The transactions of one partition that have staged entries and no end yet, by id."""

    def __init__(self) -> None:
        self._open: dict[TransactionId, StagedTransaction] = {}  # in the order of their first entries
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
        return next((staged.first_index for staged in self._open.values()), None)

    def stage(self, batch: StagedBatch, entry: StagedEntry, coordinator: int) -> None:
        """Apply a STAGED entry. One that is there already, or that leaves out a number, changes nothing."""
        staged = self._open.get(batch.transaction) or StagedTransaction(coordinator)
        if batch.number == staged.next_number(batch.writer):
            staged.add(batch.writer, entry)
            self._open[batch.transaction] = staged
            self._count(1, entry.record_count, entry.length)

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
        _check(all(a.first_index < b.first_index for a, b in pairwise(loaded._open.values())))
        indexes = set(chain.from_iterable(staged.indexes for staged in loaded._open.values()))
        _check(len(indexes) == loaded._batches and max(indexes, default=0) <= applied_index < 1 << 63)
        return loaded


def _check(holds: bool) -> None:
    if not holds:
        raise CorruptData("the applied state's staged transactions are out of range")
