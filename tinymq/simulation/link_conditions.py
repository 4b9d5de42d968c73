"""The conditions of the links of a virtual network: cut, slow, lossy. No other decision is made here.

A lost packet costs a retransmission, as with TCP, and delays everything sent behind it. TCP never drops or repeats a
whole *message*; a network here can, and a careful receiver survives it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tinymq.base.clock import Clock

RETRANSMIT_S = 0.2  # before the first retransmission; it doubles each time
RETRANSMITS_MAX = 6
STALE_S = 4.0  # a stale message arrives once more, at most this much later

Direction = tuple[int, int]
"""(from, to): broker ids, or other numbers of places."""


@dataclass(slots=True)
class LinkConditions:
    """The conditions of one direction."""

    seconds: float = 0.0  # in transit
    jitter_s: float = 0.0  # up to this much more, evenly distributed
    loss: float = 0.0  # share of packets that are sent again, later
    drop: float = 0.0  # share of control messages that never arrive
    duplicate: float = 0.0  # share of control messages that arrive twice
    stale: float = 0.0  # share of the groups' messages, other than entries, that arrive again within STALE_S


class NetworkConditions:
    """The conditions of all directions. A direction without any takes no time and is not disturbed."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self.clock = clock
        self._rng = rng
        self._cuts: set[Direction] = set()
        self._parts: Counter[tuple[Direction, int]] = Counter()  # connections of one kind that are cut, by their number
        self._conditions: dict[Direction, LinkConditions] = {}

    def cut(self, directions: Iterable[Direction]) -> None:
        self._cuts.update(directions)

    def heal(self, directions: Iterable[Direction] | None = None) -> None:
        """End the cuts of these directions; None: of all."""
        self._cuts.difference_update(set(self._cuts) if directions is None else directions)

    def is_cut(self, direction: Direction) -> bool:
        return direction in self._cuts

    def cut_part(self, direction: Direction, kind: int) -> None:
        """Cut the connections of one kind, such as a Channel of the brokers, until as many `heal_part`."""
        self._parts[direction, kind] += 1

    def heal_part(self, direction: Direction, kind: int) -> None:
        self._parts[direction, kind] -= 1

    def is_part_cut(self, direction: Direction, kind: int) -> bool:
        return self._parts[direction, kind] > 0 if self._parts else False

    def is_impaired(self, direction: Direction) -> bool:
        """Whether nothing passes in this direction, or not all kinds of connections."""
        return self.is_cut(direction) or any(count and way == direction for (way, _), count in self._parts.items())

    def of(self, direction: Direction) -> LinkConditions:
        """The conditions of a direction, which the caller may change."""
        conditions = self._conditions.get(direction)
        if conditions is None:
            conditions = self._conditions[direction] = LinkConditions()
        return conditions

    def transit_s(self, direction: Direction) -> float:
        """Draw the time that one message is in transit."""
        conditions = self._conditions.get(direction)
        if conditions is None:
            return 0.0
        transit_s = conditions.seconds + (self._rng.uniform(0, conditions.jitter_s) if conditions.jitter_s else 0.0)
        if conditions.loss:
            again_s = RETRANSMIT_S
            for _ in range(RETRANSMITS_MAX):
                if self._rng.random() >= conditions.loss:
                    break
                transit_s += again_s
                again_s *= 2
        return transit_s

    def round_trip_s(self, a: int, b: int) -> float:
        return self.transit_s((a, b)) + self.transit_s((b, a))

    def copies(self, direction: Direction) -> int:
        """Draw how often one control message arrives: 0, 1 or 2 times."""
        conditions = self._conditions.get(direction)
        if conditions is None or not (conditions.drop or conditions.duplicate):
            return 1
        if self._rng.random() < conditions.drop:
            return 0
        return 2 if self._rng.random() < conditions.duplicate else 1

    def again_after_s(self, direction: Direction) -> float | None:
        """Draw after how many seconds a message that has just arrived does so once more; None: never."""
        conditions = self._conditions.get(direction)
        if conditions is None or not conditions.stale or self._rng.random() >= conditions.stale:
            return None
        return self._rng.uniform(0, STALE_S)
