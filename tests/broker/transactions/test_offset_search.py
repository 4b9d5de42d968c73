"""Offsets in transactions: everything that can happen to a small read-process-write, visited. No record is handled
twice or left out. And without each rule, some are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.broker import state_search
from tests.broker.state_search import Found, Rules
from tests.broker.transactions import offset_world
from tests.broker.transactions.offset_world import GROUP, OffsetScope, OffsetWorld, State, applied
from tinymq.broker.state import cursors
from tinymq.broker.state.cursor import Cursor, published
from tinymq.broker.state.cursors import Cursors
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.state.state import PartitionState
from tinymq.broker.transactions import rules
from tinymq.broker.transactions.staging import Staging
from tinymq.broker.transactions.transactional_id import Phase
from tinymq.proto import partition_pb2 as pb


def rules_of(scope: OffsetScope) -> Rules[State]:
    """What must never happen in a world of this scope."""

    def anomaly(state: State) -> str:
        outputs, decided = dict(state.outputs), dict(state.decided)
        if len(decided) != len(state.decided):
            return "a decision was undone"
        handled = [outputs[each] for each, phase in state.decided if phase is Phase.COMMITTED]
        if len(set(handled)) != len(handled):
            return "a record was handled twice"
        if not {*range(applied(state.log, scope.records).cursors[GROUP].position)} <= {*handled}:
            return "the cursor passes a record that no committed transaction has handled"
        return ""

    def left_over(state: State) -> str:
        partition = applied(state.log, scope.records)
        if len(partition.staged_offsets) or state.tail:
            return "an offset is staged for ever"
        if any(member.step not in ("reads", "over") for member in state.members):
            return "a member waits for ever"
        if all(member.step == "over" for member in state.members):
            return "all members are fenced"
        handled = sum(phase is Phase.COMMITTED for _, phase in state.decided)
        if partition.cursors[GROUP].position != handled:
            return "an offset of a committed transaction is lost"
        if handled < scope.records and any(m.step == "reads" and m.begun < scope.begins for m in state.members):
            return "a record is left"
        return ""

    return Rules(anomaly, left_over)


def search(scope: OffsetScope, states_max: int) -> Found:
    return state_search.search(OffsetWorld(scope), rules_of(scope), states_max)


SCOPES = {
    "the second member takes over": OffsetScope(),
    "the second member takes over, and a new leader": OffsetScope(elections=1),
    "each message twice, and a time-out": OffsetScope(members=1, begins=1, deliveries=2, timeouts=1),
    "no answer to a commit, and a new leader": OffsetScope(members=1, unsure=1, elections=1),
}
LONG = {
    "two records": OffsetScope(records=2),
    "two records, and a new leader": OffsetScope(records=2, elections=1),
    "the second member takes over, and a time-out": OffsetScope(timeouts=1),
    "the second member takes over, and each message twice": OffsetScope(begins=1, deliveries=2),
    "the second member takes over, and no answer to a commit": OffsetScope(begins=1, unsure=1),
    "a hasty member, and a new leader": OffsetScope(begins=1, elections=1, hasty=True),
}


@pytest.mark.parametrize("name", SCOPES)
def test_no_record_is_handled_twice_or_left_out(name: str) -> None:
    found = search(SCOPES[name], 60_000)
    assert not found.anomaly, str(found)
    assert found.complete
    assert found.over


@pytest.mark.long
@pytest.mark.timeout(600)  # a minute on a quiet machine
@pytest.mark.parametrize("name", LONG)
def test_no_record_of_a_larger_world_is_handled_twice_or_left_out(name: str) -> None:
    found = search(LONG[name], 1_000_000)
    assert not found.anomaly, str(found)
    assert found.complete


@pytest.mark.parametrize("seed", range(20))
def test_no_random_path_handles_a_record_twice(seed: int) -> None:
    scope = OffsetScope(records=3, deliveries=2, elections=3, timeouts=1, unsure=2, hasty=seed % 2 == 0, ordered=True)
    found = state_search.walk(OffsetWorld(scope), rules_of(scope), seed)
    assert not found.anomaly, f"seed {seed}: {found}"


# ---- without a rule ------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def changed(owner: Any, name: str, new: Any) -> Patch:
    return lambda patch: patch.setattr(owner, name, new)


def _settle_earlier_epochs(state: State, partition: PartitionState) -> list[TransactionId]:
    newest, staged = partition.cursors[GROUP].epoch, partition.staged_offsets
    return [each for each in partition.transactions_of(GROUP) if staged.get(each).commits[GROUP].epoch < newest]  # type: ignore[union-attr]


def _settle_decided(state: State, partition: PartitionState) -> list[TransactionId]:
    return [each for each in partition.transactions_of(GROUP) if each in dict(state.decided)]


def _published_by_newest(cursor: Cursor, commit: pb.Commit, now_us: int) -> Cursor:
    return published(cursor, commit, now_us) if commit.epoch == cursor.epoch else cursor


def _count_appended(self: Staging, transaction: TransactionId) -> int:
    tail = self._tails.get(transaction)
    return _count_applied(self, transaction) + (0 if tail is None else len(tail.entries))


_count_applied = Staging.held


def _move_at_once(self: Cursors, commit: pb.Commit, bounds: Any) -> None:
    _check_staged(self, commit, bounds)
    self.publish(commit, bounds.now_us)


_check_staged = Cursors.check_staged

WITHOUT: dict[str, tuple[OffsetScope, Patch, str]] = {
    "a new owner gets no position while an offset is staged": (
        OffsetScope(), changed(offset_world, "settles", lambda *which: []), "handled twice",
    ),
    "an owner that opens again gets none, either": (
        OffsetScope(members=1, unsure=1), changed(offset_world, "settles", _settle_earlier_epochs), "handled twice",
    ),
    "a transaction that is open is no exception": (
        OffsetScope(), changed(offset_world, "settles", _settle_decided), "handled twice",
    ),
    "a committed offset counts, also when another member has the partition": (
        OffsetScope(), changed(cursors, "published", _published_by_newest), "handled twice",
    ),
    "a fenced member stages nothing": (
        OffsetScope(), changed(Cursors, "check_staged", lambda *which: None), "handled twice",
    ),
    "an offset moves the cursor when its transaction is committed, not before": (
        OffsetScope(members=1, timeouts=1), changed(Cursors, "check_staged", _move_at_once),
        "no committed transaction has handled",
    ),
    "what the partition holds is counted before the decision": (
        OffsetScope(members=1, hasty=True), changed(rules, "is_whole", lambda expected, held: True), "is lost",
    ),
    "only what is applied counts": (
        OffsetScope(members=1, hasty=True, elections=1), changed(Staging, "held", _count_appended), "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", WITHOUT)
def test_each_rule_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scope, patch, anomaly = WITHOUT[rule]
    patch(monkeypatch)
    found = search(scope, 60_000)
    assert found.anomaly, "no path needs it"
    assert anomaly in found.anomaly, str(found)
