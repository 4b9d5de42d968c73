"""A mutant: the product without one of its rules, by patches that last as long as a `with` block.

A mutant of one rule is the function that takes the rule's place, under `@mutant` and `@replaces(channels.sought)`. Any
other mutant is a function of Patches. Both name a rule by reference: mypy finds a rule that was renamed or removed, and
with `@replaces` a rule whose signature has changed. Rules that mutants replace are public: tests/chaos/test_mutants.py
holds that.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Concatenate, ParamSpec, TypeVar

from tinymq.base.errors import InvalidRequest

P = ParamSpec("P")
R = TypeVar("R")

ABSENT = object()
PRODUCT = "tinymq"


class Patches:
    """The attributes of the product that a mutant has replaced, and their values from before."""

    def __init__(self) -> None:
        self._before: list[tuple[object, str, object]] = []  # in the order in which they were replaced
        self._replacements: list[tuple[object, object]] = []  # (replacement, original) of module-level functions

    def replace(self, rule: Any, replacement: object, *, within: Sequence[ModuleType] = ()) -> None:
        """Replace `rule`, a public function, method or property of the product.

        A method is replaced in the class that defines it. A function is replaced in every module of the product that
        has imported it, or only in the modules of `within`.
        """
        owner, name = _home(rule)
        _adopt(replacement, rule)
        if not isinstance(owner, ModuleType):
            assert not within, f"{rule} is a method: it has only one place"
            self.set(owner, name, replacement)
            return
        places = [(module, key) for module in within or _product_modules() for key in _names_of(module, rule)]
        assert places, f"none of {[module.__name__ for module in within]} has imported {rule}"
        for module, key in places:
            self.set(module, key, replacement)
        self._replacements.append((replacement, rule))

    def set(self, owner: Any, name: str, value: object) -> None:
        """Set the attribute `name` of `owner`, such as a constant of a module, which has to exist."""
        assert hasattr(owner, name), f"{owner} has no {name}: the code has moved on, and the mutant has not"
        self._before.append((owner, name, vars(owner).get(name, ABSENT)))
        setattr(owner, name, value)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], object]) -> None:
        """Replace the function `name` of `owner` by `make(the function)`."""
        self.set(owner, name, make(getattr(owner, name)))

    @property
    def replaced(self) -> list[tuple[object, str, object]]:
        """Return (owner, name, value from before) of every attribute that was replaced."""
        return list(self._before)

    def undo(self) -> None:
        """Give every attribute its value from before, the last one first."""
        while self._before:
            owner, name, value = self._before.pop()
            if value is ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        # A module that was imported meanwhile has the replacement under the name of the rule.
        for replacement, original in self._replacements:
            for module in _product_modules():
                for key in _names_of(module, replacement):
                    setattr(module, key, original)
        self._replacements.clear()


def _function(rule: Any) -> Any:
    return rule.fget if isinstance(rule, property) else getattr(rule, "__func__", rule)


def _adopt(replacement: Any, rule: Any) -> None:
    """Give a mutant's function the place of `rule`, so that a second mutant of the rule finds the place, too."""
    function, replaced = _function(replacement), _function(rule)
    if function.__module__.partition(".")[0] != PRODUCT:
        function.__module__, function.__qualname__ = replaced.__module__, replaced.__qualname__


def _home(rule: Any) -> tuple[object, str]:
    """Return the module or class that defines `rule`, and the name of `rule` there."""
    function = _function(rule)
    *path, name = function.__qualname__.split(".")
    owner: object = sys.modules[function.__module__]
    for part in path:
        owner = getattr(owner, part)
    assert hasattr(owner, name), f"{owner} has no {name}"
    return owner, name


def _product_modules() -> list[ModuleType]:
    return [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == PRODUCT]


def _names_of(module: ModuleType, value: object) -> list[str]:
    return [name for name, each in vars(module).items() if each is value]


Patch = Callable[[Patches], None]


@dataclass(frozen=True, slots=True)
class Focus:
    """Where a mutant shows soonest.

    A focus narrows what happens, never what is checked. An empty field leaves everything in.
    """

    faults: tuple[str, ...] = ()  # names in the simulator's table
    workloads: tuple[str, ...] = ()
    segment_bytes: int | None = None
    latency_s: float | None = None  # of every link, all the time
    seconds: float = 12.0  # of faults
    nodes: int = 3
    pace: float | None = 1.0  # as in a plan
    threaded: float | None = None  # as in a plan


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutant of the product: one rule is missing."""

    name: str
    rule: str  # what the product does and the mutant does not; with the number of a hazard (docs/raft.md), if it is one
    patch: Patch = field(repr=False)
    focus: Focus = field(default_factory=Focus)
    needs_simulator: str = ""  # why only the simulator can run it; "": the process of a broker can, too
    # a test of the suite that fails with the mutant, if no simulated run can show it; "": the simulator shows it
    test: str = ""

    @contextmanager
    def applied(self) -> Iterator[Patches]:
        """Turn the product into the mutant while the block runs.

        Start brokers inside: objects from before keep the rule.
        """
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
    """Enter a patch into MUTANTS, under its own name."""

    def enter(patch: Patch) -> Patch:
        name = patch.__name__.replace("_", "-")
        assert name not in MUTANTS, name
        MUTANTS[name] = Mutant(name, rule, patch, focus or Focus(), needs_simulator, test)
        return patch

    return enter


def replaces(rule: Callable[P, R]) -> Callable[[Callable[Concatenate[Any, P], R]], Patch]:
    """Turn a function into the patch that puts it in the place of `rule`.

    The function gets the rule as its first argument, and then the arguments of the rule. A class method is called
    without its class.
    """

    def patch_of(function: Callable[Concatenate[Any, P], R]) -> Patch:
        @functools.wraps(function)
        def patch(patches: Patches) -> None:
            present: Any = getattr(*_home(rule))  # another mutant may have replaced the rule already
            real = present.fget if isinstance(present, property) else present

            def replacement(*args: P.args, **kwargs: P.kwargs) -> R:
                return function(real, *args, **kwargs)

            if isinstance(present, property):
                patches.replace(present, property(replacement))
            elif inspect.ismethod(present):  # bound to its class
                patches.replace(present, classmethod(lambda cls, *args, **kwargs: replacement(*args, **kwargs)))
            else:
                patches.replace(present, replacement)

        return patch

    return patch_of


def find(name: str) -> Mutant:
    """Return the mutant of that name. Raises InvalidRequest, which names the nearest one."""
    if name not in MUTANTS:
        near = difflib.get_close_matches(name, MUTANTS, n=3, cutoff=0.4)
        nearest = f"the nearest: {', '.join(near)}; " if near else ""
        raise InvalidRequest(f"no mutant is called {name}; {nearest}all of them: make mutants MUTANT=--list", hint="")
    return MUTANTS[name]
