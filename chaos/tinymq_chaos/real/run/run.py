"""One run against real processes: workloads, faults, calm, and the checks. The phases are those of README.md, in order.

The seed alone does not determine a run, as it does in the simulator: the seed gives the plan, and the machine and its
clocks give the rest.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from tinymq_chaos import checkers
from tinymq_chaos.checkers.cluster.deadlines import CHANGES
from tinymq_chaos.checkers.common.anomaly import Anomaly
from tinymq_chaos.history import METADATA, History, Outcome
from tinymq_chaos.real.processes.threads import in_thread
from tinymq_chaos.real.run.context import RealContext, SharedContext
from tinymq_chaos.real.run.lateness import Lateness
from tinymq_chaos.real.run.nemesis import Nemesis
from tinymq_chaos.real.run.schedule import Episode, ScheduleRunner, plan
from tinymq_chaos.real.system.system import SystemUnderTest
from tinymq_chaos.real.system.verdict import Slack, times
from tinymq_chaos.workloads.context import Workload

BEGIN_S = 2.0  # of load, before the first fault
TOPICS_S = 60.0  # for workloads to create their topics
HEALED_S = 60.0  # for recovery after the last fault
END_S = 60.0  # for workloads to stop and read everything
LOOK_S = 0.05  # between two reads of the brokers' logs
WAIT_S = 4.0  # after which progress tells what the run waits for
SAY_S = 15.0  # between two lines of progress
QUIET_S = 6.0  # of load after the last fault, at least: it also shows the speed of writes then
PROGRESS_S = 0.5  # between two checks of the progress then
PROGRESSES = ("send", *CHANGES)
LAG_S = 0.05  # between two measurements of the loop's lag
LATE_S = 0.3  # a lag that counts: brokers may have been silent as long, which causes elections
LEAVE_S = 5.0  # for cancelled tasks to end
ONCE = "interrupted: faults end, and the run so far is judged; Ctrl-C again ends at once, without a judgement"
TWICE = "interrupted twice: the run is not judged"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run does. The seed decides whatever the plan leaves open."""

    seed: int
    seconds: float = 570.0  # of faults
    faults: tuple[str, ...] | None = None  # names; None: all that the target can have, (): none
    workloads: tuple[str, ...] = ()  # (): all suitable ones
    pace: float = 1.0  # factor for the pauses of workloads
    episodes: tuple[Episode, ...] | None = None  # None: the seed chooses


@dataclass(slots=True)
class RunResult:
    """The result of a run. `anomalies`: findings of the checkers, and sentences about other failures."""

    plan: RunPlan
    history: History
    anomalies: list[Anomaly | str] = field(default_factory=list)
    faults: Mapping[str, int] = field(default_factory=dict)  # how many of each kind began
    never: list[str] = field(default_factory=list)  # faults that were tried and could not happen
    notes: list[str] = field(default_factory=list)  # facts that are no anomalies
    interrupted: bool = False
    judged: bool = False  # all checkers ran
    healed_s: float = 0.0  # from the last fault's end until all was well
    lag_s: float = 0.0  # how long the harness's loop waited, in the worst ten seconds
    crowd: float = 0.0  # tasks for each processor, at worst, on average over a minute
    crowd_calm: float = 0.0  # the same, from the last fault on
    proxy_restarts: int = 0  # proxies that hung and were replaced, which closed their connections
    checked_s: float = 0.0  # duration of the checks
    clients: Mapping[str, int] = field(default_factory=dict)  # how many of each class, callers included

    @property
    def slack(self) -> Slack:
        return Slack().of(self.lag_s, self.crowd, self.crowd_calm)

    @property
    def leniency(self) -> float:
        """Return the factor by which times were extended, compared with a quiet machine; 1: it was one."""
        return times(self.crowd)

    @property
    def idle(self) -> Mapping[str, int]:
        """Return how many faults of each kind had no effect that could be observed."""
        return Counter(span.kind for span in self.history.faults if span.effect == "")

    @property
    def acknowledged(self) -> int:
        """Return the number of acknowledged records."""
        return sum(len(c.args["records"]) for c in self.history.of("send") if c.outcome is Outcome.OK)


