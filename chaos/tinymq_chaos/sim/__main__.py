"""`make sim`: fresh seeds for a while, a range of seeds, or one seed with its transcript.

Exit code 1: anomalies; 130: interrupted.
"""

from __future__ import annotations

import argparse
import os
import random
import sys

from tinymq_chaos.names import names_of
from tinymq_chaos.sim.campaign.campaign import PROGRESS_S, Campaign
from tinymq_chaos.sim.campaign.draws import BROKERS
from tinymq_chaos.sim.campaign.plan import SECONDS, Plan
from tinymq_chaos.sim.campaign.reduce import REDUCE_S, reduced
from tinymq_chaos.sim.campaign.run import Result, run
from tinymq_chaos.sim.faults import FAULTS
from tinymq_chaos.sim.virtual.transcript import Transcript
from tinymq_chaos.sim.world.world import LINK_S
from tinymq_chaos.workloads import WORKLOADS

FRESH_SEEDS = 1_000_000_000
TIMING_FOLLOWS = "the timing table follows: half a minute or longer (TIMING=0 leaves it out)"


def parse_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="replay this one, and print its transcript")
    which.add_argument("--seeds", type=_range, help="A:B: from A up to B, without B")
    parser.add_argument("--seconds", type=float, default=60.0, help="real time for fresh seeds")
    parser.add_argument("--brokers", type=int, choices=range(1, 8), metavar="1..7", help="else the seed's choice")
    parser.add_argument("--run-s", type=float, default=SECONDS, help="virtual seconds of one run, about")
    parser.add_argument("--workloads", type=names_of(WORKLOADS), default=(), help="names, with commas")
    parser.add_argument("--faults", type=names_of(FAULTS), help="kinds, with commas; none: none")
    parser.add_argument("--acts", type=_numbers, help="of the schedule of faults only these, by number; none: none")
    parser.add_argument("--replicas", type=int, choices=range(1, 6), help="of each partition, else the seed's choice")
    parser.add_argument("--gap-s", type=float, help="between two pairs of faults, on average")
    parser.add_argument("--quota", type=int, help="bytes per second of each client; 0: none")
    parser.add_argument(
        "--threaded", type=float, help="share of the clients that are synchronous, on threads; else the seed's choice"
    )
    parser.add_argument(
        "--reduce-s", type=float, help=f"CPU seconds to reduce a failure; {REDUCE_S:g}, and 0 with --seed"
    )
    parser.add_argument("--segment-bytes", type=int)
    parser.add_argument("--latency-s", type=float, default=LINK_S[0])
    parser.add_argument(
        "--registry", choices=("replicated", "memory"), default="replicated", help="memory: of 1 broker"
    )
    parser.add_argument("--pace", type=float, help="factor for the pauses of workloads")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--progress-s", type=float, default=PROGRESS_S, help="least time between two lines of progress")
    parser.add_argument("--json", help="a file to which each run's result is added, as a line")
    parser.add_argument(
        "--timing", type=int, default=4, help="seeds for each row of the timing table at the end; 0: none"
    )
    return parser.parse_args(arguments)


def _range(text: str) -> range:
    try:
        first, end = map(int, text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no A:B, as in 0:1000") from None
    return range(first, end)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return () if text == "none" else tuple(map(int, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers, as in 0,3") from None


def _plan(options: argparse.Namespace, seed: int) -> Plan:
    nodes = 1 if options.registry == "memory" else options.brokers or BROKERS.of(seed)
    return Plan(
        seed,
        nodes,
        options.run_s,
        workloads=options.workloads,
        faults=options.faults,
        segment_bytes=options.segment_bytes,
        latency_s=options.latency_s,
        pace=options.pace,
        registry=options.registry,
        replicas=options.replicas,
        gap_s=options.gap_s,
        client_bytes_per_s=options.quota,
        threaded=options.threaded,
        acts=options.acts,
    )


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":  # with random hashes every process would walk its sets in another order
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tinymq_chaos.sim", *sys.argv[1:]])
    options = parse_options(sys.argv[1:])
    if options.seed is not None:
        return _replay(_plan(options, options.seed), options.reduce_s or 0.0)
    reduce_s = REDUCE_S if options.reduce_s is None else options.reduce_s
    if options.seeds is not None:
        plans = (_plan(options, seed) for seed in options.seeds)
        campaign = Campaign(plans, None, options.processes, options.json, options.progress_s, reduce_s)
    else:
        first = random.SystemRandom().randrange(FRESH_SEEDS)
        plans = (_plan(options, seed) for seed in range(first, first + FRESH_SEEDS))
        campaign = Campaign(plans, options.seconds, options.processes, options.json, options.progress_s, reduce_s)
    failed = campaign.run()
    if options.timing and not failed:
        from tinymq_chaos.sim.campaign import timing

        print(TIMING_FOLLOWS, flush=True)
        with Transcript().listening():  # log lines of brokers would stand between the rows
            timing.print_table(options.timing)
    return 1 if failed else 0


def verdict(result: Result) -> str:
    """Return the last lines of a replay, so that nobody searches the transcript for the result."""
    if not result.anomalies:
        return "no anomalies"
    count = len(result.anomalies)
    return "\n    ".join([f"{count} {'anomaly' if count == 1 else 'anomalies'}:", *result.anomalies])


def _replay(plan: Plan, reduce_s: float) -> int:
    result = run(plan)
    if result.anomalies and reduce_s > 0:
        result = reduced(result, reduce_s)
        print(f"reduced: {result.plan.command}")
    print("\n".join(result.transcript))
    print(f"{result.virtual_s:.1f} virtual seconds in {result.real_s:.1f} s; sha256 {result.digest}")
    print(verdict(result))
    return 1 if result.anomalies else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stdout.flush()
        os._exit(130)
