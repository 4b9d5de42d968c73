"""Everything that can happen to a small transaction, visited: none of it breaks a promise. And without each rule, some
of it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.broker.transactions.transaction_search import search, walk
from tests.broker.transactions.transaction_world import A, B, Flaw, Scope
from tinymq.broker.state.staged import StagedBatch, TransactionId
from tinymq.broker.transactions import rules
from tinymq.broker.transactions.staging import EndStep, Question, Staging, Step
from tinymq.broker.transactions.transactional_id import TransactionalId
from tinymq.broker.transactions.transactional_ids import TransactionalIds

ONE = {1: {A: [0], B: [0]}}
TWO = {**ONE, 2: {A: [0]}}
WIDE = {1: {A: [0, 0, 1], B: [0, 1]}, 2: {A: [0, 1], B: [0]}, 3: {B: [0, 0]}}

SCOPES = {
    "each batch twice, a time-out, and a new leader, in one partition": Scope({1: {A: [0]}}, deliveries=2, elections=1),
    "a new leader": Scope(ONE, deliveries=1, elections=1, timeouts=0),
    "two transactions": Scope(TWO, deliveries=1, elections=0, timeouts=0),
    "a coordinator that fails": Scope(ONE, deliveries=1, elections=0, timeouts=0, crashes=1),
    "a coordinator that lost a part of its log": Scope(ONE, deliveries=1, elections=0, timeouts=0, losses=1),
    "two owners": Scope({1: {A: [0]}}, deliveries=1, elections=0, timeouts=0, owners=2),
}
LONG = {
    "a hasty owner": Scope(ONE, deliveries=1, elections=1, timeouts=0, hasty=True),
    "an id that expires": Scope({1: {A: [0]}}, deliveries=1, elections=0, timeouts=0, owners=2, expires=True),
    "each batch twice, and a time-out": Scope(ONE, deliveries=2, elections=0),
    "each batch twice, a time-out, and a new leader": Scope(ONE, deliveries=2, elections=1),
    "each end twice": Scope(ONE, deliveries=2, elections=0, ends=2),
    "two transactions, and a time-out": Scope(TWO, deliveries=1, elections=0),
    "two owners, a time-out, and a new leader": Scope({1: {A: [0]}}, deliveries=1, owners=2),
    "a coordinator that lost a part of its log, and two owners": Scope(
        {1: {A: [0]}}, deliveries=1, elections=0, timeouts=0, owners=2, losses=1
    ),
    "a coordinator that fails twice, and a time-out": Scope(ONE, deliveries=1, elections=0, crashes=2),
    "a coordinator that fails, and a new leader": Scope(ONE, deliveries=1, elections=1, timeouts=0, crashes=1),
    "a hasty owner, a coordinator that fails, and a new leader": Scope(
        {1: {A: [0]}}, deliveries=2, timeouts=0, crashes=2, hasty=True
    ),
    "two owners, and a coordinator that fails": Scope({1: {A: [0]}}, deliveries=1, elections=0, owners=2, crashes=2),
    "two writers": Scope({1: {A: [0, 1], B: [0]}}, deliveries=1, elections=1, timeouts=0),
}


@pytest.mark.parametrize("name", SCOPES)
def test_no_state_breaks_a_promise(name: str) -> None:
    found = search(SCOPES[name], 60_000)
    assert not found.anomaly, str(found)
    assert found.complete
    assert found.over


@pytest.mark.long
@pytest.mark.timeout(600)  # a minute on a quiet machine
@pytest.mark.parametrize("name", LONG)
def test_no_state_of_a_larger_world_breaks_a_promise(name: str) -> None:
    found = search(LONG[name], 1_000_000)  # the largest one has 763,975
    assert not found.anomaly, str(found)
    assert found.complete


@pytest.mark.parametrize("seed", range(40))
def test_no_random_path_breaks_a_promise(seed: int) -> None:
    """Several writers, partitions, owners, elections and time-outs at once: too many states to visit all."""
    scope = Scope(
        WIDE, elections=4, timeouts=2, owners=2, ends=2, expires=True, rollbacks=seed % 3 == 0, hasty=seed % 2 == 0,
        ordered=True, crashes=2,
    )  # fmt: skip
    found = walk(scope, seed)
    assert not found.anomaly, f"seed {seed}: {found}"


# ---- without a rule ------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def _judge_unasked(self: Staging, batch: StagedBatch, answer: Question | None = None, *, is_open: bool = False) -> Step:
    following = self._next_number(batch)
    return Step.APPEND if batch.number == following else Step.DUPLICATE


def _end_at_once(self: Staging, transaction: TransactionId) -> EndStep:
    step = _judge_end(self, transaction)
    return EndStep.CONFIRM if step is EndStep.WAIT else step


def _count_appended(self: Staging, transaction: TransactionId) -> int:
    tail = self._tails.get(transaction)
    return self._applied.held(transaction) + (0 if tail is None else len(tail.entries))


def _same_producer_id(state: TransactionalId | None, fresh_producer_id: int, now_us: int) -> TransactionalId:
    return _register(state, 1, now_us)


_judge_end, _register = Staging.judge_end, rules.register


def changed(owner: Any, name: str, new: Any) -> Patch:
    return lambda patch: patch.setattr(owner, name, new)


WITHOUT: dict[str, tuple[Scope, Patch, str]] = {
    "the coordinator is asked before the first batch": (
        Scope({1: {A: [0]}}, elections=0), changed(Staging, "judge", _judge_unasked), "visible twice",
    ),
    "what a partition holds is counted before the decision": (
        Scope(ONE, deliveries=1, elections=0, timeouts=0, hasty=True),
        changed(rules, "is_whole", lambda expected, held: True), "a part of it is not visible",
    ),
    "only what is applied counts": (
        Scope(ONE, deliveries=1, elections=1, timeouts=0, hasty=True), changed(Staging, "held", _count_appended),
        "a part of it is not visible",
    ),
    "transactions of a producer are published in their order": (
        Scope(TWO, deliveries=1, elections=0, timeouts=0), changed(rules, "is_next", lambda *which: True),
        "in another order",
    ),
    "an end is confirmed when it is applied": (
        Scope(ONE, deliveries=1, elections=1, timeouts=0), changed(Staging, "judge_end", _end_at_once),
        "a part of it is not visible",
    ),
    "no identity is used twice": (
        Scope({1: {A: [0]}}, elections=0, timeouts=0, owners=2, expires=True),
        changed(rules, "register", _same_producer_id), "a decision was undone",
    ),
    "unknown does not mean aborted after a loss": (
        Scope(ONE, deliveries=1, elections=0, timeouts=0, losses=1),
        changed(TransactionalIds, "_is_before_loss", lambda *which: False),
        "a batch of a committed transaction was dropped",
    ),
    "a deposed leader confirms nothing": (
        Scope(ONE, elections=0, timeouts=0, flaw=Flaw.DEPOSED_LEADERS_CONFIRM), lambda patch: None,
        "a part of it is not visible",
    ),
    "a deposed coordinator answers nothing": (
        Scope(ONE, elections=0, timeouts=0, flaw=Flaw.DEPOSED_COORDINATORS_ANSWER), lambda patch: None,
        "a batch of a committed transaction was dropped",
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", WITHOUT)
def test_each_rule_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scope, patch, anomaly = WITHOUT[rule]
    patch(monkeypatch)
    found = search(scope, 60_000)
    assert anomaly in found.anomaly, str(found)
