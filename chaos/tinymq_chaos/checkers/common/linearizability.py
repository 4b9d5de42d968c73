"""Find an order of operations, each within its own time, that a sequential model explains.

The algorithm is the search of Wing and Gong (1993) with Lowe's (2017) cache of visited configurations. It takes an
operation from the front of the history, as early as its answer allows, and puts it back when nothing fits behind it. It
is exponential in how many operations overlap, not in how many there are. It knows nothing of what the operations mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
P = TypeVar("P")  # the content of an operation

STEPS_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Operation(Generic[P]):
    """An operation that took effect between two moments.

    If `ended_s` is infinite, it took effect at any later time, or never.
    """

    what: P
    invoked_s: float
    ended_s: float = math.inf


@dataclass(frozen=True, slots=True)
class OrderVerdict(Generic[P]):
    """`stuck` is the operation that fits nowhere in the longest order found, and `before` is how many fit.

    Undecided when the search grew too long.
    """

    linearizable: bool
    decided: bool = True
    stuck: Operation[P] | None = None
    before: int = 0


class _Event(Generic[P]):
    """A call or a return, in a list from which the search removes calls with their returns, and puts them back."""

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
    """Check the operations. `step` returns the state after an operation, or None if its answer is impossible in that
    state.

    The order may leave out an operation that never ended.
    """
    head: _Event[P] = _listed(operations)
    state, done = initial, 0  # bits of the operations in the order
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
    """Return all calls and returns in order of time; at equal times calls come first, so that they may overlap."""
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
