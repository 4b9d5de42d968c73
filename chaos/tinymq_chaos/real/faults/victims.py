"""Chooses the broker that a fault strikes, if the fault's parameters do not name one."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from tinymq_chaos.faults import ANYBODY, LEADER
from tinymq_chaos.real.faults.kind import Doing, Parameters, Stage
from tinymq_chaos.real.net.network import CLIENTS, Direction

TRIES = 10  # attempts to find a leader that still leads when the fault strikes
_LED = re.compile(r"broker (\d+).*, leader of (.+)/(\d+)$")


@dataclass(frozen=True, slots=True)
class StruckBroker:
    """A broker that a fault struck, and a partition that it led at that time."""

    broker: int
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"leader of {self.topic}/{self.partition}"

    @classmethod
    def of(cls, words: str) -> StruckBroker | None:
        """Parse the partition that a fault's description names, as `strike` writes it. None if it names no
        partition."""
        found = _LED.search(words)
        return cls(int(found[1]), found[2], int(found[3])) if found else None


def live_brokers(stage: Stage) -> list[int]:
    """Return the brokers whose processes run and are not paused."""
    return [n for n in stage.brokers if n not in stage.paused and stage.running(n)]


def choose_broker(stage: Stage, rng: random.Random, how: Parameters) -> int | None:
    """Return a broker that is up: the one that parameter `broker` names, or a leader if parameter `who` asks for one,
    or any."""
    led = _asked_for_leader(stage, rng, how)
    return led.broker if led is not None else _any(stage, rng, how)


def _asked_for_leader(stage: Stage, rng: random.Random, how: Parameters) -> StruckBroker | None:
    named = int(how.get("broker", ANYBODY))
    return leader(stage, rng) if not named and how.get("who") == LEADER else None


def _any(stage: Stage, rng: random.Random, how: Parameters) -> int | None:
    named, standing = int(how.get("broker", ANYBODY)), live_brokers(stage)
    if named:
        return named if named in standing else None
    if how.get("who") == LEADER or not standing:
        return None
    return rng.choice(standing)


def leader(stage: Stage, rng: random.Random) -> StruckBroker | None:
    """Draw a partition that is written to, and whose leader is up."""
    topics = list(stage.topics)
    rng.shuffle(topics)
    standing = live_brokers(stage)
    found = ((stage.leader(topic, number), topic, number) for topic, number in topics)
    return next((StruckBroker(n, topic, number) for n, topic, number in found if n in standing), None)


def strike(stage: Stage, rng: random.Random, how: Parameters, fault: Callable[[int], Doing]) -> Doing:
    """Do `fault` to one broker. If parameter `who` asks for a leader, the broker leads a partition when it is struck.

    A leadership can move between the question for the leader and the fault. So the other brokers are asked once more
    after the fault has begun, before they can have missed the leader. If they name another leader by then, the fault is
    undone and another leader is chosen. The description of the fault ends with the partition, which `StruckBroker.of`
    parses.
    """
    for _ in range(TRIES):
        led = _asked_for_leader(stage, rng, how)
        broker = led.broker if led is not None else _any(stage, rng, how)
        if broker is None:
            break
        doing = fault(broker)
        words = next(doing)
        if words is None or led is None:
            yield words
            return (yield from doing)
        if stage.leader(led.topic, led.partition) in (None, led.broker):  # None: no broker has replaced it yet
            yield f"{words}, {led}"
            return (yield from doing)
        next(doing, None)
    yield None
    return None


def majority(stage: Stage) -> int:
    return len(stage.brokers) // 2 + 1


def sides(stage: Stage, rng: random.Random) -> tuple[list[int], list[int]]:
    """Return a minority of the brokers, and the others."""
    ids = rng.sample(stage.brokers, len(stage.brokers))
    few = rng.randint(1, (len(ids) - 1) // 2)
    return sorted(ids[:few]), sorted(ids[few:])


def both_ways(some: list[int], others: list[int]) -> list[Direction]:
    return [pair for a in some for b in others if a != b for pair in ((a, b), (b, a))]


def everywhere(stage: Stage, where: str) -> list[Direction]:
    """Return the directions of the network's part `where`: "brokers", "clients" (between them and brokers) or "all"."""
    ids = list(stage.brokers)
    among = [(a, b) for a in ids for b in ids if a != b] if where in ("brokers", "all") else []
    return among + (both_ways([CLIENTS], ids) if where in ("clients", "all") else [])
