"""Choose the brokers that a fault strikes."""

from __future__ import annotations

import random

from tinymq_chaos.sim.world.brokers import SimBroker
from tinymq_chaos.sim.world.world import World

LEADER_SHARE = 0.4  # how often the fault takes a broker that leads a group, apart from chance


def anyone(world: World, rng: random.Random) -> SimBroker:
    return rng.choice(list(world.brokers.values()))


def running(world: World, rng: random.Random) -> SimBroker | None:
    """Return a broker whose process runs and is not paused; a leader rather than another."""
    up = [b for b in world.brokers.values() if b.up and not b.process.paused]
    leading = [b for b in up if any(g.is_leader for g in b.groups())]
    if leading and rng.random() < LEADER_SHARE:
        up = leading
    return rng.choice(up) if up else None


def sides(world: World, rng: random.Random) -> tuple[list[int], list[int]]:
    """Return a minority of the brokers, and the others. Some clients are on one side only."""
    ids = list(world.brokers)
    rng.shuffle(ids)
    cut = rng.randint(1, len(ids) // 2)
    few, many = sorted(ids[:cut]), sorted(ids[cut:])
    for client in world.clients.clients:
        if rng.random() < 0.3:
            rng.choice((few, many)).append(client)
    return few, many


def directions(world: World, rng: random.Random) -> list[tuple[int, int]]:
    """Return directions between brokers: all of them, or two."""
    every = [(a, b) for a in world.brokers for b in world.brokers if a != b]
    return every if rng.random() < 0.4 else rng.sample(every, 2)


def in_words(some: list[tuple[int, int]]) -> str:
    return ", ".join(f"{a} -> {b}" for a, b in some) if len(some) < 3 else "everywhere"


def both_ways(some: list[int], others: list[int]) -> list[tuple[int, int]]:
    return [pair for a in some for b in others if a != b for pair in ((a, b), (b, a))]
