"""Mutants of the batches of transactions, in the partitions that stage, publish and drop them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from tinymq.broker.partition.kept_entries import KeptEntries
from tinymq.broker.partition.staged.term_log import TermLog
from tinymq.broker.state.staged import NOTHING, StagedBatch, StagedEntry, StagedTransactions, TransactionId
from tinymq.broker.state.state import PartitionState
from tinymq.broker.state.transactional.published import PublishedEntries
from tinymq.broker.transactions.led_transactions import LedTransactions
from tinymq.broker.transactions.staging import Staging
from tinymq.format.entry import Entry, Kind
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant, replaces

STAGED = "tests/broker/state/test_staged.py::test_"
TRANSACTIONS = "tests/broker/partition/test_transactions.py::test_"
COPIES = "tests/broker/partition/test_copies.py::test_"
LED = "tests/broker/transactions/test_led_transactions.py::test_"


@mutant(
    "transactions: an end is confirmed when it is applied",
    test=f"{LED}an_end_is_appended_once_and_confirmed_when_it_is_applied",
)
@replaces(LedTransactions.end)
async def ends_are_confirmed_before_they_are_applied(
    real: Any, self: LedTransactions, transaction: TransactionId, *, publish: bool, sets: Collection[int] | None = None
) -> None:
    end = asyncio.ensure_future(real(self, transaction, publish=publish, sets=sets))
    end.add_done_callback(lambda done: done.cancelled() or done.exception())


@mutant("a published record counts once", test=f"{STAGED}records_count_when_they_are_published_and_not_before")
@replaces(PartitionState.apply)
def published_records_count_twice(real: Any, self: PartitionState, entry: Entry) -> Any:
    before = self.record_bytes
    outcomes = real(self, entry)
    if entry.header.kind == Kind.PUBLISH:
        self.record_bytes += self.record_bytes - before
    return outcomes


@mutant(
    "a PUBLISH entry moves the high watermark", test=f"{TRANSACTIONS}readers_are_woken_when_a_transaction_is_published"
)
@replaces(PartitionState.apply)
def published_records_stay_hidden(real: Any, self: PartitionState, entry: Entry) -> Any:
    before = self.high_watermark
    outcomes = real(self, entry)
    if entry.header.kind == Kind.PUBLISH:
        self.high_watermark = before
    return outcomes


@mutant("a discarded batch is gone", test=f"{TRANSACTIONS}a_discarded_transaction_leaves_nothing")
@replaces(PartitionState.apply)
def discards_are_ignored(real: Any, self: PartitionState, entry: Entry) -> Any:
    staged = self.staged.dump()
    outcomes = real(self, entry)
    if entry.header.kind == Kind.DISCARD:
        self.staged = StagedTransactions.load(staged, entry.index)
    return outcomes


@mutant("the snapshot restores what is staged", test=f"{STAGED}records_count_when_they_are_published_and_not_before")
def staged_batches_are_forgotten(p: Patches) -> None:
    real: Any = PartitionState.load

    def load(self: PartitionState, data: bytes) -> None:
        real(self, data)
        self.staged = StagedTransactions()

    p.replace(PartitionState.load, load)


@mutant(
    "segments stay while a transaction has batches in them",
    test=f"{TRANSACTIONS}segments_stay_while_a_transaction_needs_them",
)
def segments_of_staged_batches_go(p: Patches) -> None:
    p.replace(StagedTransactions.lowest_index, property(lambda self: None))


@mutant(
    "segments stay while they have published batches",
    test=f"{TRANSACTIONS}segments_stay_while_a_transaction_needs_them",
)
def segments_of_published_batches_go(p: Patches) -> None:
    p.replace(PublishedEntries.lowest_index, property(lambda self: None))


@mutant("a staged batch has its room", test=f"{TRANSACTIONS}a_bounded_topic_gives_staged_records_their_room")
def staged_batches_take_no_room(p: Patches) -> None:
    p.replace(Staging.waiting, property(lambda self: NOTHING))


@mutant("an end names all batches in the log", test=f"{LED}an_end_names_the_batches_that_are_not_applied_yet_too")
@replaces(Staging.entries_of)
def ends_name_what_is_applied(
    real: Any, self: Staging, transaction: TransactionId, sets: Collection[int] | None = None
) -> Sequence[StagedEntry]:
    return list(real(self, transaction, sets))[: self.held(transaction)]


@mutant(
    "a leader counts and ends by what a majority confirms",
    test=f"{TRANSACTIONS}a_leader_that_a_majority_does_not_confirm_neither_counts_nor_ends",
)
@replaces(TermLog.confirm)
async def deposed_leaders_end_transactions(_: Any, self: TermLog) -> None:
    return None


@mutant(
    "a resolved transaction waits for earlier ones of its producer",
    test=f"{LED}what_is_resolved_waits_for_the_earlier_one_of_the_same_producer",
)
@replaces(Staging.is_behind)
def resolved_transactions_overtake(_: Any, self: Staging, transaction: TransactionId) -> bool:
    return False


# ---- copies --------------------------------------------------------------------------------------------------------


@mutant("a copy takes the place of its batch", test=f"{COPIES}a_copy_takes_the_place_of_its_batch_when_it_is_applied")
@replaces(StagedTransactions.carry)
def carry_leaves_the_old_copy(
    _: Any, self: StagedTransactions, batch: StagedBatch, replaced_index: int, entry_index: int, batch_crc: int
) -> None:
    return None


@mutant(
    "a segment stays until the copies of its batches are applied",
    Focus(("kill", "isolate", "trim"), ("lingering",), pace=0.5),
)
def a_segment_is_freed_before_its_copy_is_applied(p: Patches) -> None:
    real: Any = Staging.copied

    def copied(self: Any, batch: StagedBatch, replaced_index: int, index: int) -> None:
        real(self, batch, replaced_index, index)
        entry = self._applied.entry_of(batch)
        self._applied.carry(batch, replaced_index, index, entry.batch_crc)

    p.replace(Staging.copied, copied)


@mutant("an end names uncommitted copies", test=f"{COPIES}an_end_behind_a_copy_names_the_copy")
@replaces(Staging.copied)
def uncommitted_copies_do_not_count(_: Any, self: Staging, batch: StagedBatch, replaced_index: int, index: int) -> None:
    return None


@mutant(
    "segments go by a state that is synced",
    test="tests/broker/partition/test_kept_entries.py::test_a_segment_stays_until_the_copies_of_its_batches_are_synced_here",
)
@replaces(KeptEntries.keep_from)
def unsynced_states_free_segments(
    _: Any, self: KeptEntries, applied_index: int, lowest_kept_index: int | None, synced_index: int
) -> int | None:
    return lowest_kept_index
