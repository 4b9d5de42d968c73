"""What must never happen in a small world of transactions, and a search for it through all states, or along random
paths of a larger world.
"""

from __future__ import annotations

from tests.broker import state_search
from tests.broker.state_search import Found, Rules
from tests.broker.transactions.transaction_world import Decision, Scope, State, World, applied, dropped, visible
from tinymq.base.types import PartitionId
from tinymq.broker.state.staged import StagedBatch
from tinymq.broker.transactions.transactional_id import Phase


def anomaly(state: State) -> str:
    """Name the promise that this state breaks; "": it breaks none."""
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
    """Name the promise that this last state of a path breaks; "": it breaks none."""
    if not state.lost and any(len(applied(part.log)) or part.tail for _, part in state.parts):
        return "a batch is staged for ever"
    if state.known is not None and state.known.transactions:
        return "a transaction is never over"
    return ""


RULES = Rules(anomaly, left_over)


def search(scope: Scope, states_max: int) -> Found:
    """Visit all states of a world of this scope."""
    return state_search.search(World(scope), RULES, states_max)


def walk(scope: Scope, seed: int) -> Found:
    """Take one random path to its end."""
    return state_search.walk(World(scope), RULES, seed)
