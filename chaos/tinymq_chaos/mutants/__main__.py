"""`make mutants`: run each mutant with one seed after another until the simulator finds an anomaly; exit 1 if it finds
none.

Each mutant has a plan of its own, narrowed to what the mutant is about. PLAIN=1 runs the plans of `make sim` without
options instead: they know nothing of the mutant. SAMPLE=12 chooses some mutants at random.

Some rules cannot show in the simulator. Their mutants name a test of the suite, which has to fail.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from tinymq.base.errors import InvalidRequest
from tinymq.cli.common.exits import Exit, explain
from tinymq_chaos.mutants import MUTANTS, Mutant, find, suite
from tinymq_chaos.mutants.plain import catches
from tinymq_chaos.sim.campaign.draws import BROKERS
from tinymq_chaos.sim.campaign.run import Plan, Result, run
from tinymq_chaos.sim.world.world import LINK_S

SEEDS_MAX = 100
RUN_S_MAX = 60.0
NONE = catches.Catch(0, 0.0, "")
SETTLE_S = 8.0  # of a run, after its faults


@dataclass(frozen=True, slots=True)
class HuntResult:
    """The result of a mutant. `by` is the first anomaly; "" if the mutant survived."""

    mutant: Mutant
    seeds: int
    virtual_s: float
    real_s: float
    by: str

    def __str__(self) -> str:
        took = f"after {self.seeds:3} seeds, {self.virtual_s:6.0f} virtual s, {self.real_s:5.0f} s"
        how = f"by {self.mutant.test}" if self.mutant.test and not self.seeds else took
        return f"{self.mutant.name:38} {'caught' if self.by else 'SURVIVED'} {how}  {self.by[:160]}".rstrip()


def plan_of(mutant: Mutant, seed: int) -> Plan:
    """Return the plan of a run with this mutant's focus."""
    focus = mutant.focus
    return Plan(
        seed,
        nodes=focus.nodes,
        seconds=focus.seconds + SETTLE_S,
        workloads=focus.workloads,
        faults=focus.faults or None,
        segment_bytes=focus.segment_bytes,
        latency_s=LINK_S[0] if focus.latency_s is None else focus.latency_s,
        pace=focus.pace,
        threaded=focus.threaded,
    )


def plain_plan(mutant: Mutant, seed: int) -> Plan:
    """Return the plan of `make sim` without options, whatever the mutant."""
    return Plan(seed, BROKERS.of(seed))


def hunt(mutant: Mutant, seeds: Iterable[int], make_plan: Callable[[Mutant, int], Plan] = plan_of) -> HuntResult:
    """Run the mutant until a run finds an anomaly that the product does not show under the same plan."""
    if mutant.test and make_plan is plan_of:
        return _tested(mutant)
    count, virtual_s, real_s = 0, 0.0, 0.0
    for seed in seeds:
        plan = make_plan(mutant, seed)
        with mutant.applied(), _ending(RUN_S_MAX):
            result = run(plan)
        count, virtual_s, real_s = count + 1, virtual_s + result.virtual_s, real_s + result.real_s
        if not result.anomalies:
            continue
        with _ending(RUN_S_MAX):
            control = run(plan)
        if not control.anomalies:
            return HuntResult(mutant, count, virtual_s, real_s, _first(result))
        print(f"{mutant.name}: no catch, without the mutant {plan.command} fails too: {_first(control)}", flush=True)
    return HuntResult(mutant, count, virtual_s, real_s, "")


def _tested(mutant: Mutant) -> HuntResult:
    """Run the mutant's test, which has to fail with the mutant and pass without it."""
    began_s = time.monotonic()
    with mutant.applied():
        found = suite.failures(mutant.test)
    if found and (without := suite.failures(mutant.test)):
        print(f"{mutant.name}: no catch, without the mutant {mutant.test} fails too: {without[0]}", flush=True)
        found = []
    by = " ".join(found[0].split()) if found else ""
    return HuntResult(mutant, 0, 0.0, time.monotonic() - began_s, by)


@contextmanager
def _ending(seconds: float) -> Iterator[None]:
    """Fail the run after so many seconds of CPU time: a mutant may loop for ever."""

    def end(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"no end within {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _first(result: Result) -> str:
    return result.anomalies[0].splitlines()[0]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="these alone")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, help="at most so many: 100, or 200 of plain runs")
    parser.add_argument("--plain", action="store_true", help="the plans of `make sim` without options")
    parser.add_argument("--sample", type=int, help="so many of the mutants, chosen at random")
    parser.add_argument("--keep", action="store_true", help=f"with --plain: go on where {catches.NAME} ends")
    parser.add_argument("--part", default="1/1", help="every n-th mutant, such as 2/2: to use several cores")
    parser.add_argument("--list", action="store_true", help="names and rules, and nothing is run")
    options = parser.parse_args(words)
    if options.list:
        print("\n".join(f"{mutant.name:38} {mutant.rule}" for mutant in MUTANTS.values()))
        return 0
    try:
        named = [find(name) for name in options.names or MUTANTS]
    except InvalidRequest as error:
        explain(error)
        return Exit.USAGE
    part, parts = map(int, options.part.split("/"))
    chosen = named[part - 1 :: parts]
    if options.plain:
        chosen = [mutant for mutant in chosen if mutant.name not in catches.NOT_IN_PLAIN_RUNS]
    if options.sample is not None:
        chosen = random.SystemRandom().sample(chosen, min(options.sample, len(chosen)))
    make_plan = plain_plan if options.plain else plan_of
    seeds = options.seeds or (catches.SEEDS_MAX if options.plain else SEEDS_MAX)
    survived = []
    for mutant in chosen:
        known = catches.load().get(mutant.name, NONE) if options.keep else NONE
        if known.by:
            continue
        first = options.first + known.seeds
        caught = hunt(mutant, range(first, options.first + max(seeds, known.seeds)), make_plan)
        print(caught, flush=True)
        if options.keep:
            catches.keep(mutant.name, known.then(caught.seeds, caught.virtual_s, caught.by))
        survived += [mutant.name] if not caught.by else []
    print(f"{len(chosen) - len(survived)} of {len(chosen)} mutants caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
