"""Choose the partition of a record: by its key (tinymq/base/partitioning.py), or in turns. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tinymq.base.partitioning import keyed
from tinymq.client.common.config import Partitioner

__all__ = ["RoundRobin", "keyed", "named", "pick_sticky"]


class RoundRobin:
    """Gives records to the partitions in turn, whatever their keys. Called under the batcher's lock."""

    def __init__(self) -> None:
        self._next = -1

    def __call__(self, key: bytes | None, partitions: int) -> int:
        self._next = (self._next + 1) % partitions
        return self._next


def pick_sticky(last: int | None, usable: Sequence[int], rng: random.Random) -> int:
    """Choose the partition of the next batch without keys: any usable one, and not `last` if there is another."""
    others = [p for p in usable if p != last]
    return rng.choice(others or list(usable))


def named(name: str) -> Partitioner | None:
    """Return the callable of a partitioner's name; None for "keyed" and "sticky", which the batcher does itself."""
    return RoundRobin() if name == "round_robin" else None
