"""What each direction between two places of a virtual network is like: cut, slow, lossy. Decides nothing else.

A lost packet costs a retransmission, as TCP does it, and what was sent behind it waits. A dropped or doubled *message*
is what TCP never does, and a careful receiver survives.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from tinymq.base.clock import Clock

RETRANSMIT_S = 0.2  # the first time; doubles
RETRANSMITS_MAX = 6
STALE_S = 4.0

Direction = tuple[int, int]
"""(from, to): broker ids, or other numbers of places."""


@dataclass(slots=True)
class LinkConditions:
    """Of one direction."""

    seconds: float = 0.0
    jitter_s: float = 0.0  # up to this much more, evenly
    loss: float = 0.0  # of packets: each is sent again, later
    drop: float = 0.0  # of control messages, for good
    duplicate: float = 0.0  # of control messages
    stale: float = 0.0  # of what groups say, but entries: each arrives again, up to STALE_S later


class NetworkConditions:
    """All directions. What is not set takes no time and is not disturbed."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self.clock = clock
        self._rng = rng
        self._cuts: set[Direction] = set()
        self._conditions: dict[Direction, LinkConditions] = {}

    def cut(self, directions: Iterable[Direction]) -> None:
        self._cuts.update(directions)

    def heal(self, directions: Iterable[Direction] | None = None) -> None:
        """End these cuts; None: all."""
        self._cuts.difference_update(set(self._cuts) if directions is None else directions)

    def is_cut(self, direction: Direction) -> bool:
        return direction in self._cuts

    def of(self, direction: Direction) -> LinkConditions:
        """To be changed at will."""
        known = self._conditions.get(direction)
        if known is None:
            known = self._conditions[direction] = LinkConditions()
        return known

    def transit_s(self, direction: Direction) -> float:
        """How long one message is on its way."""
        known = self._conditions.get(direction)
        if known is None:
            return 0.0
        transit_s = known.seconds + (self._rng.uniform(0, known.jitter_s) if known.jitter_s else 0.0)
        if known.loss:
            again_s = RETRANSMIT_S
            for _ in range(RETRANSMITS_MAX):
                if self._rng.random() >= known.loss:
                    break
                transit_s += again_s
                again_s *= 2
        return transit_s

    def round_trip_s(self, a: int, b: int) -> float:
        return self.transit_s((a, b)) + self.transit_s((b, a))

    def copies(self, direction: Direction) -> int:
        """How often one control message arrives: 0, 1 or 2."""
        known = self._conditions.get(direction)
        if known is None or not (known.drop or known.duplicate):
            return 1
        if self._rng.random() < known.drop:
            return 0
        return 2 if self._rng.random() < known.duplicate else 1

    def again_after_s(self, direction: Direction) -> float | None:
        """When a message that has just arrived does so once more; None: never."""
        known = self._conditions.get(direction)
        if known is None or not known.stale or self._rng.random() >= known.stale:
            return None
        return self._rng.uniform(0, STALE_S)
