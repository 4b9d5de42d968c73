"""Mutants of acks that count when a transaction is committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tinymq.broker.groups.staged_jobs import StagedJobs
from tinymq.broker.state.outcome import OffsetBounds
from tinymq.broker.state.queue_group import Failure, QueueGroup, Span
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.state.state import PartitionState
from tinymq.broker.state.transactional.staged_acks import AckedRecords, StagedAcks
from tinymq.broker.state.transactional.staged_progress import StagedProgress
from tinymq.client.transaction.acked_jobs import AckedJobs
from tinymq.client.work.job import Job
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant, replaces

LEADER = "tests/broker/partition/test_staged_acks.py::test_"
STATE = "tests/broker/state/test_staged_acks.py::test_"
RESULTS = Focus(faults=("kill", "isolate"), workloads=("results",), seconds=12.0, pace=0.3)


@mutant("acks: a record takes one staged ack", test=f"{STATE}nothing_else_settles_the_record")
@replaces(QueueGroup.check_stage)
def records_take_two_staged_acks(_: Any, self: QueueGroup, spans: object, context: object) -> None:
    return None


@mutant("acks: the leader stages acks of its leases", test=f"{LEADER}only_who_holds_the_record_may_ack_it")
@replaces(StagedJobs.check)
def leaders_stage_any_ack(_: Any, self: StagedJobs, session: bytes, grants: object) -> None:
    return None


@mutant("acks: they count with the records", test=f"{LEADER}an_ack_counts_with_its_transaction")
@replaces(StagedAcks.end)
def staged_acks_settle_nothing(real: Any, self: StagedAcks, transaction: TransactionId) -> Sequence[AckedRecords]:
    real(self, transaction)
    return ()


@mutant(
    "the transaction of a worker that is gone ends", test=f"{LEADER}a_record_of_a_worker_that_is_gone_is_free_at_once"
)
@replaces(StagedAcks.orphans)
def transactions_outlive_their_workers(
    _: Any, self: StagedAcks, group: str, generation: int, sessions: object
) -> list[TransactionId]:
    return []


@mutant("acks: a rollback gives the records back", RESULTS)
@replaces(StagedProgress.discard)
def rolled_back_acks_settle(_: Any, self: StagedProgress, transaction: TransactionId, bounds: OffsetBounds) -> None:
    self.publish(transaction, bounds)


@mutant("acks: a rollback gives the records back uncharged", RESULTS)
@replaces(QueueGroup.end_staged)
def rolled_back_acks_are_charged(
    real: Any, self: QueueGroup, spans: Iterable[Span], position: int, *, settle: bool
) -> int:
    before = self.staged
    after: int = real(self, spans, position, settle=settle)
    for offset in sorted(before.keys() - self.staged.keys()) if not settle else ():
        known = self.failures.get(offset, Failure(0, 0, 0))
        self.failures[offset] = known._replace(deliveries=known.deliveries + 1)
    return after


@mutant("acks: a record with a staged ack is the transaction's alone", RESULTS)
@replaces(QueueGroup.is_open)
def staged_records_are_open(_: Any, self: QueueGroup, offset: int, position: int) -> bool:
    return not self.is_settled(offset, position) and offset not in self.burials


@mutant("acks: the snapshot restores what is staged", test=f"{STATE}a_snapshot_keeps_them_in_their_order")
def staged_acks_are_forgotten(p: Patches) -> None:
    real: Any = PartitionState.load

    def load(self: PartitionState, data: bytes) -> None:
        real(self, data)
        self._progress.acks = StagedAcks()

    p.replace(PartitionState.load, load)


@mutant("acks: they wait for the decision", RESULTS)
@replaces(AckedJobs.add)
def jobs_are_acked_at_once(_: Any, self: AckedJobs, jobs: Iterable[Job]) -> None:
    for job in jobs:
        job.ack()
