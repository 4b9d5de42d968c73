"""Mutants of the offsets that transactions commit: in their partitions, and of the members that have read so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinymq.broker.partition.staged.transactions import PartitionTransactions
from tinymq.broker.state.cursor import Cursor, published
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.state.state import PartitionState
from tinymq.broker.state.transactional.staged_offsets import StagedOffsets
from tinymq.broker.state.transactional.staged_progress import StagedProgress
from tinymq.client.group.transactional_reading import HandedOut, TransactionalReading
from tinymq.proto import partition_pb2 as pb
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant, replaces

OFFSETS = "tests/broker/partition/test_staged_offsets.py::test_"
PROCESSORS = Focus(faults=("kill", "isolate"), workloads=("processors",), seconds=12.0, pace=0.3)
# Decisions are lost on their way to partitions, which change hands meanwhile.
BETWEEN = Focus(("drop", "reset", "kill"), ("processors",), latency_s=0.005, seconds=15.0, pace=0.1)
RESTARTS = Focus(("kill_all", "kill", "drop"), ("processors",), segment_bytes=2 << 10, seconds=15.0, pace=0.1)


@mutant("offsets: a new owner reads when no offset is staged", BETWEEN)
@replaces(PartitionTransactions.settle_offsets)
async def owners_read_beside_transactions(_: Any, self: PartitionTransactions, group: str) -> bool:
    return True


@mutant(
    "offsets: a member that comes back waits for its own transaction, too",
    test=f"{OFFSETS}a_new_owner_ends_what_is_open_before_it_reads",
)
@replaces(PartitionState.transactions_of)
def members_do_not_wait_for_themselves(real: Any, self: PartitionState, group: str) -> list[TransactionId]:
    present, staged = self.cursors.get(group), self.staged_offsets

    def epoch(transaction: TransactionId) -> int:
        offsets = staged.get(transaction)
        return 0 if offsets is None else offsets.commits[group].epoch

    return [each for each in real(self, group) if present is None or epoch(each) < present.epoch]


@mutant("offsets: a fenced member stages none", test=f"{OFFSETS}a_member_that_loses_the_partition_meanwhile_is_fenced")
@replaces(StagedProgress.check_offset)
def fenced_members_stage_offsets(_: Any, self: StagedProgress, command: object, bounds: object) -> None:
    return None


@mutant("offsets: they move with the records", PROCESSORS)
@replaces(StagedOffsets.end)
def staged_offsets_move_nothing(real: Any, self: StagedOffsets, transaction: TransactionId) -> Sequence[pb.Commit]:
    real(self, transaction)
    return []


@mutant("offsets: one that is committed counts also when another member has the partition", BETWEEN)
@replaces(published)
def offsets_of_replaced_members_move_nothing(real: Any, cursor: Cursor, commit: pb.Commit, now_us: int) -> Cursor:
    return cursor if commit.epoch < cursor.epoch else real(cursor, commit, now_us)


@mutant("offsets: a seek since the staging wins", BETWEEN)
@replaces(published)
def staged_offsets_outlive_seeks(real: Any, cursor: Cursor, commit: pb.Commit, now_us: int) -> Cursor:
    moved: Cursor = real(cursor._replace(generation=commit.generation), commit, now_us)
    return moved._replace(generation=cursor.generation)


@mutant("offsets: the snapshot restores what is staged", RESTARTS)
def staged_offsets_are_forgotten(p: Patches) -> None:
    real: Any = PartitionState.load

    def load(self: PartitionState, data: bytes) -> None:
        real(self, data)
        self._progress.offsets = StagedOffsets()

    p.replace(PartitionState.load, load)


# ---- members ----------------------------------------------------------------------------------------------------


@mutant("offsets: what is not committed is handed out again", PROCESSORS)
@replaces(TransactionalReading.roll_back)
def rolled_back_messages_are_not_handed_out_again(real: Any, self: TransactionalReading) -> None:
    real(self)
    self.rolled_back = False


@mutant("offsets: a transaction with records of a partition that went away is rolled back", PROCESSORS)
@replaces(TransactionalReading.handed_out)
def what_went_away_is_committed(real: Any, self: TransactionalReading) -> list[HandedOut]:
    self._reading.given_up.clear()
    return real(self)  # type: ignore[no-any-return]
