"""A search through all states of a small world of transactions, or through random paths of a larger one.

In every state, what must never happen is looked for (`anomaly`). A path that leads to one is printed as a story.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.broker.transactions.transaction_world import Decision, Scope, State, World, applied, dropped, visible
from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import StagedBatch
from tinymq.broker.transactions.transactional_id import Phase


@dataclass
class Found:
    """The result of a search."""

    states: int = 0
    complete: bool = True  # every state was visited
    anomaly: str = ""
    story: list[str] = field(default_factory=list)
    over: int = 0  # states in which nothing more can happen

    def __str__(self) -> str:
        return "\n".join([f"{self.states} states: {self.anomaly or 'nothing found'}", *self.story])


def anomaly(state: State) -> str:
    """What must never happen, and has; "": nothing has."""
    decided = {each.transaction: each for each in state.decided}
    if len(decided) != len(state.decided):
        return "a decision was undone"
    for owner in state.owners:
        for transaction, phase in owner.told:
            if transaction not in decided or decided[transaction].phase is not phase:
                return f"an owner was told {phase.value}, which was not decided"
    seen: set[tuple[PartitionId, StagedBatch]] = set()
    for place, part in state.parts:
        batches = visible(part.log)
        if len(set(batches)) != len(batches):
            return "a batch is visible twice"
        order = [batch.transaction for batch in batches]
        if state.lost:  # the producer id that an owner gets after a loss is another producer
            order.sort(key=lambda transaction: transaction.producer_id)
        if order != sorted(order):
            return "transactions of one producer are visible in another order"
        for batch in batches:
            known = decided.get(batch.transaction)
            if known is None or known.phase is not Phase.COMMITTED:
                return "a batch of a transaction that was not committed is visible"
        if any(decided[each].phase is Phase.COMMITTED for each in dropped(part.log) if each in decided):
            return "a batch of a committed transaction was dropped"
        seen.update((place, batch) for batch in batches)
    for each in state.decided if not state.lost else ():  # after a loss, an operator decides about what is left
        if _is_over(state, each) and not each.batches <= seen:
            return "a committed transaction is over, and a part of it is not visible"
    return ""


def _is_over(state: State, decision: Decision) -> bool:
    """Whether the coordinator has forgotten the transaction, because all partitions have confirmed."""
    known = state.known
    if known is None or known.producer_id != decision.transaction.producer_id:
        return True
    return decision.transaction.number not in known.transactions


def left_over(state: State) -> str:
    """What is wrong with a state in which nothing more can happen."""
    if not state.lost and any(len(applied(part.log)) or part.tail for _, part in state.parts):
        return "a batch is staged for ever"
    if state.known is not None and state.known.transactions:
        return "a transaction is never over"
    return ""


def search(scope: Scope, states_max: int) -> Found:
    """Visit all states, those with the shortest paths first, until one is wrong."""
    world, found = World(scope), Found()
    first = world.first()
    before: dict[Any, tuple[Any, str]] = {first: (None, "")}
    queue: deque[State] = deque([first])
    while queue:
        state = queue.popleft()
        found.states += 1
        found.anomaly = anomaly(state)
        moved = False
        if not found.anomaly:
            for label, following in world.steps(state):
                moved = True
                key = following
                if key not in before:
                    before[key] = state, label
                    queue.append(following)
            if not moved:
                found.over += 1
                found.anomaly = left_over(state)
        if found.anomaly:
            key, label = before[state]
            while key is not None:
                found.story.insert(0, label)
                key, label = before[key]
            return found
        if found.states >= states_max:
            found.complete = False
            return found
    return found


def walk(scope: Scope, seed: int, steps_max: int = 400) -> Found:
    """Take one random path to its end."""
    world, found, rng = World(scope), Found(), random.Random(seed)
    state = world.first()
    while found.states < steps_max:
        found.states += 1
        found.anomaly = anomaly(state)
        if found.anomaly:
            return found
        steps = list(world.steps(state))
        if not steps:
            found.over += 1
            found.anomaly = left_over(state)
            return found
        label, state = rng.choice(steps)
        found.story.append(label)
    found.complete = False
    return found
