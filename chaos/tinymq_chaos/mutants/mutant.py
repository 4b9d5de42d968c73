"""A mutant: the product with one fix or rule taken out, by patches that last as long as a `with` block."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tinymq.base.errors import InvalidRequest

ABSENT = object()


class Patches:
    """Attributes replaced, and what they were."""

    def __init__(self) -> None:
        self._before: list[tuple[object, str, object]] = []

    def set(self, owner: Any, name: str, value: object) -> None:
        """Replace what `owner` itself has under `name`, or has from a base class. There has to be something."""
        assert hasattr(owner, name), f"{owner} has no {name}: the code has moved on, and the mutant has not"
        self._before.append((owner, name, vars(owner).get(name, ABSENT)))
        setattr(owner, name, value)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], object]) -> None:
        """Replace a function by `make(the function)`."""
        self.set(owner, name, make(getattr(owner, name)))

    @property
    def replaced(self) -> list[tuple[object, str, object]]:
        """(owner, name, what was there before)."""
        return list(self._before)

    def undo(self) -> None:
        while self._before:
            owner, name, value = self._before.pop()
            if value is ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


Patch = Callable[[Patches], None]


@dataclass(frozen=True, slots=True)
class Focus:
    """Where a mutant shows soonest. It narrows what happens, never what is checked. Empty: all there is."""

    faults: tuple[str, ...] = ()  # names in the simulator's table
    workloads: tuple[str, ...] = ()
    segment_bytes: int | None = None
    latency_s: float | None = None  # of every link, all the time
    seconds: float = 12.0  # of faults
    nodes: int = 3
    pace: float | None = 1.0  # as in a plan


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule taken out."""

    name: str
    rule: str  # what the code says, and the mutant does not do; with the hazard's number (docs/raft.md), if it is one
    patch: Patch = field(repr=False)
    focus: Focus = field(default_factory=Focus)
    needs_simulator: str = ""  # why; "": a broker in a process of its own can be it, too
    test: str = ""  # of the suite: it notices, where the simulator is the wrong place to; "": the simulator does

    @contextmanager
    def applied(self) -> Iterator[Patches]:
        """The product is the mutant. Whatever was made before may still be right: start brokers inside."""
        patches = Patches()
        try:
            self.patch(patches)
            yield patches
        finally:
            patches.undo()


MUTANTS: dict[str, Mutant] = {}


def mutant(
    rule: str, focus: Focus | None = None, needs_simulator: str = "", test: str = ""
) -> Callable[[Patch], Patch]:
    """Enters a patch into MUTANTS, under its own name."""

    def enter(patch: Patch) -> Patch:
        name = patch.__name__.replace("_", "-")
        assert name not in MUTANTS, name
        MUTANTS[name] = Mutant(name, rule, patch, focus or Focus(), needs_simulator, test)
        return patch

    return enter


def find(name: str) -> Mutant:
    """The mutant of that name. Raises InvalidRequest, which names the nearest."""
    if name not in MUTANTS:
        near = difflib.get_close_matches(name, MUTANTS, n=3, cutoff=0.4)
        nearest = f"the nearest: {', '.join(near)}; " if near else ""
        raise InvalidRequest(f"no mutant is called {name}; {nearest}all of them: make mutants MUTANT=--list", hint="")
    return MUTANTS[name]