class Run:
    """A run of one plan, on a running loop.

    A signal handler on the loop may call `interrupt`: once, the run ends in order, with every phase after the faults;
    twice, it ends at once.
    """

    def __init__(self, plan: RunPlan, subject: SystemUnderTest, history: History, say: Say) -> None:
        self.result = RunResult(plan, history)
        self.nemesis = Nemesis(subject.target, history, random.Random(f"{plan.seed}/nemesis"), has=subject.has)
        self._plan = plan
        self._subject = subject
        self._history = history
        self._say = say
        self._around = SharedContext(
            plan.seed, history, subject.client, subject.caller, self.nemesis.stage.topics, pace=plan.pace
        )
        self._raging: asyncio.Task[None] | None = None
        self._working: list[asyncio.Task[None]] = []
        self._observing: asyncio.Task[None] | None = None
        self._main: asyncio.Task[object] | None = None
        self._interrupts = 0

    def interrupt(self) -> None:
        self._interrupts += 1
        self.result.interrupted = True
        if self._interrupts == 1:
            self._say(ONCE)
            if self._raging is not None:
                self._raging.cancel()
        elif self._interrupts == 2 and self._main is not None:
            self._say(TWICE)
            self._main.cancel()

    async def run(self) -> RunResult:
        """Run to the end; every failure is in the result. When cancelled, end at once and judge nothing."""
        self._main = asyncio.current_task()
        self._observing = asyncio.create_task(self._observe())
        beside = [self._observing, *(asyncio.create_task(task()) for task in (self._measure_lag, self._tell))]
        try:
            await self._phases()
        except asyncio.CancelledError:
            self.result.interrupted = True
        except Exception as error:  # any error fails the run; its observations are kept
            self.result.anomalies.append(f"raised: {_in_words(error)}")
        finally:
            if self._history.ended_s is None:
                self._history.end()
            await _leave([*beside, *self._working, *([self._raging] if self._raging is not None else [])])
        self.result.faults = dict(self.nemesis.happened)
        self.result.proxy_restarts = self._subject.target.net.restarts
        self.result.notes += _notes(self.result)
        return self.result

    async def _phases(self) -> None:
        history, result, plan_ = self._history, self.result, self._plan
        chosen = plan_.workloads or tuple(self._subject.workloads)
        self._say(f"workloads: {', '.join(chosen)}")
        self._working = [asyncio.create_task(self._work(name, self._subject.workloads[name])) for name in chosen]
        await self._begun()
        await self._rage()
        calm_s = history.now()
        history.changed("all faults are over")
        history.calm()
        self._say("all faults are over")
        bad = await self._healthy(HEALED_S)
        result.healed_s = history.now() - calm_s
        self._say(
            f"all is well {result.healed_s:.1f} s after the last fault" if not bad else f"not well: {_shortened(bad)}"
        )
        while history.now() < calm_s + QUIET_S or not self._progressed(calm_s):
            if history.now() > calm_s + 1.0 + result.slack.progress_s:
                break
            await asyncio.sleep(PROGRESS_S)
        await self._drain()
        bad = await self._healthy(HEALED_S) or bad
        history.end()
        if self._observing is not None:  # one call at a time
            await self._observing
        await self._look_once()
        self._say("brokers are stopped, and their logs read")
        collected = await in_thread(partial(self._subject.collect, history, self.nemesis.hurt))
        result.notes += collected.notes
        result.anomalies += collected.wrong
        if bad:
            result.anomalies.append(f"not healed: {_shortened(bad)}")
        self._say(f"{len(history.calls)} calls are checked")
        began_s = time.monotonic()
        result.anomalies += await in_thread(self._judge)
        result.checked_s = time.monotonic() - began_s
        result.judged = True

    def _progressed(self, calm_s: float) -> bool:
        """Return whether every written partition has acknowledged something since, and the metadata has changed if a
        client asked for it: the run has nothing left to wait for.
        """
        served: dict[object, bool] = {}
        for call in self._history.calls:
            if call.kind in PROGRESSES and (call.ended_s is None or call.ended_s > calm_s):
                place = (call.args["topic"], call.args["partition"]) if call.kind == "send" else METADATA
                served[place] = served.get(place, False) or call.outcome is Outcome.OK
        return all(served.values())

    def _judge(self) -> list[Anomaly]:
        return checkers.check(self._history, checkers=self._subject.checkers(self.result.slack))

    async def _begun(self) -> None:
        """Wait until the workloads have their topics and have used them."""
        until_s = time.monotonic() + TOPICS_S
        await asyncio.sleep(BEGIN_S)
        while self._around.making and time.monotonic() < until_s and not (self._broken() or self.result.interrupted):
            await asyncio.sleep(LOOK_S)
            if not self._around.making:
                await asyncio.sleep(BEGIN_S)

    def _broken(self) -> bool:
        """Return whether a workload has failed, which ends the run."""
        return any(task.done() and not task.cancelled() and task.exception() for task in self._working)

    async def _work(self, name: str, workload: Workload) -> None:
        await workload(RealContext(self._around, name))

    async def _rage(self) -> None:
        kinds = self.nemesis.kinds
        if self._plan.faults is not None:
            kinds = {name: kinds[name] for name in self._plan.faults}
        self._say(f"faults for {self._plan.seconds:g} s: {', '.join(kinds) or 'none'}")
        storm = ScheduleRunner(self.nemesis, self._say)
        episodes = plan(self._plan.seed, kinds) if self._plan.episodes is None else self._plan.episodes
        self._raging = asyncio.create_task(storm.rage(episodes, self._plan.seconds))
        watched: set[asyncio.Task[None]] = {self._raging, *self._working}
        if self.result.interrupted:
            self._raging.cancel()
        while not self._raging.done():
            _, watched = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if self._broken():
                self._raging.cancel()
        self.result.never = storm.never
        late = [name for name in kinds if not self.nemesis.happened[name] and name not in storm.never]
        if late and self._plan.episodes is None and not self.result.interrupted:
            self.result.notes.append(f"no time was left for {', '.join(late)}")
        if not self._raging.cancelled():
            self._raging.result()
        elif not self.result.interrupted:
            for task in self._working:
                if task.done():
                    task.result()

    async def _drain(self) -> None:
        self._say("workloads stop, and read to the end")
        self._around.stop.set()
        _, late = await asyncio.wait(self._working, timeout=END_S) if self._working else ((), ())
        self.result.anomalies += [f"a workload does not end within {END_S:g} s: {task}" for task in late]
        for task in self._working:
            if task not in late:
                task.result()
        self.result.clients = Counter(type(client).__name__ for client in self._around.clients)
        await self._around.close()

    async def _healthy(self, within_s: float) -> str:
        """Wait until all is well; return what is not, after so long."""
        until_s, say_s = time.monotonic() + within_s, time.monotonic() + WAIT_S
        while True:
            harm = self.nemesis.harm
            bad = await in_thread(self._subject.target.unhealthy)
            if not bad:
                self.nemesis.all_well(harm)
            if not bad or time.monotonic() >= until_s:
                return bad
            if time.monotonic() > say_s:
                self._say(f"not well yet: {_shortened(bad)}")
                say_s += WAIT_S
            await asyncio.sleep(LOOK_S)

    # ---- beside ------------------------------------------------------------------------------------------------

    async def _observe(self) -> None:
        while self._history.ended_s is None:
            await self._look_once()
            await asyncio.sleep(LOOK_S)

    async def _look_once(self) -> None:
        mended = self.nemesis.mended
        await in_thread(partial(self._subject.watch, self._history, self.nemesis.hurt))
        self.nemesis.trust(mended)

    async def _measure_lag(self) -> None:
        """Measure how long this loop waits for the processor, until the run is judged."""
        lateness = Lateness()
        while self._history.ended_s is None:
            due_s = time.monotonic() + LAG_S
            await asyncio.sleep(LAG_S)
            now_s = time.monotonic()
            late_s = now_s - due_s
            if late_s > LAG_S:  # smaller ones come with every turn, and would add up to a slack on a quiet machine
                lateness.note(now_s, late_s)
            self.result.lag_s = lateness.worst_s
            if late_s > LATE_S:
                self.nemesis.stage.tell(f"the machine has made the harness wait for {late_s:.1f} s")
            crowd = os.getloadavg()[0] / (os.cpu_count() or 1)
            self.result.crowd = max(self.result.crowd, crowd)
            if self._history.calm_s is not None:
                self.result.crowd_calm = max(self.result.crowd_calm, crowd)

    async def _tell(self) -> None:
        while self._history.ended_s is None:
            await asyncio.sleep(SAY_S)
            ended = sum(call.outcome is Outcome.OK for call in self._history.calls)
            self._say(f"{len(self._history.calls)} calls, {ended} of them done; {self.result.acknowledged} records "
                      "acknowledged")  # fmt: skip


async def _leave(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks and give them some time to end."""
    for task in tasks:
        task.cancel()
    done, _ = await asyncio.wait(tasks, timeout=LEAVE_S)
    for task in done:
        if not task.cancelled():
            task.exception()  # mark the error as seen: it was reported already


def _notes(result: RunResult) -> list[str]:
    """Return the facts about the faults that the report should mention."""
    notes = [f"{kind} did nothing, {n} of {result.faults[kind]} times" for kind, n in result.idle.items()]
    if result.proxy_restarts:
        notes.append(f"{result.proxy_restarts} times a proxy hung and was restarted, which closed its connections")
    return notes


def _shortened(unhealthy: str, parts: int = 4) -> str:
    """Return the first sentences: one broker that is down leaves every partition without a replica."""
    problems = unhealthy.split("; ")
    return "; ".join(problems[:parts]) + (f"; and {len(problems) - parts} more" if len(problems) > parts else "")


def _in_words(error: BaseException) -> str:
    """Return an error in words, with its place; the first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    where = traceback.extract_tb(error.__traceback__)
    last = where[-1] if where else None
    return f"{error!r} at {last.filename.rsplit('/', 1)[-1]}:{last.lineno}" if last else repr(error)
