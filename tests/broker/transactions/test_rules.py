"""The rules of a coordinator that a search of a small world does not show: bounds, fencing, repeated calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions import rules
from tinymq.broker.transactions.rules import DECIDED_MAX, PARTITIONS_MAX, End, Refusal, Standing
from tinymq.broker.transactions.transactional_id import EPOCH_MAX, Phase, TransactionalId

A, B = PartitionId(b"a" * 16, 0), PartitionId(b"b" * 16, 0)


def begun(state: TransactionalId, *places: PartitionId) -> tuple[TransactionalId, TransactionId]:
    state = done(rules.begin(state, state.producer_id, state.epoch, 100, 60))
    transaction = TransactionId(state.producer_id, state.epoch, state.number)
    return done(rules.add(state, transaction, places)), transaction


def done(result: TransactionalId | Refusal) -> TransactionalId:
    assert isinstance(result, TransactionalId), result
    return result


@pytest.fixture
def state() -> TransactionalId:
    return rules.register(None, 7, 50)


def test_a_registration_fences_the_owner_before_and_aborts_what_it_left_open(state: TransactionalId) -> None:
    before, transaction = begun(state, A)
    after = rules.register(before, 8, 200)
    assert (after.producer_id, after.epoch) == (7, 1)
    assert rules.begin(after, 7, 0, 200, 60) is Refusal.FENCED
    assert rules.commit(after, transaction, {A: 1}, {A: 1}) is Refusal.ABORTED
    assert rules.ends(after) == [End(A, transaction, False)]


def test_used_up_epochs_bring_another_producer_id_once_all_is_confirmed(state: TransactionalId) -> None:
    open_, transaction = begun(replace(state, epoch=EPOCH_MAX), A)
    fenced = rules.register(open_, 8, 200)
    assert (fenced.producer_id, fenced.epoch) == (7, EPOCH_MAX + 1)
    fresh = rules.register(rules.confirm(fenced, transaction, A), 8, 200)
    assert (fresh.producer_id, fresh.epoch, fresh.number) == (8, 0, 0)
    assert rules.outcome(fresh, transaction) is Refusal.ABORTED  # a relay asks for it after its registration


def test_a_repeated_commit_is_answered_by_the_newest_outcome_also_when_all_is_over(state: TransactionalId) -> None:
    open_, transaction = begun(state, A)
    decided = done(rules.commit(open_, transaction, {A: 2}, {A: 2}))
    over = rules.confirm(decided, transaction, A)
    assert not over.transactions
    assert rules.commit(over, transaction, {A: 2}, {A: 2}) is Refusal.COMMITTED
    next_, later = begun(over, A)
    aborted = done(rules.abort(next_, later))
    assert rules.commit(aborted, later, {A: 1}, {A: 1}) is Refusal.ABORTED
    assert rules.commit(aborted, transaction, {A: 2}, {A: 2}) is Refusal.UNKNOWN  # OutcomeUnknown


@pytest.mark.parametrize(
    ("expected", "held"),
    [
        ({A: 2, B: 1}, {A: 1, B: 1}),
        ({A: 1}, {A: 1, B: 1}),
        ({A: 1, B: 1}, {A: 1}),
        ({A: 1, B: 1, PartitionId(b"c", 0): 1}, {}),
    ],
)
def test_what_is_not_whole_in_each_partition_is_aborted(
    state: TransactionalId, expected: dict[PartitionId, int], held: dict[PartitionId, int]
) -> None:
    open_, transaction = begun(state, A, B)
    decided = done(rules.commit(open_, transaction, expected, held))
    assert decided.transactions[1].phase is Phase.ABORTED


def test_a_partition_that_got_nothing_is_no_obstacle(state: TransactionalId) -> None:
    open_, transaction = begun(state, A, B)
    decided = done(rules.commit(open_, transaction, {A: 3}, {A: 3, B: 0}))
    assert decided.transactions[1].phase is Phase.COMMITTED


def test_a_partition_is_told_what_to_do(state: TransactionalId) -> None:
    open_, transaction = begun(state, A)
    assert rules.standing(open_, transaction, A) is Standing.OPEN
    assert rules.standing(open_, transaction, B) is Standing.DISCARD  # it was never added
    assert rules.standing(None, transaction, A) is Standing.DISCARD
    assert rules.standing(open_, transaction._replace(producer_id=9), A) is Standing.DISCARD
    committed = done(rules.commit(open_, transaction, {A: 1}, {A: 1}))
    assert rules.standing(committed, transaction, A) is Standing.PUBLISH
    both, later = begun(committed, A, B)
    both = done(rules.commit(both, later, {A: 1, B: 1}, {A: 1, B: 1}))
    assert rules.standing(both, later, A) is Standing.LATER
    assert rules.ends(both) == [End(A, transaction, True), End(B, later, True)]
    assert rules.standing(rules.confirm(both, transaction, A), later, A) is Standing.PUBLISH


def test_beginning_another_one_aborts_what_is_open(state: TransactionalId) -> None:
    open_, first = begun(state, A)
    both, _ = begun(open_, B)
    assert both.transactions[first.number].phase is Phase.ABORTED
    assert both.open is not None
    assert both.open.number == 2


def test_an_open_transaction_ends_with_its_time(state: TransactionalId) -> None:
    open_, _ = begun(state, A)
    assert rules.time_out(open_, 159) is open_
    assert rules.time_out(open_, 160).transactions[1].phase is Phase.ABORTED


def test_partitions_and_unconfirmed_transactions_are_bounded(state: TransactionalId) -> None:
    open_, transaction = begun(state)
    many = [PartitionId(b"a", number) for number in range(PARTITIONS_MAX + 1)]
    assert rules.add(open_, transaction, many) is Refusal.TOO_LARGE
    for _ in range(DECIDED_MAX):
        state, transaction = begun(state, A)
        state = done(rules.commit(state, transaction, {A: 1}, {A: 1}))
    assert rules.begin(state, 7, 0, 100, 60) is Refusal.TOO_MANY
    freed = rules.confirm(state, TransactionId(7, 0, 1), A)
    assert isinstance(rules.begin(freed, 7, 0, 100, 60), TransactionalId)


def test_past_transactions_leave_nothing(state: TransactionalId) -> None:
    for _ in range(1000):
        state, transaction = begun(state, A, B)
        state = done(rules.commit(state, transaction, {A: 1, B: 1}, {A: 1, B: 1}))
        state = rules.confirm(rules.confirm(state, transaction, B), transaction, A)
    assert (state.number, dict(state.transactions)) == (1000, {})


def test_a_late_confirmation_of_an_open_transaction_changes_nothing(state: TransactionalId) -> None:
    open_, transaction = begun(state, A)
    assert rules.confirm(open_, transaction, A) is open_
