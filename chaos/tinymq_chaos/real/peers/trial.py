"""One trial of a peer: a fresh cluster, numbered producers and readers, faults one after another, and what the checkers
say of it.

    trial = await run(Plan(seed=7, faults=("kill_leader",), times=3, sync="always"), folder, print)
"""

from __future__ import annotations

import asyncio
import random
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tinymq_chaos.checkers import Anomaly, AnomalyKind, Facts
from tinymq_chaos.history import History, Log, Outcome
from tinymq_chaos.real.peers.nats import NatsCluster
from tinymq_chaos.real.peers.nats_faults import KINDS, LOOP_DISKS
from tinymq_chaos.real.peers.nats_system import NatsSystem, serving
from tinymq_chaos.real.run.context import RealContext, SharedContext
from tinymq_chaos.real.run.nemesis import Nemesis
from tinymq_chaos.real.run.schedule import Act, Episode, ScheduleRunner
from tinymq_chaos.real.system.verdict import Slack
from tinymq_chaos.workloads.context import Workload

HEALED_S = 30.0  # from the last fault
QUIET_S = 4.0  # of load, after the last fault
END_S = 60.0  # for workloads to stop and read everything to the end
WATCH_S = 0.2
PACE = 0.05  # factor for the pauses of workloads: some hundred records a second
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """The plan of a trial. A seed does not determine real time: the same plan gives another history."""

    seed: int
    faults: tuple[str, ...]  # names, in this order
    times: int = 1  # how often all of them are done
    sync: str = "2m"
    before_s: float = 2.0  # of load, before the first fault
    gap_s: float = 6.0  # between two faults
    workloads: tuple[str, ...] = ("idempotent", "lone")

    @property
    def command(self) -> str:
        words = ["--seeds", self.seed, "--sync", self.sync, "--times", self.times, "--before-s", f"{self.before_s:g}"]
        words += ["--gap-s", f"{self.gap_s:g}", "--workloads", ",".join(self.workloads), ",".join(self.faults)]
        return "PYTHONPATH=chaos python -m tinymq_chaos.real.peers " + shlex.join(map(str, words))


@dataclass(slots=True)
class Trial:
    """The result of a plan."""

    plan: TrialPlan
    version: str
    acknowledged: int = 0  # records
    unknown: int = 0
    failed: int = 0
    pause_s: float = 0.0  # the longest time between two acknowledged writes of one partition, or until the last attempt
    anomalies: list[Anomaly] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # of the trial itself: what could not be judged, and why
    faults: list[str] = field(default_factory=list)  # in words
    healed_s: float = 0.0  # from the last fault's end until all is well
    lost_s: float = 0.0  # the time between the acknowledgement of the earliest lost record and the next fault

    @property
    def counts(self) -> Counter[str]:
        """Return the number of anomalies; of records, where anomalies name records."""
        found: Counter[str] = Counter()
        for anomaly in self.anomalies:
            found[anomaly.kind.value] += max(1, len(anomaly.records))
        return found


async def run(plan: TrialPlan, folder: Path, say: Say) -> Trial:
    """Run the trial. Raises RuntimeError if the peer does not start; later problems are in the trial."""
    loop_disks = any(LOOP_DISKS in KINDS[kind].real.needs for kind in plan.faults)
    subject = await asyncio.to_thread(serving, folder, plan.sync, loop_disks)
    cluster = subject.cluster
    try:
        trial = Trial(plan, f"{cluster.name} {cluster.version}")
        history = History(time.monotonic)
        await _load(plan, subject, history, trial, say)
        measure(trial, history)
        (folder / "history.jsonl").write_text("".join(f"{line}\n" for line in history.lines()))
        return trial
    finally:
        await asyncio.to_thread(cluster.close)


async def _healthy(cluster: NatsCluster) -> str:
    """Wait for health; return what is wrong in the end, "" if all is well."""
    until_s, problem = time.monotonic() + HEALED_S, "not asked yet"
    while problem and time.monotonic() < until_s:
        problem = await asyncio.to_thread(cluster.unhealthy)
        await asyncio.sleep(0.1)
    return problem


