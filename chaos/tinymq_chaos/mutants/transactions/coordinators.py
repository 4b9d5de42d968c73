"""Mutants of the coordinators of transactions: who owns an id, what is decided, and who is told of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from tinymq.base.types import PartitionId
from tinymq.broker.coordinator.peer_transaction_calls import PeerTransactionCalls
from tinymq.broker.coordinator.transaction_coordinator import StandingQuestion, TransactionCoordinator
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions import rules
from tinymq.broker.transactions.resolutions import Resolutions
from tinymq.broker.transactions.rules import End, Standing
from tinymq.broker.transactions.transactional_id import Transaction, TransactionalId
from tinymq.broker.transactions.transactional_ids import TransactionalIds
from tinymq.proto import group_pb2
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant, replaces

RULES = "tests/broker/transactions/test_rules.py::test_"
IDS = "tests/broker/transactions/test_transactional_ids.py::test_"
COORDINATOR = "tests/chaos/test_transaction_coordinator.py::test_"
TRANSFERS = Focus(faults=("kill", "isolate", "pause"), workloads=("transfers",), seconds=10.0, pace=0.3)
# A decision is lost on its way to a partition, and the program goes on meanwhile.
BETWEEN = Focus(("drop",), ("transfers",), seconds=15.0, pace=0.05)


@mutant("transactions: a registration fences the program before", TRANSFERS)
@replaces(rules.register)
def registrations_fence_nobody(
    real: Any, state: TransactionalId | None, fresh_producer_id: int, now_us: int
) -> TransactionalId:
    return real(state, fresh_producer_id, now_us) if state is None else state


@mutant("transactions: a decision stands", BETWEEN)
def decided_transactions_count_as_open(p: Patches) -> None:
    def open_(self: TransactionalId) -> Transaction | None:
        return next(iter(self.transactions.values()), None)

    p.replace(TransactionalId.open, property(open_))


@mutant("transactions: what is rolled back is dropped", TRANSFERS)
@replaces(rules.ends)
def rolled_back_transactions_are_published(real: Any, state: TransactionalId) -> list[End]:
    return [end._replace(publish=True) for end in real(state)]


@mutant("transactions: those of one id are published in their order", test=f"{RULES}a_partition_is_told_what_to_do")
@replaces(rules.is_next)
def transactions_are_published_in_any_order(
    _: Any, state: TransactionalId, transaction: Transaction, place: PartitionId
) -> bool:
    return True


@mutant("transactions: a partition is told of a decision until it has confirmed that", BETWEEN)
def ends_are_told_once(p: Patches) -> None:
    real: Any = PeerTransactionCalls.end
    told: dict[PeerTransactionCalls, set[tuple[TransactionId, PartitionId]]] = defaultdict(set)  # by each broker

    async def end(
        self: PeerTransactionCalls, transaction: TransactionId, places: Collection[PartitionId], **named: Any
    ) -> Collection[PartitionId]:
        fresh = [place for place in places if (transaction, place) not in told[self]]
        told[self].update((transaction, place) for place in fresh)
        return await real(self, transaction, fresh, **named)  # type: ignore[no-any-return]

    p.replace(PeerTransactionCalls.end, end)


@mutant(
    "transactions: a commit says when all partitions show the records",
    test=f"{COORDINATOR}a_commit_is_visible_when_all_partitions_say_so_before_that_is_noted",
)
@replaces(TransactionCoordinator.wait_over)
async def commits_are_visible_at_once(
    _: Any, self: TransactionCoordinator, name: str, transaction: TransactionId, timeout_s: float
) -> bool:
    return True


@mutant(
    "transactions: the snapshot restores the transactional ids",
    test=f"{IDS}the_state_has_the_bytes_that_were_written_down_and_comes_back_from_them",
)
@replaces(TransactionalIds.load_from)
def transactional_ids_are_forgotten(real: Any, self: TransactionalIds, stored: group_pb2.CoordinatorState) -> None:
    real(self, group_pb2.CoordinatorState())


@mutant(
    "transactions: what a new reader waits for is rolled back if it is open",
    test=f"{COORDINATOR}a_partition_has_an_open_transaction_ended_and_no_committed_one",
)
@replaces(TransactionCoordinator.standing)
async def readers_wait_for_open_transactions(
    real: Any, self: TransactionCoordinator, number: int, questions: Sequence[StandingQuestion]
) -> list[Standing]:
    return await real(self, number, [each._replace(end=False) for each in questions])  # type: ignore[no-any-return]


@mutant("an operator decides once", test=f"{IDS}an_operator_decides_what_may_be_lost_and_nothing_else")
@replaces(Resolutions.resolve)
def operators_change_their_minds(real: Any, self: Resolutions, transaction: TransactionId, *, publish: bool) -> Any:
    real(self, transaction, publish=publish)
