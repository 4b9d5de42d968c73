"""Everything that can happen to a version of Spark's sink, visited: none of it breaks a promise. And without each rule,
some of it does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from tests.broker import state_search
from tests.broker.state_search import Found, Rules
from tests.broker.transactions import sink_world
from tests.broker.transactions.sink_world import Run, Scope, State, World, applied, of_producer, visible
from tests.broker.transactions.transaction_world import A, B
from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import TransactionId
from tinymq.broker.transactions import sink_rules
from tinymq.broker.transactions.rules import Refusal, Standing
from tinymq.broker.transactions.sink_application import SinkApplication
from tinymq.broker.transactions.staging import Staging
from tinymq.broker.transactions.transactional_id import Phase


def anomaly(state: State) -> str:
    """Name the promise that this state breaks; "": it breaks none."""
    versions = [each.committed.version for each in state.decided]
    if versions != sorted(set(versions)):
        return "a version was committed twice, or after a higher one"
    if not all(each.whole for each in state.decided):
        return "a version was committed without the rows of a task"
    by_version = {each.committed.version: each.committed.query for each in state.decided}
    for run, driver in zip(WORLD.scope.runs, state.drivers, strict=True):
        if driver.told == "committed" and by_version.get(run.version, run.query) != run.query:
            return "a driver was told that its version is committed, which is another query's"
        if driver.told == "committed" and (not versions or run.version > max(versions)):
            return "a driver was told that its version is committed, and it is not"
    for place, part in state.parts:
        shown = []
        for transaction, batches in visible(part):
            decision = of_producer(state, transaction)
            if decision is None:
                return "sets that no commit names are visible"
            whole = {batch for at, batch in decision.batches if at == place}
            if batches - whole:
                return "a set that its commit does not name is visible"
            if whole - batches:
                return "a part of a version is visible"
            shown.append(decision.committed.version)
        if shown != sorted(set(shown)):
            return "versions are visible in another order, or twice"
    for decision in state.decided:
        if decision.transaction is not None and decision.transaction.producer_id not in state.known.transactions:
            seen = {(place, batch) for place, part in state.parts for each in visible(part) for batch in each[1]}
            if not decision.batches <= seen:
                return "a committed version is over, and a part of it is not visible"
    return ""


def left_over(state: State) -> str:
    """Name the promise that this last state of a path breaks; "": it breaks none."""
    if any(len(applied(part.log)) or part.tail for _, part in state.parts):
        return "a batch is staged for ever"
    return "sets are never over" if state.known.transactions else ""


WORLD = World(Scope([]))
RULES = Rules(anomaly, left_over)


def search(scope: Scope, states_max: int = 150_000) -> Found:
    global WORLD
    WORLD = World(scope)
    return state_search.search(WORLD, RULES, states_max)


def walk(scope: Scope, seed: int) -> Found:
    global WORLD
    WORLD = World(scope)
    return state_search.walk(WORLD, RULES, seed)


TWICE = Run(1, [[[A], [A]]])  # one task, and a second attempt at it
SPREAD = Run(1, [[[A, B]]])
PAIR = Run(1, [[[A]], [[B]]])
WIDE = [
    Run(1, [[[A, A], [A]], [[B], [A, B]]]), Run(1, [[[A]], [[B, A]]]), Run(2, [[[B]], [[A], [A]]]),
    Run(2, [[[A, B]]], query="other"), Run(3, [[[A]]]),
]  # fmt: skip

SCOPES = {
    "a task that is tried twice": Scope([TWICE], deliveries=2),
    "a task of two partitions, a new leader, and a time-out": Scope([SPREAD], elections=1, timeouts=1),
    "a version that is run twice at a time": Scope([Run(1, [[[A]]]), Run(1, [[[A]]])], aborts=1),
    "two versions": Scope([Run(1, [[[A]]]), Run(2, [[[A]]])]),
    "another query": Scope([Run(1, [[[A]]]), Run(1, [[[A]]], query="other")]),
    "a coordinator that fails": Scope([TWICE], crashes=1),
    "a hasty task, and a new leader": Scope([SPREAD], elections=1, hasty=True),
    "two tasks, and a time-out": Scope([PAIR], timeouts=1),
}
LONG = {  # 19,965 to 194,297 states
    "a task that is tried twice, in two partitions": Scope([Run(1, [[[A, B], [A]]])], deliveries=2, elections=1),
    "two tasks, one of them tried twice": Scope([Run(1, [[[A], [A]], [[B]]])], elections=1, aborts=1),
    "a zombie's run, a time-out, and a coordinator that fails": Scope(
        [Run(1, [[[A]]]), Run(1, [[[A]]])], timeouts=1, crashes=1, aborts=1
    ),
    "two versions, a new leader, and aborts": Scope([Run(1, [[[A]]]), Run(2, [[[A]]])], elections=1, aborts=2),
    "two versions in two partitions": Scope([SPREAD, Run(2, [[[A, B]]])]),
    "two partitions, and every fault": Scope([SPREAD], deliveries=2, elections=2, timeouts=1, crashes=1, aborts=1),
    "a task that is tried three times, and a time-out": Scope([Run(1, [[[A], [A], [A]]])], timeouts=1),
    "two tasks, both tried twice": Scope([Run(1, [[[A], [A]], [[B], [B]]])]),
    "a zombie's run in two partitions, and a time-out": Scope([SPREAD, SPREAD], timeouts=1),
    "a version that is run twice, and the next one": Scope([Run(1, [[[A]]]), Run(1, [[[A]]]), Run(2, [[[A]]])]),
    "another query, and a time-out": Scope([Run(1, [[[A]]]), Run(1, [[[A]]], query="other")], timeouts=1, crashes=1),
}


@pytest.mark.parametrize("name", SCOPES)
def test_no_state_breaks_a_promise(name: str) -> None:
    found = search(SCOPES[name])
    assert not found.anomaly, str(found)
    assert found.complete
    assert found.over


@pytest.mark.long
@pytest.mark.timeout(900)  # seconds on a quiet machine
@pytest.mark.parametrize("name", LONG)
def test_no_state_of_a_larger_world_breaks_a_promise(name: str) -> None:
    found = search(LONG[name], 2_000_000)
    assert not found.anomaly, str(found)
    assert found.complete


@pytest.mark.parametrize("seed", range(20))
def test_no_random_path_breaks_a_promise(seed: int) -> None:
    """Several versions, runs, tasks and attempts at once, two queries, and every fault."""
    scope = Scope(WIDE, deliveries=2, elections=4, timeouts=seed % 3, crashes=2, aborts=seed % 4, ordered=True)
    found = walk(scope, seed)
    assert not found.anomaly, f"seed {seed}: {found}"


# ---- without a rule ------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]
_entries_of, _standing, _open_set = Staging.entries_of, sink_rules.standing, sink_rules.open_set


def _all_entries(self: Staging, transaction: TransactionId, sets: Any = None) -> Any:
    return _entries_of(self, transaction)


def _publishes(state: SinkApplication, producer_id: int, place: PartitionId) -> Standing:
    answer = _standing(state, producer_id, place)
    return Standing.PUBLISH if answer is Standing.LATER else answer


def _no_version(state: SinkApplication, version: int, query: str) -> Refusal | None:
    return None


def _no_query(state: SinkApplication, version: int, query: str) -> Refusal | None:
    if state.committed is None or version > state.committed.version:
        return None
    return Refusal.COMMITTED


def _only_this_version(state: SinkApplication, version: int, query: str) -> Refusal | None:
    return Refusal.COMMITTED if state.committed is not None and version == state.committed.version else None


def _discard_any(state: SinkApplication, producer_id: int) -> SinkApplication:
    found = state.transactions.get(producer_id)
    if found is None:
        return state
    return sink_rules._with(state, sink_rules.replace(found, phase=Phase.ABORTED))


def _any_whole(places: Collection[PartitionId], expected: Any, held: Any) -> bool:
    return True


def changed(owner: Any, name: str, new: Any) -> Patch:
    return lambda patch: patch.setattr(owner, name, new)


LARGE = "the sets of a commit are in one transaction"  # ten seconds
WITHOUT: dict[str, tuple[Scope, Patch, str]] = {
    "a partition publishes only the sets that the commit names": (
        Scope([TWICE]), changed(Staging, "entries_of", _all_entries), "does not name is visible",
    ),
    "a partition that asks is not told to publish": (
        Scope([TWICE]), changed(sink_rules, "standing", _publishes), "does not name is visible",
    ),
    "a version is committed once": (
        Scope([Run(1, [[[A]]]), Run(1, [[[A]]])]), changed(sink_rules, "refuse_version", _no_version),
        "a version was committed twice",
    ),
    "no version is committed below a higher one": (
        Scope([Run(1, [[[A]]]), Run(2, [[[A]]])]), changed(sink_rules, "refuse_version", _only_this_version),
        "after a higher one",
    ),
    "another query's version is refused": (
        SCOPES["another query"], changed(sink_rules, "refuse_version", _no_query), "which is another query's",
    ),
    "what a partition holds is counted before the decision": (
        Scope([SPREAD], elections=1, hasty=True), changed(sink_rules, "_has_all", _any_whole),
        "a part of it is not visible",
    ),
    "versions are published in their order": (
        Scope([Run(1, [[[A]]]), Run(2, [[[A]]])]), changed(sink_rules, "is_next", lambda *which: True),
        "in another order",
    ),
    "an abort after the decision changes nothing": (
        Scope([Run(1, [[[A]]])], aborts=1), changed(sink_rules, "discard", _discard_any), "a part of it is not visible",
    ),
    LARGE: (
        Scope([Run(1, [[[A], [A]], [[A]]])], timeouts=1),
        changed(sink_world, "same_transaction", lambda messages: True), "without the rows of a task",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "rule", [pytest.param(each, marks=[pytest.mark.long] if each == LARGE else []) for each in WITHOUT]
)
def test_each_rule_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scope, patch, anomaly = WITHOUT[rule]
    patch(monkeypatch)
    found = search(scope)
    assert found.anomaly, str(found)
    assert anomaly in found.anomaly, str(found)