async def _load(plan: TrialPlan, subject: NatsSystem, history: History, trial: Trial, say: Say) -> None:
    cluster = subject.cluster
    nemesis = Nemesis(cluster, history, random.Random(f"{plan.seed}/nemesis"), has=subject.has, faults=KINDS)
    around = SharedContext(
        seed=plan.seed, history=history, make_client=subject.client, make_caller=subject.caller,
        topics=nemesis.stage.topics, pace=PACE,
    )  # fmt: skip
    writing = [
        asyncio.create_task(_work(subject.workloads[name], RealContext(around, name))) for name in plan.workloads
    ]
    watching = asyncio.create_task(_watch(subject, history))
    try:
        await _any_ends(writing, plan.before_s)
        storm = ScheduleRunner(nemesis, say)
        await storm.rage(_episodes(plan), float("inf"))
        over_s = max((span.ended_s or 0.0 for span in history.faults), default=time.monotonic())
        if problem := await _healthy(cluster):
            trial.problems.append(f"not healthy {HEALED_S:g} s after the last fault: {problem}")
        trial.healed_s = time.monotonic() - over_s
        history.calm()
        await _any_ends(writing, QUIET_S)
        around.stop.set()
        await asyncio.wait_for(asyncio.gather(*writing), END_S)
        await _any_ends([watching], 0.0)
        history.end()
    finally:
        for task in (*writing, watching):
            task.cancel()
        await asyncio.gather(*writing, watching, return_exceptions=True)
        await around.close()
    if problem := await _healthy(cluster):
        trial.problems.append(f"not healthy in the end: {problem}")
    trial.problems += [f"could not happen: {kind}" for kind in storm.never]
    collected = await asyncio.to_thread(subject.collect, history, ())
    trial.problems += [*collected.notes, *collected.wrong]
    facts = Facts(history)
    trial.anomalies = [anomaly for checker in subject.checkers(Slack()) for anomaly in checker(facts)]
    trial.faults = [f"{span.kind}: {span.what}" for span in history.faults]


async def _work(workload: Workload, context: Any) -> None:
    await workload(context)


def _episodes(plan: TrialPlan) -> list[Episode]:
    """Yield every fault with its usual parameters."""
    acts: list[Act] = []
    for kind in plan.faults * plan.times:
        usual = {name: values[0] for name, values in KINDS[kind].real.parameters.items()}
        acts.append(Act(kind, usual, 0.0, KINDS[kind].real.lasts_s[0]))
    return [Episode((act,), plan.gap_s) for act in acts]


async def _any_ends(writing: Sequence[asyncio.Task[None]], within_s: float) -> None:
    """Let the workloads run so long; raise the first error of one of them."""
    done, _ = await asyncio.wait(writing, timeout=within_s, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()


async def _watch(subject: NatsSystem, history: History) -> None:
    while True:
        await asyncio.to_thread(subject.watch, history, ())
        await asyncio.sleep(WATCH_S)


def measure(trial: Trial, history: History) -> None:
    """Compute the figures of a trial, once its anomalies are known."""
    acknowledged: dict[Log, list[float]] = {}
    tried: dict[Log, float] = {}  # until when
    for call in history.of("send"):
        log = (call.args["topic"], call.args["partition"])
        tried[log] = max(tried.get(log, 0.0), call.ended_s or 0.0)
        records = len(call.args["records"])
        if call.outcome is Outcome.OK and call.ended_s is not None:
            trial.acknowledged += records
            acknowledged.setdefault(log, []).append(call.ended_s)
        elif call.outcome is Outcome.FAILED:
            trial.failed += records
        else:
            trial.unknown += records
    rows = [[*sorted(times), tried[log]] for log, times in acknowledged.items()]
    gaps = [after - before for times in rows for before, after in pairwise(times)]
    trial.pause_s = max(gaps, default=0.0)
    lost = [anomaly.times_s[0] for anomaly in trial.anomalies if anomaly.kind is AnomalyKind.LOST_WRITE]
    began = [span.began_s for span in history.faults]
    back = [min((at_s - ended_s for at_s in began if at_s >= ended_s), default=0.0) for ended_s in lost]
    trial.lost_s = max(back, default=0.0)
