"""`make chaos`: run real broker processes under real faults, and print what was wrong.

Exit code 0: nothing; 1: anomalies, or a request that was not tested; 2: the request is impossible; 130: Ctrl-C, and
nothing was wrong until then. Make turns every code but 0 into 2: the last line of the output has the code.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tinymq.base.errors import TinymqError, UnsafePath
from tinymq.base.private_files import make_private_directory
from tinymq_chaos.history import History
from tinymq_chaos.names import names_of
from tinymq_chaos.real import outcome
from tinymq_chaos.real.cluster.broker import check_mutants
from tinymq_chaos.real.faults import FAULTS, RealFault
from tinymq_chaos.real.report import BadFolder, read_run, write_comparison, write_report
from tinymq_chaos.real.run.run import Run, RunPlan, RunResult
from tinymq_chaos.real.systems import OFFERS, TARGETS, ClusterSpec, SystemOffer

MINUTES = 10.0
BESIDE_S = 45.0  # of these: the start of the brokers, and the time from the last fault until the end of the checks
LEAST_S = 10.0  # of faults
FRESH_SEEDS = 1_000_000
LEFT = ("cluster", outcome.HISTORY)  # of a run, in its folder
EPILOG = """\
examples:

  make chaos                                  about 10 minutes: every kind of fault once, then random pairs
  make chaos FAULT=kill_leader,latency MINUTES=2        these two, one after the other, then together
  make chaos SEED=7 BROKERS=5                 the plan of seed 7, on five brokers
  make chaos FAULT=none MINUTES=1             no faults: what the machine does without
  make chaos MUTANT=duplicates-are-appended FAULT=reset_peer    brokers that are broken on purpose: anomalies are due
  make chaos AGAINST=.tinymq/chaos/earlier    and compare the report with that of an earlier run
  python -m tinymq_chaos.real --list          kinds of faults with their parameters

A seed gives the plan: which faults, whom they befall, when. What comes of it is the machine's, too: real clocks make no
run like another one. A run keeps its history, report.html and the brokers' logs in its folder. Ctrl-C ends the faults,
and what there was is read and judged; a second one ends at once.
"""


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make chaos", description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fault", type=names_of(FAULTS), help="kinds, with commas; none: none. Else all, each once")
    parser.add_argument("--seed", type=int, help="of the plan; else a fresh one")
    parser.add_argument("--minutes", type=_positive, default=MINUTES, help="all in all, about (%(default)g)")
    parser.add_argument("--brokers", type=int, choices=(3, 5), default=3)
    parser.add_argument("--target", choices=sorted(TARGETS), default="tinymq", help="whose brokers")
    parser.add_argument("--workload", type=_names, default=(), help="names, with commas; default: all suitable ones")
    parser.add_argument("--pace", type=_positive, default=1.0, help="factor for the pauses of workloads")
    parser.add_argument("--mutant", type=_names, default=(), help="rules to take out on every broker, with commas")
    parser.add_argument("--folder", type=Path, help="for the output; default: a new one under .tinymq/chaos")
    parser.add_argument("--against", type=Path, help="folder of an earlier run, to compare with")
    parser.add_argument("--list", action="store_true", help="print the kinds of faults, and run nothing")
    return parser.parse_args(arguments)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _positive(text: str) -> float:
    """Parse a positive number. Raises ValueError, which argparse reports."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0, or has no end")
    return value


def main(arguments: Sequence[str]) -> int:
    options = parse_options(arguments)
    if options.list:
        print("\n".join(fault_line(name, kind) for name, kind in FAULTS.items()))
        return 0
    seed = random.SystemRandom().randrange(FRESH_SEEDS) if options.seed is None else options.seed
    now = datetime.now(UTC)
    folder = options.folder or Path(".tinymq") / "chaos" / f"{now:%Y%m%d-%H%M%S}-seed-{seed}"
    if wrong := unusable_options(options, OFFERS[options.target]()) or folder_problem(folder, options.against):
        return _end(2, wrong)
    say = Progress()
    command = command_of(options, seed)
    say(f"seed {seed}; {command} repeats the plan, not the result; the output is in {folder}")
    kinds = FAULTS if options.fault is None else {name: FAULTS[name] for name in options.fault}
    needs = frozenset().union(*(kind.real.needs for kind in kinds.values()))
    plan = RunPlan(seed, max(LEAST_S, options.minutes * 60 - BESIDE_S), options.fault, options.workload, options.pace)
    try:
        subject = TARGETS[options.target](ClusterSpec(folder / LEFT[0], options.brokers, needs, options.mutant))
    except (TinymqError, RuntimeError, ValueError, OSError) as error:
        return _end(2, f"the cluster does not come up: {error}")
    try:
        say(f"{options.brokers} brokers serve")
        began_s = time.monotonic()
        run = Run(plan, subject, History(lambda: time.monotonic() - began_s), say)
        result = asyncio.run(_run(run))
        outcome.write(folder, result, subject.target, command, now.isoformat(timespec="seconds"))
    finally:
        subject.target.close()
    if result.judged and not result.anomalies:
        outcome.remove_data(subject.target)
    return _conclude(result, folder, options.against, say)


