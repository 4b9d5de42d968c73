"""The staged entries of one partition: record batches of transactions, which have no offsets yet. Pure, and replicated.

A batch of a transaction is stored as a STAGED entry and takes no offsets. A PUBLISH entry ends the transaction in this
partition and gives all its records their offsets; a DISCARD entry drops them. This state has what is staged and not
ended. Nothing is remembered of transactions that have ended: the leader asks the transaction's coordinator before it
appends the first batch of a transaction (tinymq/broker/transactions/staging.py).

The leader decided before it appended an entry, so no rule here refuses one: an entry with nothing new has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


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
    length: int  # bytes of its payload
    max_timestamp_us: int
    payload_crc: int


@dataclass(slots=True)
class StagedTransaction:
    """The staged entries of one transaction in this partition, in the order of the log."""

    entries: list[StagedEntry] = field(default_factory=list)
    _indexes: dict[int, list[int]] = field(default_factory=dict)  # of the entries of each writer, by batch number

    def next_number(self, writer: int) -> int:
        return len(self._indexes.get(writer, ()))

    def index_of(self, writer: int, number: int) -> int | None:
        """The Raft index of a batch; None: it is not here."""
        indexes = self._indexes.get(writer, [])
        return indexes[number] if 0 <= number < len(indexes) else None

    def add(self, writer: int, entry: StagedEntry) -> None:
        self.entries.append(entry)
        self._indexes.setdefault(writer, []).append(entry.entry_index)


class StagedTransactions:
    """The transactions of one partition that have staged entries and no end yet, by id."""

    def __init__(self) -> None:
        self._open: dict[TransactionId, StagedTransaction] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[TransactionId]:
        return iter(self._open)

    def get(self, transaction: TransactionId) -> StagedTransaction | None:
        return self._open.get(transaction)

    def held(self, transaction: TransactionId) -> int:
        """The number of entries that are staged of a transaction."""
        staged = self._open.get(transaction)
        return 0 if staged is None else len(staged.entries)

    @property
    def lowest_index(self) -> int | None:
        """The lowest Raft index of a staged entry; None: nothing is staged. The log keeps its segments from here on."""
        return min((staged.entries[0].entry_index for staged in self._open.values()), default=None)

    def stage(self, batch: StagedBatch, entry: StagedEntry) -> None:
        """Apply a STAGED entry. One that is there already, or that leaves out a number, changes nothing."""
        staged = self._open.setdefault(batch.transaction, StagedTransaction())
        if batch.number == staged.next_number(batch.writer):
            staged.add(batch.writer, entry)
        if not staged.entries:
            del self._open[batch.transaction]

    def end(self, transaction: TransactionId) -> tuple[StagedEntry, ...]:
        """Apply a PUBLISH or a DISCARD entry. Returns what was staged, in order: nothing, if it has ended before."""
        staged = self._open.pop(transaction, None)
        return () if staged is None else tuple(staged.entries)
