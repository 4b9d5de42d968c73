"""A search through all states of a small world of delayed batches.

In every state, what must never happen is looked for. A path that leads to it is printed as a story.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tests.broker.delayed.delay_world import DUE, Scope, State, World, applied, visible


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
    """What is wrong with a state in which nothing more can happen."""
    if len(applied(state.log).delayed) or state.applied < len(state.log):
        return "a batch waits for ever"
    return ""


def search(scope: Scope, states_max: int) -> Found:
    """Visit all states, those with the shortest paths first, until one is wrong."""
    world, found = World(scope), Found()
    first = world.first()
    before: dict[State, tuple[State | None, str]] = {first: (None, "")}
    queue: deque[State] = deque([first])
    while queue:
        state = queue.popleft()
        found.states += 1
        found.anomaly = anomaly(state)
        moved = False
        if not found.anomaly:
            for label, following in world.steps(state):
                moved = True
                if following not in before:
                    before[following] = state, label
                    queue.append(following)
            if not moved:
                found.over += 1
                found.anomaly = left_over(state)
        if found.anomaly:
            at: State | None = state
            while at is not None:
                at, label = before[at]
                found.story.insert(0, label)
            return found
        if found.states >= states_max:
            found.complete = False
            return found
    return found
