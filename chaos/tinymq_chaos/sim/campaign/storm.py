"""The schedule of a run's faults: the seed chooses kinds, alone or in pairs, one episode after another. Then calm."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence

from tinymq_chaos.sim.faults import DAMAGE, FAULTS, SimFault
from tinymq_chaos.sim.world.world import World

GAP_S = 0.7  # on average, between two episodes
TRIM_SHARE = 0.3  # of all runs remove heads of logs as well: a replica that returns may then need a snapshot
WRONG_START = "wrong_start"
ALONE, PAIR, ANY = 4, 5, 1  # how often a run has faults of one kind, of two kinds side by side, of all kinds


class Storm:
    """The faults of one run."""

    def __init__(self, world: World, kinds: Sequence[str] | None, spare: Collection[str] = ()) -> None:
        """Choose the faults: those of `kinds`, or if it is None those that the seed draws, without the ones to
        `spare`."""
        self._world = world
        self._rng = random.Random(f"{world.seed}/storm")
        self._under_way: dict[Iterator[str | None], str] = {}
        self._kinds = list(kinds) if kinds is not None else self._choose(spare)
        world.say(f"faults: {', '.join(self._kinds) or 'none'}")

    def _choose(self, spare: Collection[str]) -> list[str]:
        rng, names = self._rng, [name for name, fault in FAULTS.items() if fault.drawn.weight and name not in spare]
        many = rng.choices((1, 2, len(names)), (ALONE, PAIR, ANY))[0]
        chosen: list[str] = []
        weights = [FAULTS[name].drawn.weight for name in names]
        while len(chosen) < many:
            name = rng.choices(names, weights)[0]
            if name not in chosen:
                chosen.append(name)
        if DAMAGE & {*chosen} and WRONG_START in chosen:  # the load of this fault has one replica of each record
            chosen.remove(WRONG_START)
        if rng.random() < TRIM_SHARE and "trim" not in chosen:
            chosen.append("trim")
        return chosen

    @property
    def starts_wrong(self) -> bool:
        """Return whether a broker will start with a wrong clock. Only topics with one replica show that."""
        return WRONG_START in self._kinds

    async def rage(self, seconds: float) -> None:
        """Do faults for `seconds`, then end all of them and start every broker that is down."""
        world, rng = self._world, self._rng
        end_s = world.loop.time() + seconds
        while self._kinds and world.loop.time() < end_s:
            await self._episode(end_s)
            gap_s = min(rng.expovariate(1 / GAP_S), max(0.0, end_s - world.loop.time()))
            await world.clock.sleep(gap_s)
        await world.clock.sleep(max(0.0, end_s - world.loop.time()))
        for fault in list(self._under_way):
            self._end(fault)
        for broker in world.brokers.values():
            broker.wanted = True
            broker.revive()

    async def _episode(self, end_s: float) -> None:
        """Do one fault, or two that overlap."""
        world, rng = self._world, self._rng
        names = rng.sample(self._kinds, min(2, len(self._kinds)))
        begin_s, moments = world.loop.time(), []
        for at, name in enumerate(names):
            first_s = begin_s + (rng.uniform(0, 1.0) if at else 0.0)
            lasts_s = _lasts_s(FAULTS[name], rng)
            moments.append((first_s, name, lasts_s))
        ends: list[tuple[float, Iterator[str | None]]] = []
        for first_s, name, lasts_s in moments:
            await self._sleep_until(min(first_s, end_s))
            fault = self._begin(name)
            if fault is not None:
                ends.append((world.loop.time() + lasts_s, fault))
        for last_s, fault in sorted(ends, key=lambda end: end[0]):
            await self._sleep_until(min(last_s, end_s))
            self._end(fault)

    async def _sleep_until(self, at_s: float) -> None:
        await self._world.clock.sleep(max(0.0, at_s - self._world.loop.time()))

    def _begin(self, name: str) -> Iterator[str | None] | None:
        fault = FAULTS[name].begin(self._world, self._rng)
        description = next(fault)
        if description is None:
            return None
        self._world.faults[name] += 1
        self._world.changed(f"FAULT {name}: {description}")
        self._under_way[fault] = name
        return fault

    def _end(self, fault: Iterator[str | None]) -> None:
        next(fault, None)
        self._world.changed(f"FAULT {self._under_way.pop(fault)} is over")


def _lasts_s(fault: SimFault, rng: random.Random) -> float:
    lasts_s = fault.drawn.lasts_s
    return rng.uniform(*lasts_s) if len(lasts_s) == 2 else rng.choice(lasts_s)
