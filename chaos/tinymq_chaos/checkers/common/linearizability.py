"""Is there an order of these operations, each within its own time, that a sequential model explains?

The search of Wing and Gong (1993) with Lowe's (2017) memory of places that were tried: an operation is taken from
the front of the history, as early as its answer allows, and put back when nothing fits behind it. Exponential in how
many operations overlap, not in how many there are. Knows nothing of what the operations mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
P = TypeVar("P")  # what an operation is

STEPS_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Operation(Generic[P]):
    """Something that happened between two moments; never, or at any time since, if `ended_s` is infinite."""

    what: P
    invoked_s: float
    ended_s: float = math.inf


@dataclass(frozen=True, slots=True)
class OrderVerdict(Generic[P]):
    """`stuck` is the operation that fits nowhere in the longest order found, `before` how many fit. Undecided when
    the search grew too long."""

    linearizable: bool
    decided: bool = True
    stuck: Operation[P] | None = None
    before: int = 0


class _Event(Generic[P]):
    """A call or a return, in a list from which calls are lifted with their returns, and put back."""

    __slots__ = ("before", "call", "next", "number", "operation", "returns")

    def __init__(self, number: int, operation: Operation[P] | None, call: _Event[P] | None = None) -> None:
        self.number = number
        self.operation = operation
        self.call = call  # of a return
        self.returns: _Event[P] | None = None  # of a call that returned
        self.before: _Event[P] = self
        self.next: _Event[P] | None = None

    def lift(self) -> None:
        for event in (self, self.returns):
            if event is not None:
                event.before.next = event.next
                if event.next is not None:
                    event.next.before = event.before

    def put_back(self) -> None:
        for event in (self.returns, self):
            if event is not None:
                event.before.next = event
                if event.next is not None:
                    event.next.before = event


def check_linearizable(
    operations: Sequence[Operation[P]], initial: S, step: Callable[[S, P], S | None], steps_max: int = STEPS_MAX
) -> OrderVerdict[P]:
    """`step` gives the state after an operation, or None when the operation's answer is impossible in that state.

    An operation that never ended may be left out.
    """
    head: _Event[P] = _listed(operations)
    state, done = initial, 0  # bits of what is in the order
    order: list[tuple[_Event[P], S]] = []
    tried: set[tuple[int, S]] = set()
    best, stuck = 0, None
    event = head.next
    for _ in range(steps_max):
        if event is None:
            return OrderVerdict(True, before=len(order))
        if event.call is None:
            assert event.operation is not None
            after = step(state, event.operation.what)
            place = (done | 1 << event.number, after)
            if after is not None and place not in tried:
                tried.add(place)  # type: ignore[arg-type]
                order.append((event, state))
                state, done = after, place[0]
                event.lift()
                event = head.next
            else:
                event = event.next
            continue
        if stuck is None or len(order) > best:
            best, stuck = len(order), event.call.operation
        if not order:
            return OrderVerdict(False, stuck=stuck, before=best)
        last, state = order.pop()
        done ^= 1 << last.number
        last.put_back()
        event = last.next
    return OrderVerdict(True, decided=False, before=best)


def _listed(operations: Sequence[Operation[P]]) -> _Event[P]:
    """All calls and returns in order of time; at one moment calls come first, so that they may overlap."""
    head: _Event[P] = _Event(-1, None)
    moments: list[tuple[float, int, int, _Event[P]]] = []
    for number, operation in enumerate(operations):
        call = _Event(number, operation)
        moments.append((operation.invoked_s, 0, number, call))
        if operation.ended_s < math.inf:
            call.returns = _Event(number, None, call)
            moments.append((operation.ended_s, 1, number, call.returns))
    moments.sort(key=lambda moment: moment[:3])
    before = head
    for *_, event in moments:
        before.next, event.before = event, before
        before = event
    return head
