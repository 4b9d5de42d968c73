"""A search through all states of a small world, or along a random path of a larger one.

Each state is checked for what must never happen. The steps that lead to a wrong state are printed, one a line.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)


class World(Protocol[State]):
    """Makes states."""

    def first(self) -> State: ...
    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Everything that can happen next: a name for the step, and the state behind it."""
        ...


@dataclass(frozen=True)
class Rules(Generic[State]):
    """The checks of a world. Each returns the anomaly that it finds, or ""."""

    anomaly: Callable[[State], str]
    left_over: Callable[[State], str]  # of a state in which nothing more can happen


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


def search(world: World[State], rules: Rules[State], states_max: int) -> Found:
    """Visit all states, those with the shortest paths first, until one is wrong."""
    found, first = Found(), world.first()
    before: dict[State, tuple[State | None, str]] = {first: (None, "")}
    queue = deque([first])
    while queue:
        state = queue.popleft()
        found.states += 1
        found.anomaly = rules.anomaly(state)
        moved = False
        if not found.anomaly:
            for label, following in world.steps(state):
                moved = True
                if following not in before:
                    before[following] = state, label
                    queue.append(following)
            if not moved:
                found.over += 1
                found.anomaly = rules.left_over(state)
        if found.anomaly:
            earlier, label = before[state]
            while earlier is not None:
                found.story.insert(0, label)
                earlier, label = before[earlier]
            return found
        if found.states >= states_max:
            found.complete = False
            return found
    return found


def walk(world: World[State], rules: Rules[State], seed: int, steps_max: int = 400) -> Found:
    """Take one random path to its end."""
    found, rng, state = Found(), random.Random(seed), world.first()
    while found.states < steps_max:
        found.states += 1
        found.anomaly = rules.anomaly(state)
        if found.anomaly:
            return found
        steps = list(world.steps(state))
        if not steps:
            found.over += 1
            found.anomaly = rules.left_over(state)
            return found
        label, state = rng.choice(steps)
        found.story.append(label)
    found.complete = False
    return found
