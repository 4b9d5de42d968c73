"""Whom a fault befalls, if its parameters do not say so."""

from __future__ import annotations

import random

from tinymq_chaos.real.faults.kind import ANYBODY, Parameters, Stage
from tinymq_chaos.real.net import CLIENTS, Direction

LEADER = "leader"
ANYONE = "anyone"


def up(stage: Stage) -> list[int]:
    """Who has a process that is not paused."""
    return [n for n in stage.brokers if n not in stage.paused and stage.running(n)]


def one(stage: Stage, rng: random.Random, how: Parameters) -> int | None:
    """A broker that is up: the one of parameter `broker`; or who leads something, where `who` says so; or any."""
    named = int(how.get("broker", ANYBODY))
    if named:
        return named if named in up(stage) else None
    if how.get("who") == LEADER:
        return leader(stage, rng)
    standing = up(stage)
    return rng.choice(standing) if standing else None


def leader(stage: Stage, rng: random.Random) -> int | None:
    """Of some partition that is written to, if its leader is up."""
    topics = list(stage.topics)
    rng.shuffle(topics)
    standing = up(stage)
    return next((n for topic, number in topics if (n := stage.leader(topic, number)) in standing), None)


def majority(stage: Stage) -> int:
    return len(stage.brokers) // 2 + 1


def sides(stage: Stage, rng: random.Random) -> tuple[list[int], list[int]]:
    """A minority of brokers, and the others."""
    ids = rng.sample(stage.brokers, len(stage.brokers))
    few = rng.randint(1, (len(ids) - 1) // 2)
    return sorted(ids[:few]), sorted(ids[few:])


def both_ways(some: list[int], others: list[int]) -> list[Direction]:
    return [pair for a in some for b in others if a != b for pair in ((a, b), (b, a))]


def everywhere(stage: Stage, where: str) -> list[Direction]:
    """Directions of the network's part `where`: "brokers", "clients" (between them and brokers) or "all"."""
    ids = list(stage.brokers)
    among = [(a, b) for a in ids for b in ids if a != b] if where in ("brokers", "all") else []
    return among + (both_ways([CLIENTS], ids) if where in ("clients", "all") else [])
