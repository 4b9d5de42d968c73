"""A search through all states of a small world, or along a random path of a larger one.

Each state is checked for what must never happen. The steps that lead to a wrong state are printed, one a line.

A search remembers every state that it has visited. States differ from one another in few of their parts, so each part
is stored once, and a state as the numbers of its parts: some 200 bytes, and nothing of it is lost. (Holzmann, State
Compression in SPIN, 1997, calls this collapse compression.)
"""

from __future__ import annotations

import random
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

State = TypeVar("State", bound=tuple[Any, ...])  # a NamedTuple, whose fields are hashable


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


class Interned:
    """Numbers for values, from 0. Equal values have the same number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.values: list[Any] = []

    def number(self, value: Hashable) -> int:
        found = self._numbers.setdefault(value, len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found


class Collapsed(Generic[State]):
    """States as bytes that are equal if, and only if, the states are."""

    def __init__(self, kind: type[State], fields: int) -> None:
        self._kind = kind
        self._values = [Interned() for _ in range(fields)]
        self._tuples = [Interned() for _ in range(fields)]  # plain tuples, as the numbers of their items
        self._items = [Interned() for _ in range(fields)]

    def pack(self, state: State) -> bytes:
        return array("I", map(self._number, range(len(state)), state)).tobytes()

    def pack_following(self, following: State, state: State, packed: bytes) -> bytes:
        """The same of a state that a step has made of another one: fields that it left alone keep their numbers."""
        numbers = array("I", packed)
        for at, value in enumerate(following):
            if value is not state[at]:
                numbers[at] = self._number(at, value)
        return numbers.tobytes()

    def _number(self, at: int, value: Any) -> int:
        if type(value) is not tuple:
            return 2 * self._values[at].number(value)
        # Such as one item for each partition: most steps change one of them.
        return 2 * self._tuples[at].number(tuple(map(self._items[at].number, value))) + 1

    def unpack(self, packed: bytes) -> State:
        return self._kind(*(self._value(at, number) for at, number in enumerate(array("I", packed))))

    def _value(self, at: int, number: int) -> Any:
        if number % 2 == 0:
            return self._values[at].values[number // 2]
        items = self._items[at].values
        return tuple(items[each] for each in self._tuples[at].values[number // 2])


def search(world: World[State], rules: Rules[State], states_max: int) -> Found:
    """Visit all states, those with the shortest paths first, until one is wrong."""
    found, first = Found(), world.first()
    collapsed = Collapsed(type(first), len(first))
    before: dict[bytes, bytes | None] = {collapsed.pack(first): None}
    queue = deque(before)
    while queue:
        packed = queue.popleft()
        state = collapsed.unpack(packed)
        found.states += 1
        found.anomaly = rules.anomaly(state)
        moved = False
        if not found.anomaly:
            for _, following in world.steps(state):
                moved = True
                other = collapsed.pack_following(following, state, packed)
                if other not in before:
                    before[other] = packed
                    queue.append(other)
            if not moved:
                found.over += 1
                found.anomaly = rules.left_over(state)
        if found.anomaly:
            found.story = _story(world, list(map(collapsed.unpack, _path(before, packed))))
            return found
        if found.states >= states_max:
            found.complete = False
            return found
    return found


def _path(before: dict[bytes, bytes | None], last: bytes) -> list[bytes]:
    """The states on the way to the last one, from the first."""
    path: list[bytes] = []
    at: bytes | None = last
    while at is not None:
        path.append(at)
        at = before[at]
    return path[::-1]


def _story(world: World[State], path: list[State]) -> list[str]:
    """The names of the steps along a path."""
    return [
        next(label for label, following in world.steps(before) if following == after)
        for before, after in pairwise(path)
    ]


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
