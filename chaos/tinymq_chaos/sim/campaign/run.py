"""One run: from a seed to its anomalies. The phases are those of README.md, in order."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tinymq.base.clock import Clock
from tinymq.base.errors import TinymqError
from tinymq.client import AsyncClient
from tinymq_chaos import checkers, workloads
from tinymq_chaos.history import History, Outcome
from tinymq_chaos.sim.campaign.draws import filled
from tinymq_chaos.sim.campaign.plan import SECONDS, Plan
from tinymq_chaos.sim.campaign.storm import Storm, schedule
from tinymq_chaos.sim.faults import DAMAGE
from tinymq_chaos.sim.observers.elections import electing
from tinymq_chaos.sim.observers.queue_groups import watched_queues
from tinymq_chaos.sim.observers.replicas import watched
from tinymq_chaos.sim.virtual.event_loop import VirtualLoop, run_virtually
from tinymq_chaos.sim.virtual.transcript import Transcript, digest
from tinymq_chaos.sim.world.sync_clients import user_threads
from tinymq_chaos.sim.world.world import World, WorldOptions
from tinymq_chaos.workloads.context import Caller, Workload

BEFORE_S = 2.0  # virtual, about: until the cluster is formed and the workloads run
QUIET_S = 6.0  # of it: after the last fault, with load, until workloads stop
END_S = 30.0  # limit for workloads to stop, and for brokers to recover
FROZEN_GROWTH_MAX = 100_000  # objects: what about ten results hold, 25 MB each
TOPIC_TRIES_MAX = 6  # of 10 virtual seconds


@dataclass(slots=True)
class Result:
    """The result of a run."""

    plan: Plan  # with everything that the seed drew
    anomalies: list[str] = field(default_factory=list)
    transcript: list[str] = field(default_factory=list)
    faults: Mapping[str, int] = field(default_factory=dict)
    begun: Sequence[int] = ()  # the numbers of the faults that could happen
    happened: Mapping[str, int] = field(default_factory=dict)  # how often faults that wait for a moment found it
    virtual_s: float = 0.0
    real_s: float = 0.0  # CPU time of this process
    steps: int = 0
    calls: Mapping[str, int] = field(default_factory=dict)  # by outcome
    records: int = 0  # acknowledged
    elections: int = 0
    healed_s: float = 0.0  # from the last fault's end until all was well
    digest: str = ""
    history: History | None = None
    queued_bytes_max: int = 0  # the most at one time on one connection between brokers

    def values(self) -> dict[str, Any]:
        """Return the values of a line of JSON. Real seconds are CPU time of the process that ran the plan."""
        return {
            "seed": self.plan.seed, "brokers": self.plan.nodes, "anomalies": self.anomalies,
            "faults": dict(self.faults), "happened": dict(self.happened),
            "virtual_s": round(self.virtual_s, 3), "real_s": round(self.real_s, 3), "calls": dict(self.calls),
            "records": self.records, "elections": self.elections, "healed_s": round(self.healed_s, 3),
            "digest": self.digest,
        }  # fmt: skip


class SimContext:
    """The context of one workload: see ../workloads/context.py."""

    def __init__(self, world: World, name: str, stop: asyncio.Event, pace: float) -> None:
        self.name = name
        self.pace = pace
        self.rng = random.Random(f"{world.seed}/workload/{name}")
        self.clock: Clock = world.clock
        self.history: History = world.history
        self.stop = stop
        self._world = world
        self._topics = 0

    async def topic(
        self, partitions: int = 1, settings: Mapping[str, str] | None = None, replicas: int | None = None
    ) -> str:
        self._topics += 1
        name = f"{self.name}.{self._topics}"
        client = self.client()
        for _ in range(TOPIC_TRIES_MAX):
            try:
                factor = self._world.replication_factor if replicas is None else replicas
                await client.admin.create_topic(name, partitions, factor, settings=settings, timeout=10.0)
                return name
            except TinymqError as error:
                if error.code == "TopicExists":  # an earlier attempt created it
                    return name
                self._world.say(f"topic {name}: {error.code}")
                await self._world.clock.sleep(0.1)  # some broker is not registered yet
        raise AssertionError(f"topic {name} could not be made")

    def watch_leader(self, topic: str, partition: int) -> None:
        """Faults strike the leaders of all groups here."""

    def client(self, **settings: Any) -> AsyncClient:
        return self._world.client(random.Random(self.rng.random()), **settings)

    def caller(self) -> Caller:
        return self._world.caller(random.Random(self.rng.random()))


def run(plan: Plan) -> Result:
    """Run the plan to its end. Every failure is in the result."""
    plan = filled(plan)
    result = Result(plan)
    transcript = Transcript()
    kept: list[World] = []
    started_s = time.process_time()

    async def main(loop: VirtualLoop) -> None:
        transcript.begin(loop)
        options = WorldOptions(
            plan.nodes, plan.segment_bytes, plan.latency_s, registry=plan.registry, replicas=plan.replicas,
            client_bytes_per_s=plan.client_bytes_per_s or 0, threaded=plan.threaded or 0.0,
        )  # fmt: skip
        world = World(loop, plan.seed, options, transcript)
        kept.append(world)
        try:
            with watched(world), electing(world), watched_queues(world), user_threads(world.threads):
                await _phases(world, plan, result)
        finally:
            result.virtual_s, result.steps = loop.time(), loop.steps
            transcript.end()

    with transcript.listening(), no_collection():
        try:
            run_virtually(main)
        except AssertionError as error:
            result.anomalies.append(f"failed: {error}")
        except Exception as error:  # any error fails the run, and the seed repeats it
            where = traceback.extract_tb(error.__traceback__)[-1]
            result.anomalies.append(f"raised: {error!r} at {where.filename.rsplit('/', 1)[-1]}:{where.lineno}")
    result.anomalies += [f"broken invariant: {line}" for line in transcript.broken]
    result.real_s = time.process_time() - started_s
    if kept:
        _conclude(kept[0], transcript, result)
    return result


def _conclude(world: World, transcript: Transcript, result: Result) -> None:
    history = world.history
    result.faults = dict(world.faults)
    result.happened = sum((broker.happened for broker in world.brokers.values()), Counter[str]())
    result.history = history
    result.queued_bytes_max = world.network.queued_bytes_max
    result.calls = {outcome.value: sum(c.outcome is outcome for c in history.calls) for outcome in Outcome}
    result.records = sum(len(c.args["records"]) for c in history.of("send") if c.outcome is Outcome.OK)
    result.elections = len(history.leaders)
    result.transcript = [
        *transcript.lines(history), *(f"ANOMALY {a}" for a in result.anomalies), f"{result.steps} steps"
    ]  # fmt: skip
    result.digest = digest(result.transcript)


async def _phases(world: World, plan: Plan, result: Result) -> None:
    await world.form()
    stop = asyncio.Event()
    assert plan.faults is not None
    assert plan.pace is not None
    assert plan.gap_s is not None
    storm_s = plan.seconds - QUIET_S - BEFORE_S
    world.damages = bool(DAMAGE & {*plan.faults})
    storm = Storm(world, schedule(plan.seed, plan.faults, plan.gap_s, storm_s), plan.acts)
    chosen, pace = plan.workloads, plan.pace
    world.say(f"faults: {', '.join(plan.faults) or 'none'}")
    world.say(f"workloads {', '.join(chosen)}; segments of {world.limits.segment_bytes} bytes")
    tasks = [
        asyncio.create_task(_work(workloads.WORKLOADS[name], SimContext(world, name, stop, pace))) for name in chosen
    ]
    await world.clock.sleep(world.rng.uniform(0.5, 1.5))
    await storm.rage(storm_s)
    result.begun = [act.number for act in storm.begun]
    calm_s = world.loop.time()
    world.history.changed("all faults are over")
    world.history.calm()
    world.say("all faults are over")
    bad = await world.healthy(END_S)
    result.healed_s = world.loop.time() - calm_s
    await world.clock.sleep(max(0.0, calm_s + QUIET_S - world.loop.time()))
    world.say("workloads are told to stop")
    stop.set()
    _, late = await asyncio.wait(tasks, timeout=END_S)
    for task in late:
        task.cancel()
    result.anomalies += [f"a workload does not end: {task}" for task in late]
    for task in tasks:
        if task not in late:
            task.result()
    await world.close_clients()
    bad = await world.healthy(END_S) or await world.at_rest(END_S) or bad
    await world.seen.collect(world.limits)
    world.history.end()
    world.over = True
    if bad:
        result.anomalies.append(f"not healed: {bad}")
    result.anomalies += [str(anomaly) for anomaly in checkers.check(world.history, world.ledger)]


async def _work(workload: Workload, context: SimContext) -> None:
    await workload(context)


class _Frozen:
    """The objects that exist between two runs (modules above all), which a garbage collection after a run can skip."""

    def __init__(self) -> None:
        self._objects = 0  # when none of them was garbage

    def renew(self) -> None:
        """Collect what the previous result held until now, and freeze the rest."""
        full = gc.get_freeze_count() > self._objects + FROZEN_GROWTH_MAX
        if full:
            gc.unfreeze()  # a frozen result that the caller has dropped since is garbage that no collection finds
        gc.collect()
        gc.freeze()
        if full:
            self._objects = gc.get_freeze_count()


_FROZEN = _Frozen()


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage after the run, and never at moments that the collector chooses.

    Otherwise the clean-up of coroutines would be part of the run. Errors that the clean-up reports are ignored.
    """
    hook = sys.unraisablehook
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            _FROZEN.renew()
            gc.disable()
            yield
            sys.unraisablehook = lambda args: None
            gc.collect()
    finally:
        sys.unraisablehook = hook
        gc.enable()


__all__ = ["BEFORE_S", "QUIET_S", "SECONDS", "Plan", "Result", "SimContext", "no_collection", "run"]
