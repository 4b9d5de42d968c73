"""How far a group is behind: against a set of all offsets."""

from __future__ import annotations

import random

from tinymq.broker.state.queue_group import Settled


def test_settled_offsets_from_a_position_on() -> None:
    rng = random.Random(1)
    for _ in range(200):
        settled, known = Settled(), set()
        for _ in range(rng.randrange(20)):
            start = rng.randrange(100)
            end = start + rng.randrange(1, 9)
            settled.add(start, end)
            known |= set(range(start, end))
        for position in range(0, 110, 7):
            assert settled.count_from(position) == sum(offset >= position for offset in known)
