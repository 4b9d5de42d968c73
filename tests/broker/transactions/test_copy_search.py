"""Everything that can happen to a few batches that are copied while their transaction has no end, visited: none of it
breaks a promise. And without each rule, some of it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.broker import state_search
from tests.broker.state_search import Found, Rules
from tests.broker.transactions.copy_world import (
    Flaw,
    Item,
    Scope,
    State,
    World,
    applied,
    entry_of,
    staging_of,
    visible,
)
from tinymq.broker.state.staged import StagedBatch, StagedEntry, StagedTransaction, StagedTransactions
from tinymq.broker.state.transactional.published import PublishedEntries
from tinymq.broker.transactions.staging import Staging
from tinymq.format.transactional import PublishedItems

# ---- what must never happen --------------------------------------------------------------------------------------


def anomaly(state: State) -> str:
    """Name the promise that this state breaks; "": it breaks none."""
    log = state.log[: state.applied]
    here, published = applied(log), visible(log)
    crcs = [entry.batch_crc for entry in published]
    if len(set(crcs)) < len(crcs):
        return "a batch is visible twice"
    if crcs != [entry_of(number, 0).batch_crc for number in range(len(crcs))]:
        return "the batches are visible in another order"
    if state.decided == "discard" and published:
        return "a batch of an aborted transaction is visible"
    if state.decided == "publish" and state.confirmed and not published:
        return "a committed transaction is over, and not visible"
    if any(log[entry.entry_index - 1].kind not in ("stage", "copy") for entry in published):
        return "a published batch is not where the PUBLISH entry says"
    staged = [entry for _, entry in here.staged.between(1, state.applied)]
    if published or any(item.kind == "discard" for item in log):
        if staged:
            return "a batch is staged behind its end"
    elif len(staged) != numbers_staged(log):
        return "a staged batch is lost, or there twice"
    wanted = [*staged, *visible(log, here.log_start)]
    firsts = [state.start]
    if state.follower is not None and state.follower[1] == state.applied:  # until then, it does not know the copies
        firsts.append(state.follower[0])
    if any(entry.entry_index < first for entry in wanted for first in firsts):
        return "a batch is gone that a replica needs"
    ends = any(item.kind in ("publish", "discard") for item in state.log)
    if state.led <= state.applied and staging_of(state).waiting.batches != (0 if ends else numbers_staged(state.log)):
        return "a copy takes room"
    return ""


def numbers_staged(log: tuple[Item, ...]) -> int:
    """How many batches were staged."""
    return len({item.number for item in log if item.kind == "stage"})


def left_over(state: State) -> str:
    """Name the promise that this last state of a path breaks; "": it breaks none."""
    here = applied(state.log)
    if len(here.staged):
        return "a batch is staged for ever"
    if here.log_start == here.high_watermark and state.start < len(state.log):
        return "entries are kept for nothing"
    return ""


RULES = Rules(anomaly, left_over)


def search(scope: Scope, states_max: int = 60_000) -> Found:
    return state_search.search(World(scope), RULES, states_max)


SCOPES = {
    "a batch that comes twice, and a new leader": Scope(deliveries=2, others=0),
    "two batches": Scope(batches=2, elections=0, others=0),
    "two batches, and a new leader": Scope(batches=2, copies=1, others=0),
}
LONG = {
    "two batches and other records": Scope(batches=2, elections=0),
    "a batch that comes twice, other records, and a new leader": Scope(deliveries=2),
    "two new leaders": Scope(elections=2),
    "two batches, other records, and a new leader": Scope(batches=2),
}


@pytest.fixture(autouse=True)
def no_old_states() -> None:
    applied.cache_clear()


@pytest.mark.parametrize("name", SCOPES)
def test_no_state_breaks_a_promise(name: str) -> None:
    found = search(SCOPES[name])
    assert not found.anomaly, str(found)
    assert found.complete
    assert found.over


@pytest.mark.long
@pytest.mark.timeout(600)  # two minutes on a quiet machine
@pytest.mark.parametrize("name", LONG)
def test_no_state_of_a_larger_world_breaks_a_promise(name: str) -> None:
    found = search(LONG[name], 1_000_000)
    assert not found.anomaly, str(found)
    assert found.complete


# ---- without a rule ------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def changed(owner: Any, name: str, new: Any) -> Patch:
    return lambda patch: patch.setattr(owner, name, new)


def _copy_what_has_ended(patch: pytest.MonkeyPatch) -> None:
    """A copy may be appended behind the end of its transaction, and stages the batch again."""
    patch.setattr(Staging, "movable", lambda self, batch: self._applied.entry_of(batch))
    patch.setattr(Staging, "copied", lambda self, batch, replaced_index, index: None)

    def carry(self: StagedTransactions, batch: StagedBatch, replaced: int, index: int, crc: int) -> None:
        _carry(self, batch, replaced, index, crc)
        if self.get(batch.transaction) is None:
            self.stage(batch, entry_of(batch.number, index), 0)

    patch.setattr(StagedTransactions, "carry", carry)


def _move_behind_the_others(self: StagedTransaction, writer: int, number: int, entry_index: int) -> None:
    _carry_one(self, writer, number, entry_index)
    size = 32
    at = self._rows[writer][number] * size
    self._packed += self._packed[at : at + size]
    del self._packed[at : at + size]
    for row in range(len(self)):
        self._rows[writer][(number + 1 + row) % len(self)] = row


def _count_room(self: Staging, batch: StagedBatch, replaced_index: int, index: int) -> None:
    _copied(self, batch, replaced_index, index)
    self._more = self._more.plus(self.waiting_of(batch.transaction))


def _forget_copies(self: Staging, transaction: Any, sets: Any = None) -> list[StagedEntry]:
    tail, staged = self._tails.get(transaction), self._applied.get(transaction)
    return [*(() if staged is None else staged.entries), *(() if tail is None else tail.entries.values())]


_carry, _carry_one, _copied = StagedTransactions.carry, StagedTransaction.carry, Staging.copied
_NONE: Patch = lambda patch: None  # noqa: E731
ONE, TWO = Scope(), Scope(batches=2, elections=0, follower=False)

WITHOUT: dict[str, tuple[Scope, Patch, str]] = {
    "one entry replaces the other": (Scope(flaw=Flaw.TWO_ENTRIES), _NONE, "is gone"),
    "nothing is copied behind its end, or its copy changes nothing": (ONE, _copy_what_has_ended, "staged"),
    "an end names the copies that lie before it": (ONE, changed(Staging, "entries_of", _forget_copies), "is gone"),
    "a copy counts when it is applied": (Scope(flaw=Flaw.SEGMENTS_GO_EARLY), _NONE, "is gone"),
    "a copy has the place of its batch": (
        TWO, changed(StagedTransaction, "carry", _move_behind_the_others), "in another order",
    ),
    "a copy takes no room": (ONE, changed(Staging, "copied", _count_room), "takes room"),
    "what a PUBLISH entry names stays": (
        ONE, changed(PublishedEntries, "lowest_index", property(lambda self: None)), "is gone",
    ),
    "from the lowest of its entries on": (
        TWO, changed(PublishedItems, "lowest_index", property(lambda self: self[0].entry_index)), "is gone",
    ),
    "segments stay while staged batches lie in them": (
        ONE, changed(StagedTransactions, "lowest_index", property(lambda self: None)), "is gone",
    ),
    "a new leader has applied the entries of earlier terms": (
        Scope(flaw=Flaw.EARLY_LEADER), _NONE, "twice",
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", WITHOUT)
def test_each_rule_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scope, patch, found_anomaly = WITHOUT[rule]
    patch(monkeypatch)
    found = search(scope)
    assert found_anomaly in found.anomaly, str(found)
