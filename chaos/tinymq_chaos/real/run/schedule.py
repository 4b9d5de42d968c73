"""The schedule of faults: every one once, then random pairs, all from a seed. Then calm.

The seed determines the plan and not the run: on real clocks every run differs.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain

from tinymq_chaos.real.faults import RealFault, Value
from tinymq_chaos.real.faults.victims import StruckBroker
from tinymq_chaos.real.processes.threads import in_thread, to_its_end
from tinymq_chaos.real.run.nemesis import ActiveFault, Nemesis

GAP_S = 1.5  # on average, between two episodes
GAP_S_MAX = 4.0
OVERLAP_S = 1.0  # the second fault of a pair begins at most so long after the first
TRIES = 4  # attempts at a fault that cannot happen now
WELL_S = 20.0  # a damaging fault waits so long for health; otherwise it is tried later
WELL_SHARE = 0.25  # share of the whole time for which the first of a kind waits, at most: short runs have faults, too
STRIKE_S = 2.0
POLL_S = 0.2
REPLACED_S_MAX = 60.0  # how long a fault may exceed its time until another broker leads


@dataclass(frozen=True, slots=True)
class Act:
    """One fault of the plan. Times are in seconds."""

    kind: str
    parameters: Mapping[str, Value]
    after_s: float  # from the beginning of the episode
    lasts_s: float
    until_replaced: bool = False  # continue until another broker leads the partition of the struck leader

    def __str__(self) -> str:
        parameters = " ".join(f"{name}={value}" for name, value in self.parameters.items() if value)
        return f"{self.kind} for {self.lasts_s:g} s{f' ({parameters})' if parameters else ''}"


@dataclass(frozen=True, slots=True)
class Episode:
    """Faults that overlap, and then a gap without faults."""

    acts: tuple[Act, ...]
    gap_s: float
    well: bool = False  # it begins when all is well, so its effects are its own


def plan(seed: int, kinds: Mapping[str, RealFault]) -> Iterator[Episode]:
    """Yield every fault once with its usual parameters, in the order of the table; then pairs, for ever."""
    rng = random.Random(f"{seed}/schedule")
    for name, kind in kinds.items():
        usual = {parameter: values[0] for parameter, values in kind.real.parameters.items()}
        yield Episode((Act(name, usual, 0.0, kind.real.lasts_s[0]),), _gap_s(rng), well=True)
    names = list(kinds)
    while names:
        pair = rng.sample(names, min(2, len(names)))
        if sum(kinds[name].real.damages for name in pair) < 2:  # one damaged disk at a time
            pair.sort(key=lambda name: not kinds[name].real.damages)  # a damaging fault begins when all others are well
            yield Episode(tuple(_drawn(rng, name, kinds[name], at) for at, name in enumerate(pair)), _gap_s(rng))
        elif len(names) == 2:
            yield Episode((_drawn(rng, pair[0], kinds[pair[0]], 0),), _gap_s(rng))


def _drawn(rng: random.Random, name: str, kind: RealFault, at: int) -> Act:
    parameters = {parameter: rng.choice(values) for parameter, values in kind.real.parameters.items()}
    return Act(name, parameters, rng.uniform(0.0, OVERLAP_S) if at else 0.0, rng.choice(kind.real.lasts_s))


def _gap_s(rng: random.Random) -> float:
    return min(GAP_S_MAX, rng.expovariate(1 / GAP_S))


class ScheduleRunner:
    """Runs a plan on a loop, with the nemesis's blocking calls in threads.

    It waits for these calls even when it is cancelled: a fault that begins beside `end_all` would never end.
    """

    def __init__(self, nemesis: Nemesis, say: Callable[[str], None]) -> None:
        """`say` prints progress for people."""
        self._tried: dict[str, None] = {}
        self._nemesis = nemesis
        self._say = say
        self._later: deque[tuple[Act, int]] = deque()  # with the number of attempts

    @property
    def never(self) -> list[str]:
        """Return the faults that were tried and could not happen."""
        return [kind for kind in self._tried if not self._nemesis.happened[kind]]

    async def rage(self, episodes: Iterable[Episode], seconds: float) -> None:
        """Do faults for `seconds`, or until there are no more; then end all of them and start all brokers.

        A fault that could not happen is tried again after the next episode. A cancellation also ends all faults; a
        second one does not.
        """
        end_s = _now() + seconds
        striking = asyncio.create_task(self._strike())
        try:
            for episode in chain(episodes, self._what_is_left()):
                if episode.well:
                    await self._well(min(end_s, _now() + min(WELL_S, seconds * WELL_SHARE)))
                if _now() >= end_s:
                    break
                async with asyncio.TaskGroup() as group:
                    for act in episode.acts:
                        group.create_task(self._act(act, 1, end_s))
                if self._later and _now() < end_s:
                    act, tried = self._later.popleft()
                    await self._act(act, tried + 1, end_s)
                await _sleep_until(min(end_s, _now() + episode.gap_s))
        finally:
            striking.cancel()
            await to_its_end(self._nemesis.end_all)

    def _what_is_left(self) -> Iterator[Episode]:
        while self._later:
            yield Episode((), GAP_S)

    async def _act(self, act: Act, tried: int, end_s: float) -> None:
        await _sleep_until(min(end_s, _now() + act.after_s))
        if self._nemesis.kinds[act.kind].real.damages:
            await self._well(min(end_s, _now() + WELL_S))
        self._tried[act.kind] = None
        begin = partial(self._nemesis.begin, act.kind, **act.parameters)
        under_way: ActiveFault | None = await to_its_end(begin)
        if under_way is None:
            self._say(f"{act.kind} cannot happen now{', it is tried later' if tried < TRIES else ''}")
            if tried < TRIES:
                self._later.append((act, tried))
            return
        self._say(f"FAULT {act.kind}: {under_way.span.what}; for {act.lasts_s:g} s")
        await _sleep_until(min(end_s, _now() + act.lasts_s))
        if act.until_replaced:
            await self._replaced(under_way)
        await to_its_end(partial(self._nemesis.end, under_way))
        self._say(f"FAULT {act.kind} is over")

    async def _replaced(self, under_way: ActiveFault) -> None:
        """Wait until another broker leads the partition of the struck leader. Raises TimeoutError after
        REPLACED_S_MAX."""
        led = StruckBroker.of(under_way.span.what)
        assert led is not None, f"{under_way.span.what}: no leader was struck"
        async with asyncio.timeout(REPLACED_S_MAX):
            while await self._leads_now(led) in (None, led.broker):
                await asyncio.sleep(POLL_S)

    async def _leads_now(self, led: StruckBroker) -> int | None:
        return await in_thread(partial(self._nemesis.stage.leader, led.topic, led.partition))

    async def _well(self, until_s: float) -> None:
        while True:
            harm = self._nemesis.harm
            if not await in_thread(self._nemesis.stage.unhealthy):
                return self._nemesis.all_well(harm)
            if _now() >= until_s:
                return None
            await asyncio.sleep(POLL_S)

    async def _strike(self) -> None:
        while True:
            self._nemesis.strike()
            await asyncio.sleep(STRIKE_S)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _sleep_until(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - _now()))
