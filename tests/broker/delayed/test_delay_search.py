"""Everything that can happen to a few delayed batches, visited: none of it breaks a promise. And without each rule,
some of it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.broker.delayed.delay_search import search
from tests.broker.delayed.delay_world import Flaw, Scope, applied
from tinymq.broker.delayed.uncommitted_delays import UncommittedDelays
from tinymq.broker.state.delayed import DelayedBatch, DelayedBatches
from tinymq.broker.state.state import PartitionState
from tinymq.format.batch import parse_batch_header
from tinymq.format.entry import Entry, Kind

SCOPES = {
    "a batch, canceled twice and copied, and a new leader": Scope(cancels=2, carries=1, elections=1),
    "two leaders": Scope(deliveries=1, carries=1, elections=2),
    "two batches of one producer": Scope(batches=2, cancels=0, carries=0, elections=1),
}
LONG = {
    "all of it": Scope(deliveries=2, cancels=2, carries=2, elections=2),
    "two batches": Scope(batches=2, deliveries=1, cancels=1, carries=1, elections=1),
}


@pytest.fixture(autouse=True)
def no_old_states() -> None:
    applied.cache_clear()


@pytest.mark.parametrize("name", SCOPES)
def test_no_state_breaks_a_promise(name: str) -> None:
    found = search(SCOPES[name], 60_000)
    assert not found.anomaly, str(found)
    assert found.complete
    assert found.over


@pytest.mark.long
@pytest.mark.timeout(600)  # two minutes on a quiet machine
@pytest.mark.parametrize("name", LONG)
def test_no_state_of_a_larger_world_breaks_a_promise(name: str) -> None:
    found = search(LONG[name], 600_000)
    assert not found.anomaly, str(found)
    assert found.complete


# ---- without a rule ------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def changed(owner: Any, name: str, new: Any) -> Patch:
    return lambda patch: patch.setattr(owner, name, new)


def _stage_again(self: DelayedBatches, schedule_id: int, entry_index: int) -> None:
    if self.get(schedule_id) is None:
        self.stage(DelayedBatch(entry_index, 1, 1, entry_index, 1, 1))
    else:
        _carry(self, schedule_id, entry_index)


def _copy_what_has_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UncommittedDelays, "movable", lambda self, here, each: here.get(each))
    patch.setattr(DelayedBatches, "carry", _stage_again)


def _judge_again(self: PartitionState, entry: Entry) -> None:
    _apply_delayed(self, entry)
    if entry.header.kind == Kind.DATA:
        batch = parse_batch_header(entry.batch)
        self.producers.add(batch, entry.header.base_offset, entry.header.append_time_us)


_carry, _apply_delayed = DelayedBatches.carry, PartitionState._apply_delayed
_NONE: Patch = lambda patch: None  # noqa: E731

WITHOUT: dict[str, tuple[Scope, Patch, str]] = {
    "the leader's own uncommitted entries count": (
        Scope(), changed(UncommittedDelays, "open", lambda self, here, each: here.get(each)), "visible twice",
    ),
    "a batch ends with the entry that publishes it": (
        Scope(), changed(DelayedBatches, "end", lambda self, schedule_id: False), "batch is visible",
    ),
    "what has ended is not copied, or its copy changes nothing": (Scope(), _copy_what_has_ended, "batch is visible"),
    "one entry replaces the other": (Scope(flaw=Flaw.TWO_ENTRIES), _NONE, "visible twice"),
    "what is due is looked at again after its payload was read": (
        Scope(flaw=Flaw.NO_SECOND_LOOK), _NONE, "batch is visible",
    ),
    "a new leader has applied the entries of earlier terms": (
        Scope(flaw=Flaw.EARLY_LEADER), _NONE, "batch is visible",
    ),
    "a cancel is answered when it is applied": (Scope(flaw=Flaw.HASTY_CANCEL), _NONE, "a canceled batch is visible"),
    "a deposed leader denies nothing": (Scope(flaw=Flaw.DEPOSED_ANSWERS), _NONE, "is said to have ended"),
    "a producer's batch is judged when it is staged": (Scope(flaw=Flaw.UNJUDGED), _NONE, "visible twice"),
    "and not again": (
        Scope(batches=2, cancels=0, carries=0, elections=0), changed(PartitionState, "_apply_delayed", _judge_again),
        "visible twice",
    ),
    "segments stay while batches in them wait": (Scope(flaw=Flaw.SEGMENTS_GO), _NONE, "is gone"),
    "no batch is early": (Scope(flaw=Flaw.EARLY), _NONE, "visible early"),
}  # fmt: skip


@pytest.mark.parametrize("rule", WITHOUT)
def test_each_rule_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scope, patch, anomaly = WITHOUT[rule]
    patch(monkeypatch)
    found = search(scope, 60_000)
    assert anomaly in found.anomaly, str(found)
