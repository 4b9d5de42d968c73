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
from dataclasses import dataclass, field
from typing import Protocol

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


Value = float | str
Parameters = Mapping[str, Value]
Doing = Generator[str | None, None, str | None]  # words, nothing, its effect
Fault = Callable[[Stage, random.Random, Parameters], Iterator[str | None]]

GROUPS = ("process", "network", "disk", "files", "clock")
ANYBODY = 0.0  # as the parameter `broker`: the fault chooses
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Kind:
    """A row. Seconds are real ones."""

    begin: Fault
    group: str  # one of GROUPS
    lasts_s: tuple[float, ...]  # one of these, if nothing is said
    parameters: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)  # one of these each; the first is usual
    needs: frozenset[str] = frozenset()  # of the cluster: "disks", "faketime"; else nobody runs it
    damages: bool = False  # what was synced: one broker at a time, which the nemesis names in the parameter `broker`
    scars: bool = False  # and it may lie undiscovered: that broker is the only one to be damaged from then on
    forgets: bool = False  # the brokers that its words name may say that they lost something, and be right
    strikes_on: bool = False  # again and again while it lasts: a cause for elections all the while

    def __post_init__(self) -> None:
        assert self.group in GROUPS, self.group
        assert self.damages or not self.scars, "scars are damage"
        assert not self.damages or "broker" in self.parameters, "whoever damages has to be told whom"


def whose(kind: str) -> str:
    """A name for what one fault cuts or slows down, that no other one has."""
    return f"{kind} {next(_numbers)}"
