"""The faults of a run: a schedule that the seed draws beforehand, and the storm that carries it out. Then calm."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tinymq_chaos.sim.faults import FAULTS, SimFault
from tinymq_chaos.sim.world.world import World

OVERLAP_S = 1.0  # the second fault of an episode begins at most this much later


@dataclass(frozen=True, slots=True)
class Act:
    """One fault of the schedule. Times are virtual seconds since the storm began."""

    number: int
    kind: str
    begins_s: float
    ends_s: float


def schedule(seed: int, kinds: Sequence[str], gap_s: float, seconds: float) -> list[Act]:
    """Draw the faults of `seconds`: one episode of one or two faults after another, `gap_s` apart on average.

    A shorter storm has the same acts, as far as it goes. An act that is left out changes no other act.
    """
    rng, acts, begin_s = random.Random(f"{seed}/storm"), list[Act](), 0.0
    while kinds and begin_s < seconds:
        end_s = begin_s
        for place, kind in enumerate(rng.sample(list(kinds), min(2, len(kinds)))):
            at_s = begin_s + (rng.uniform(0, OVERLAP_S) if place else 0.0)
            until_s = at_s + _lasts_s(FAULTS[kind], rng)
            if at_s < seconds:
                acts.append(Act(len(acts), kind, at_s, min(until_s, seconds)))
            end_s = max(end_s, until_s)
        begin_s = end_s + rng.expovariate(1 / gap_s)
    return acts


class Storm:
    """Carries out the acts of one run."""

    def __init__(self, world: World, acts: Sequence[Act], only: Collection[int] | None = None) -> None:
        """`only`: the numbers of the acts that happen; None: all."""
        self._world = world
        self._acts = [act for act in acts if only is None or act.number in only]
        self._under_way: dict[Act, Iterator[str | None]] = {}
        self.begun: list[Act] = []  # the acts that could happen

    async def rage(self, seconds: float) -> None:
        """Do faults for `seconds`, then end all of them and start every broker that is down."""
        world = self._world
        begin_s = world.loop.time()
        moments = [(act.begins_s, act.number, self._begin, act) for act in self._acts]
        moments += [(act.ends_s, act.number, self._end, act) for act in self._acts]
        for at_s, _, happen, act in sorted(moments, key=lambda moment: moment[:2]):  # a fault begins before it ends
            await self._sleep_until(begin_s + at_s)
            happen(act)
        await self._sleep_until(begin_s + seconds)
        for act in list(self._under_way):
            self._end(act)
        for broker in world.brokers.values():
            broker.wanted = True
            broker.revive()

    async def _sleep_until(self, at_s: float) -> None:
        await self._world.clock.sleep(max(0.0, at_s - self._world.loop.time()))

    def _begin(self, act: Act) -> None:
        world = self._world
        fault = FAULTS[act.kind].begin(world, random.Random(f"{world.seed}/act/{act.number}"))
        description = next(fault)
        if description is None:
            return
        world.faults[act.kind] += 1
        world.changed(f"FAULT {act.kind}: {description}")
        self._under_way[act] = fault
        self.begun.append(act)

    def _end(self, act: Act) -> None:
        fault = self._under_way.pop(act, None)
        if fault is not None:
            next(fault, None)
            self._world.changed(f"FAULT {act.kind} is over")


def _lasts_s(fault: SimFault, rng: random.Random) -> float:
    lasts_s = fault.drawn.lasts_s
    return rng.uniform(*lasts_s) if len(lasts_s) == 2 else rng.choice(lasts_s)
