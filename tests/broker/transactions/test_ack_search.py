"""Acks in transactions: everything that can happen to a small queue group, visited. No job is handled twice or lost.
And without each rule, some are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.broker import state_search
from tests.broker.state_search import Found, Rules
from tests.broker.transactions.ack_world import JOB, AckScope, AckWorld, State, applied
from tinymq.broker.groups.staged_jobs import StagedJobs
from tinymq.broker.state.queue_group import QueueGroup
from tinymq.broker.state.queue_groups import QueueGroups
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.state.transactional.staged_acks import StagedAcks
from tinymq.broker.transactions import rules
from tinymq.broker.transactions.staging import Staging
from tinymq.broker.transactions.transactional_id import Phase


def rules_of(scope: AckScope) -> Rules[State]:
    """What must never happen in a world of this scope. A seek asks for one more delivery, and begins a generation."""

    def committed_in(state: State) -> list[int]:
        handled = dict(state.handled)
        return [handled[each] for each, phase in state.decided if phase is Phase.COMMITTED]

    def anomaly(state: State) -> str:
        if len(dict(state.decided)) != len(state.decided):
            return "a decision was undone"
        committed, queue = committed_in(state), applied(state.log)
        if len(set(committed)) != len(committed):
            return "a job was handled twice"
        settled = queue.group.is_settled(JOB, queue.position)
        if settled and queue.group.generation not in committed:
            return "a job is lost: no committed transaction has handled it"
        return ""

    def left_over(state: State) -> str:
        queue, removed = applied(state.log), bool(state.trims)
        if len(queue.state.staged_acks) or state.tail:
            return "an ack is staged for ever"
        if any(worker.step not in ("idle", "dead") for worker in state.workers):
            return "a worker waits for ever"
        settled = queue.group.is_settled(JOB, queue.position) or removed
        if queue.group.generation in committed_in(state) and not settled:
            return "a job that was handled comes again"
        able = any(worker.step == "idle" and worker.begun < scope.begins for worker in state.workers)
        return "a job is left" if able and not settled else ""

    return Rules(anomaly, left_over)


def search(scope: AckScope, states_max: int) -> Found:
    return state_search.search(AckWorld(scope), rules_of(scope), states_max)


SCOPES = {
    "a lease runs out": AckScope(expiries=1),
    "a worker dies": AckScope(deaths=1),
    "a seek": AckScope(workers=1, begins=2, seeks=1),
    "a removal, and a time-out": AckScope(workers=1, trims=1, timeouts=1),
    "a new leader": AckScope(workers=1, begins=2, elections=1),
}
LONG = {
    "a session ends": AckScope(silences=1),
    "a worker dies, and a new leader": AckScope(deaths=1, elections=1),
    "a lease runs out, and a seek": AckScope(expiries=1, seeks=1),
    "a hasty worker, and a new leader": AckScope(workers=1, begins=2, elections=1, hasty=True),
}


@pytest.mark.parametrize("name", SCOPES)
def test_no_job_is_handled_twice_or_lost(name: str) -> None:
    found = search(SCOPES[name], 10_000)
    assert not found.anomaly, str(found)
    assert found.complete
    assert found.over


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LONG)
def test_no_job_of_a_larger_world_is_handled_twice_or_lost(name: str) -> None:
    found = search(LONG[name], 1_000_000)
    assert not found.anomaly, str(found)
    assert found.complete


@pytest.mark.parametrize("seed", range(10))
def test_no_random_path_handles_a_job_twice(seed: int) -> None:
    """A lease that runs out, and a new leader: that world alone has more than a million states."""
    scope = AckScope(
        begins=3, expiries=3, silences=1, deaths=1, elections=2, timeouts=1, seeks=1, hasty=seed % 2 == 0, ordered=True
    )
    found = state_search.walk(AckWorld(scope), rules_of(scope), seed)
    assert not found.anomaly, f"seed {seed}: {found}"


# ---- without a rule ------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def changed(owner: Any, name: str, new: Any) -> Patch:
    return lambda patch: patch.setattr(owner, name, new)


def _take_any_ack(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StagedJobs, "check", lambda *which: None)
    patch.setattr(QueueGroup, "check_stage", lambda *which: None)


def _settle_always(self: QueueGroup, spans: Any, position: int, *, settle: bool) -> int:
    return _end_staged(self, spans, position, settle=True)


def _settle_never(self: QueueGroup, spans: Any, position: int, *, settle: bool) -> int:
    return _end_staged(self, spans, position, settle=False)


def _settle_any_generation(self: QueueGroups, name: str, generation: int, *rest: Any, settle: bool) -> int | None:
    return _end_of_group(self, name, self.by_name[name].generation, *rest, settle=settle)


def _count_appended(self: Staging, transaction: TransactionId) -> int:
    tail = self._tails.get(transaction)
    return _count_applied(self, transaction) + (0 if tail is None else len(tail.entries))


_end_staged, _end_of_group, _count_applied = QueueGroup.end_staged, QueueGroups.end_staged, Staging.held

WITHOUT: dict[str, tuple[AckScope, Patch, str]] = {
    "a job takes one staged ack": (AckScope(expiries=1), _take_any_ack, "handled twice"),
    "a job with a staged ack is nobody's": (
        AckScope(), changed(QueueGroups, "stage", lambda *which: None), "handled twice",
    ),
    "a rollback gives the job back": (
        AckScope(workers=1, timeouts=1), changed(QueueGroup, "end_staged", _settle_always), "is lost",
    ),
    "a commit settles the job": (AckScope(), changed(QueueGroup, "end_staged", _settle_never), "handled twice"),
    "a seek wins": (
        AckScope(workers=1, begins=2, seeks=1), changed(QueueGroups, "end_staged", _settle_any_generation), "is lost",
    ),
    "what the partition holds is counted before the decision": (
        AckScope(workers=1, begins=2, hasty=True), changed(rules, "is_whole", lambda expected, held: True), "",
    ),
    "only what is applied counts": (
        AckScope(workers=1, begins=2, hasty=True, elections=1), changed(Staging, "held", _count_appended), "",
    ),
    "the transaction of a worker that is gone is ended": (
        AckScope(deaths=1), changed(StagedAcks, "orphans", lambda *which: []), "for ever",
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", WITHOUT)
def test_each_rule_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scope, patch, anomaly = WITHOUT[rule]
    patch(monkeypatch)
    found = search(scope, 10_000)
    assert found.anomaly, "no path needs it"
    assert anomaly in found.anomaly, str(found)
