"""Mutants of acks that count when a transaction is committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinymq.broker.groups.staged_jobs import StagedJobs
from tinymq.broker.state.queue_group import QueueGroup
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.state.transactional.staged_acks import AckedRecords, StagedAcks
from tinymq_chaos.mutants.mutant import mutant, replaces

LEADER = "tests/broker/partition/test_staged_acks.py::test_"
STATE = "tests/broker/state/test_staged_acks.py::test_"


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
