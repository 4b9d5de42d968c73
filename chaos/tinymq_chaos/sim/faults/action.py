"""The interface of a fault's action, and the registry of actions.

An action is a generator. It begins the fault, yields a description of what it did (with its parameters), and ends the
fault when it is resumed. It yields None instead if the fault cannot happen now.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TypeVar

from tinymq_chaos.sim.world.world import World

Action = Callable[[World, random.Random], Iterator[str | None]]
A = TypeVar("A", bound=Action)

ACTIONS: dict[str, Action] = {}  # by the name of their row in tinymq_chaos/faults.py


def action(function: A) -> A:
    """Register `function` as the action of the row that has its name."""
    assert function.__name__ not in ACTIONS, function.__name__
    ACTIONS[function.__name__] = function
    return function