def unusable_options(options: argparse.Namespace, offer: SystemOffer) -> str:
    """Return which options make no sense with these brokers; "" if all do."""
    lacking = {name: FAULTS[name].real.needs - offer.can_have for name in options.fault or ()}
    wrong = [f"{name} needs {', '.join(sorted(needs))}" for name, needs in lacking.items() if needs]
    strange = [name for name in options.workload if name not in offer.workloads]
    wrong += [f"{', '.join(strange)} cannot be judged here; {', '.join(offer.workloads)} can"] if strange else []
    if options.brokers not in offer.nodes:
        wrong.append(f"they are {' or '.join(map(str, offer.nodes))}, not {options.brokers}")
    if options.mutant and not offer.mutants:
        wrong.append("no mutant is one of them")
    elif options.mutant:
        try:
            check_mutants(options.mutant)
        except TinymqError as error:
            wrong.append(error.message)
    return f"{options.target}: {'; '.join(wrong)}" if wrong else ""


def folder_problem(folder: Path, against: Path | None) -> str:
    """Create `folder`; return why it cannot be written, or why `against` cannot be compared; "" if both can."""
    if against is not None:
        try:
            read_run(against)
        except BadFolder as error:
            return str(error)
    if left := [name for name in LEFT if (folder / name).exists()]:
        return f"{folder} holds an earlier run ({', '.join(left)}): name another one, or remove it"
    try:
        make_private_directory(folder)
    except OSError as error:
        return f"{folder} cannot be made: {error.strerror}"
    except UnsafePath as error:
        return error.message
    return ""


def _end(code: int, why: str) -> int:
    """Print the last line, with the exit code: make shows only 2."""
    print(f"exit code {code}: {why}", file=sys.stderr)
    return code


async def _run(run: Run) -> RunResult:
    """Run the plan. Ctrl-C ends the run in order, a second one at once; both give a result."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, run.interrupt)
    return await run.run()


def _conclude(result: RunResult, folder: Path, against: Path | None, say: Callable[[str], None]) -> int:
    print(outcome.outcome_in_words(result), flush=True)
    code, why = outcome.exit_of(result)
    if result.interrupted and not result.judged:
        say(f"no report yet: python -m tinymq_chaos.real.report {folder}")
        return _end(code, why)
    try:
        say(f"report: {write_report(folder)}")
        if against is not None:
            say(f"comparison: {write_comparison(folder, against)}")
    except (BadFolder, OSError) as error:
        return _end(code or 2, f"{why}, but there is no report: {error}")
    return _end(code, why)


class Progress:
    """Progress on standard error, with the time since the beginning."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def __call__(self, what: str) -> None:
        print(f"{time.monotonic() - self._began_s:7.1f} s  {what}", file=sys.stderr, flush=True)


def command_of(options: argparse.Namespace, seed: int) -> str:
    """Return the command that repeats the plan."""
    words = [f"make chaos SEED={seed}"]
    words += [f"FAULT={','.join(options.fault) or 'none'}"] if options.fault is not None else []
    words += [f"MINUTES={options.minutes:g}"] if options.minutes != MINUTES else []
    words += [f"BROKERS={options.brokers}"] if options.brokers != 3 else []
    words += [f"TARGET={options.target}"] if options.target != "tinymq" else []
    words += [f"WORKLOAD={','.join(options.workload)}"] if options.workload else []
    words += [f"PACE={options.pace:g}"] if options.pace != 1.0 else []
    words += [f"MUTANT={','.join(options.mutant)}"] if options.mutant else []
    return " ".join(words)


def fault_line(name: str, kind: RealFault) -> str:
    """Return a fault's line for people."""
    seconds = " or ".join(f"{each:g}" for each in sorted(kind.real.lasts_s))
    how = "; ".join(f"{parameter} {', '.join(map(_value, each))}" for parameter, each in kind.real.parameters.items())
    return f"{name:16} {kind.family:8} {seconds + ' s':18} {how}".rstrip()


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(_end(130, "interrupted"))
