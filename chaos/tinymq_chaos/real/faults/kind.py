"""The interface of a fault's action in the harness of real processes, and the registry of actions. No fault is here.

An action is a generator. It begins the fault, yields a description (the brokers that it strikes, its parameters), and
ends the fault when it is resumed. It yields None instead if the fault cannot happen now. It runs in a thread and may
block. It is resumed once, and has to undo what it did by its end: stopped processes run, and cut links work.

    def pause(stage: Stage, rng: random.Random, how: Parameters) -> Iterator[str | None]:
        broker = rng.choice(stage.brokers)
        stage.pause(broker)
        yield f"broker {broker}"
        still = stands_still(stage, broker)
        stage.resume(broker)
        return "its process stood still" if still else ""

It returns its effect, in words with numbers, as observed where the fault acts: the disk counts failed syncs, and a
connection through the network shows a cut. "": the fault had no effect, and the run tested nothing by it. None: there
was no way to observe it.

Faults overlap: another one may have killed the broker that this one paused. So a Stage ignores requests that a Target
refuses, and `whose` gives each fault a name of its own for what it cuts. Actions reach what a cluster has beyond
`Target` (disks, for example) through the stage as well, with a protocol and `cast`, not with `isinstance`.
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
    """The target as faults see it.

    To start a running broker, stop a stopped one or pause a dead one does nothing. Every change to a process goes into
    the history.
    """

    @property
    def topics(self) -> Sequence[tuple[str, int]]:
        """Return (name, partition) of all written partitions, so that a fault can ask for the leader of one."""
        ...

    @property
    def paused(self) -> frozenset[int]: ...

    def alone(self, *brokers: int) -> AbstractContextManager[None]:
        """While the body runs, no other fault starts, ends or wipes these brokers: the body may change their data
        directories.
        """
        ...

    def tell(self, what: str) -> None:
        """Report a change for the history."""
        ...


Parameters = Mapping[str, Value]
Doing = Generator[str | None, None, str | None]  # yields a description, gets nothing, returns the effect
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


def unique_name(kind: str) -> str:
    """Return a name that no other fault has, for what one fault cuts or slows down."""
    return f"{kind} {next(_numbers)}"
