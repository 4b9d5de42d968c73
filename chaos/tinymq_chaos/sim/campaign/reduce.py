"""Reduces a failed run to the shortest plan that fails in the same way.

The parts go one by one, and a part that the failure does not need stays away: faults, workloads, time after the last
fault, brokers, and the rarer draws. A plan counts as failing in the same way if it shows one of the first plan's kinds
of anomalies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tinymq_chaos.sim.campaign.draws import GAPS
from tinymq_chaos.sim.campaign.plan import Plan
from tinymq_chaos.sim.campaign.run import BEFORE_S, QUIET_S, Result, run
from tinymq_chaos.sim.campaign.storm import Act, schedule

REDUCE_S = 60.0  # CPU seconds for one failure

Runs = Callable[[Plan], Result]


def kinds_of(result: Result) -> set[str]:
    """Return the kinds of anomalies: an anomaly's line begins with its kind."""
    return {anomaly.split(":")[0] for anomaly in result.anomalies}


def reduced(failed: Result, limit_s: float = REDUCE_S, runs: Runs = run) -> Result:
    """Return the shortest failing run that is found within `limit_s` seconds of CPU time, or `failed` itself."""
    until_s = time.process_time() + limit_s
    sought, best = kinds_of(failed), failed
    improved = True
    while improved:
        improved = False
        for candidate in _shorter(best):
            if time.process_time() >= until_s:
                return best
            tried = runs(candidate)
            if sought & kinds_of(tried):
                best, improved = tried, True
                break
    return best


def _shorter(result: Result) -> Iterator[Plan]:
    """Yield plans with less in them, those that save most first."""
    plan, begun = result.plan, result.begun
    for half in _halves(begun):
        yield _with_acts(plan, half)
    if set(begun) != set(plan.acts if plan.acts is not None else range(len(_acts(plan)))):
        yield _with_acts(plan, begun)
    for name in plan.workloads if len(plan.workloads) > 1 else ():
        yield replace(plan, workloads=tuple(other for other in plan.workloads if other != name))
    for number in begun if len(begun) > 2 else ():
        yield _with_acts(plan, [other for other in begun if other != number])
    if begun:
        over_s = max(act.ends_s for act in _acts(plan) if act.number in begun)
        if (seconds := over_s + QUIET_S + BEFORE_S) < plan.seconds - 1.0:
            yield replace(plan, seconds=round(seconds + 0.05, 1))
    if plan.client_bytes_per_s:
        yield replace(plan, client_bytes_per_s=0)
    if plan.threaded:
        yield replace(plan, threaded=0.0)
    if plan.nodes > 3:
        yield replace(plan, nodes=3, replicas=min(3, plan.replicas or 3))
    if plan.replicas not in (None, 3) and plan.nodes >= 3:
        yield replace(plan, replicas=3)
    if plan.gap_s is not None and not begun and plan.gap_s != GAPS.odds[0][0]:
        yield replace(plan, gap_s=GAPS.odds[0][0])


def _halves(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    if numbers:
        yield ()
    if len(numbers) > 1:
        middle = len(numbers) // 2
        yield from (numbers[:middle], numbers[middle:])


def _acts(plan: Plan) -> list[Act]:
    return schedule(plan.seed, plan.faults or (), plan.gap_s or GAPS.odds[0][0], plan.seconds - QUIET_S - BEFORE_S)


def _with_acts(plan: Plan, acts: Sequence[int]) -> Plan:
    return replace(plan, acts=tuple(acts))
