"""What a fault is, and how a row of the table of faults looks. No fault here.

A fault is a generator: it begins, yields what it did in words (whom it befell, its parameters), and ends when it is
resumed. None instead of words: it cannot happen now. It runs in a thread and may block; it is resumed once, and has to
have undone by then what it did: what it stopped runs, what it cut flows.

    def pause(stage: Stage, rng: random.Random, how: Parameters) -> Iterator[str | None]:
        broker = rng.choice(stage.brokers)
        stage.pause(broker)
        yield f"broker {broker}"
        still = stands_still(stage, broker)
        stage.resume(broker)
        return "its process stood still" if still else ""

What it returns is its effect, in words with numbers, seen where it is done: the disk counts the syncs that failed, the
network is asked by a connection through it. "": it did nothing, and what goes well then was no test of anything. None:
there was no way to see it.

Faults overlap: another one may have killed the broker that this one paused. So a Stage forgives what a Target does
not, and what is cut is named by `whose`, a word that no other fault under way has. What a cluster has beyond `Target`
(disks, say) is reached through the stage as well, by its name: with a protocol and `cast`, not with `isinstance`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tinymq_chaos.faults import Family, Real, Value
from tinymq_chaos.real.system.target import Target


class Stage(Target, Protocol):
    """The target as faults see it: who starts what runs, stops what does not, or pauses what is gone does nothing.
    The history is told of all that is done to processes."""

    @property
    def topics(self) -> Sequence[tuple[str, int]]:
        """(name, partition) of all that are written to, so that a fault can ask who leads one."""
        ...

    @property
    def paused(self) -> frozenset[int]: ...

    def alone(self, *brokers: int) -> AbstractContextManager[None]:
        """While the body runs nobody else starts, ends or wipes these: their folders may be looked into and changed."""
        ...

    def tell(self, what: str) -> None:
        """For the history: something has changed."""
        ...


Parameters = Mapping[str, Value]
Doing = Generator[str | None, None, str | None]  # words, nothing, its effect
Fault = Callable[[Stage, random.Random, Parameters], Iterator[str | None]]

_numbers = itertools.count(1)


ACTIONS: dict[str, Fault] = {}  # by the name of their row in tinymq_chaos/faults.py
F = TypeVar("F", bound=Fault)


def action(function: F) -> F:
    """Register `function` as the action of the row that has its name."""
    assert function.__name__ not in ACTIONS, function.__name__
    ACTIONS[function.__name__] = function
    return function


@dataclass(frozen=True, slots=True)
class RealFault:
    """A fault that the harness can do: its action, and the real part of its row."""

    begin: Fault
    family: Family
    real: Real

    def __post_init__(self) -> None:
        assert self.real.damages or not self.real.scars, "scars are damage"
        assert not self.real.damages or "broker" in self.real.parameters, "the nemesis names the broker to damage"


def whose(kind: str) -> str:
    """A name for what one fault cuts or slows down, that no other one has."""
    return f"{kind} {next(_numbers)}"
