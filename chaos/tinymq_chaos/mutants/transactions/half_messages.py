"""Mutants of half messages: of their decisions, and of checks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tinymq.base.types import PartitionId
from tinymq.broker.half_messages.check_turns import CheckTurns
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions.half import half_message as rules
from tinymq.broker.transactions.half.half_message import CHECK_EVERY_US, CHECKS_MAX, HalfMessage
from tinymq.broker.transactions.half.half_messages import HalfMessages
from tinymq.broker.transactions.rules import Refusal, Standing
from tinymq.broker.transactions.transactional_id import Phase
from tinymq.proto import group_pb2
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant, replaces

RULES = "tests/broker/transactions/test_half_messages.py::test_"
HALVES = Focus(faults=("kill", "isolate"), workloads=("halves",), seconds=12.0, pace=0.3)


@mutant("half messages: nobody sees one before its decision", HALVES)
def half_messages_are_visible_before_their_decision(p: Patches) -> None:
    """A partition that asks before it takes the batch is told the truth, and one that asks later is not."""
    real: Any = HalfMessages.standing
    stored: set[TransactionId] = set()

    def standing(self: HalfMessages, transaction: TransactionId, place: PartitionId) -> Standing | None:
        found: Standing | None = real(self, transaction, place)
        if found is Standing.OPEN and transaction in stored:
            return Standing.PUBLISH
        stored.add(transaction)
        return found

    p.replace(HalfMessages.standing, standing)


@mutant("half messages: one that nobody answers for is not committed", HALVES)
def unanswered_half_messages_are_committed(p: Patches) -> None:
    def is_given_up(half: HalfMessage, now_us: int) -> bool:
        return half.is_open and now_us >= half.due_us

    def give_up(half: HalfMessage, now_us: int) -> HalfMessage | Refusal:
        return replace(half, phase=Phase.COMMITTED)

    p.replace(rules.is_given_up, is_given_up)
    p.replace(rules.give_up, give_up)


@mutant("half messages: what is rolled back is dropped", HALVES)
@replaces(rules.end)
def rolled_back_half_messages_are_published(
    real: Any, half: HalfMessage, *, commit: bool, held: int | None
) -> HalfMessage | Refusal:
    return real(half, commit=True, held=held if commit else 1)  # type: ignore[no-any-return]


@mutant("half messages: checkers are asked about one whose sender is silent", HALVES)
@replaces(CheckTurns.is_free)
def half_messages_are_never_checked(_: Any, self: CheckTurns, half: HalfMessage, now_us: int, now_s: float) -> bool:
    return False


@mutant("half messages: the snapshot restores them", test=f"{RULES}a_decision_stands_and_is_repeated")
@replaces(HalfMessages.load)
def half_messages_are_forgotten(real: Any, stored: group_pb2.CoordinatorState) -> HalfMessages:
    return HalfMessages()


@mutant("half messages: only checks that were answered count", test=f"{RULES}a_check_without_an_answer_does_not_count")
@replaces(rules.is_given_up)
def unanswered_checks_count(real: Any, half: HalfMessage, now_us: int) -> bool:
    return real(half, now_us) or (half.is_open and now_us - half.begun_us >= CHECKS_MAX * CHECK_EVERY_US)


@mutant("half messages: an answer counts for its own check", test=f"{RULES}an_answer_counts_once_and_for_its_own_check")
@replaces(rules.count)
def answers_count_for_any_check(real: Any, half: HalfMessage, number: int, now_us: int) -> HalfMessage | Refusal:
    return real(half, half.checks, now_us)  # type: ignore[no-any-return]


@mutant("half messages: a decision stands", test=f"{RULES}a_decision_stands_and_is_repeated")
@replaces(rules.end)
def decisions_on_half_messages_are_undone(
    real: Any, half: HalfMessage, *, commit: bool, held: int | None
) -> HalfMessage | Refusal:
    return real(replace(half, phase=Phase.OPEN), commit=commit, held=held)  # type: ignore[no-any-return]


@mutant(
    "half messages: one whose partition does not hold it is not committed",
    test=f"{RULES}what_a_partition_does_not_hold_is_not_committed",
)
@replaces(rules.end)
def half_messages_are_committed_unstored(
    real: Any, half: HalfMessage, *, commit: bool, held: int | None
) -> HalfMessage | Refusal:
    return real(half, commit=commit, held=1)  # type: ignore[no-any-return]
