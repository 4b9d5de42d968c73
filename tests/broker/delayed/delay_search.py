"""What must never happen in a small world of delayed batches, and a search for it through all states."""

from __future__ import annotations

from tests.broker import state_search
from tests.broker.delayed.delay_world import DUE, Scope, State, World, applied, visible
from tests.broker.state_search import Found, Rules


def anomaly(state: State) -> str:
    """Name the promise that this state breaks; "": it breaks none."""
    log = state.log[: state.applied]
    published = visible(log)
    if len({number for number, _ in published}) < len(published):
        return "a delayed batch is visible twice"
    if any(time < DUE for _, time in published):
        return "a delayed batch is visible early"
    ended = {item.number for item in log if item.kind == "discard"}
    seen = {item.number for item in log if item.kind == "publish"}
    if state.told & seen:
        return "a canceled batch is visible"
    if state.denied:
        return "a batch that waits is said to have ended"
    if state.stuck:
        return "a producer's next batch is refused"
    waiting = applied(log).delayed
    if any(batch.entry_index < state.start for batch in waiting):
        return "the payload of a batch that waits is gone"
    if not state.staged <= {batch.schedule_id for batch in waiting} | ended | seen:
        return "a staged batch is lost"
    return ""


def left_over(state: State) -> str:
    """Name the promise that this last state of a path breaks; "": it breaks none."""
    if len(applied(state.log).delayed) or state.applied < len(state.log):
        return "a batch waits for ever"
    return ""


RULES = Rules(anomaly, left_over)


def search(scope: Scope, states_max: int) -> Found:
    """Visit all states of a world of this scope."""
    return state_search.search(World(scope), RULES, states_max)
