"""Run trials of NATS JetStream, and print a table of the observations.

    PYTHONPATH=chaos python -m tinymq_chaos.real.peers kill_leader pause,isolate --seeds 1:4 --sync 2m,always

One trial for each argument (a fault, or several with commas, one after another), sync setting and seed, each on a fresh
cluster of three servers. Everything is written below --out. Exit status: 0 whatever the peer did, 1 if a trial could
not run or could not be judged, 2 for a wrong command.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from tinymq_chaos.checkers import AnomalyKind
from tinymq_chaos.real.peers import loop_disk
from tinymq_chaos.real.peers.nats_config import SYNCS
from tinymq_chaos.real.peers.nats_faults import KINDS, LOOP_DISKS
from tinymq_chaos.real.peers.nats_system import SUITED
from tinymq_chaos.real.peers.trial import Trial, TrialPlan, run

HEAD = (
    "| faults | sync_interval | trials | faults done | acknowledged | unknown | failed | lost | duplicates | other "
    "anomalies | longest pause of writes, median and most |\n|" + "---|" * 11
)


def main(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # an orderly end unmounts the disks
    folder = Path(args.out or tempfile.mkdtemp(prefix="tinymq-peers-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"machine: {os.cpu_count()} cores, {platform.platform()}; everything is in {folder}", file=sys.stderr)
    trials: list[Trial] = []
    broken = 0
    for plan in _plans(args):
        print(plan.command, file=sys.stderr)
        try:
            trial = _one(plan, folder)
        except (RuntimeError, AssertionError, TimeoutError) as error:
            print(f"could not be run: {error!r}", file=sys.stderr)
            broken += 1
            continue
        broken += bool(trial.problems)
        trials.append(trial)
    print("\n".join(table(trials)))
    return 1 if broken else 0


def _one(plan: TrialPlan, folder: Path) -> Trial:
    own = folder / f"{'-'.join(plan.faults)}-{plan.sync}-{plan.seed}"
    own.mkdir()
    trial = asyncio.run(run(plan, own, lambda words: print(f"  {words}", file=sys.stderr)))
    summary = {**asdict(trial), "command": plan.command, "counts": trial.counts}
    (own / "trial.json").write_text(json.dumps(summary, indent=1, default=str))
    print(
        f"  {trial.acknowledged} records acknowledged, {trial.unknown} unknown, {trial.failed} failed; longest pause "
        f"{trial.pause_s:.1f} s; {dict(trial.counts) or 'no anomaly'}; lost up to {trial.lost_s:.1f} s back"
        f"{'; ' + '; '.join(trial.problems) if trial.problems else ''}",
        file=sys.stderr,
    )
    return trial


def table(trials: Iterable[Trial]) -> list[str]:
    """Return the Markdown table, with one row for each kind of trial."""
    rows: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        rows.setdefault((", ".join(trial.plan.faults), trial.plan.sync), []).append(trial)
    lines = [HEAD]
    for (faults, sync), found in rows.items():
        counts = sum((trial.counts for trial in found), Counter[str]())
        lost, twice = counts.pop(AnomalyKind.LOST_WRITE, 0), counts.pop(AnomalyKind.DUPLICATE, 0)
        others = ", ".join(f"{kind}: {count}" for kind, count in counts.items()) or "none"
        pauses = [trial.pause_s for trial in found]
        values = (
            faults, sync, len(found), sum(len(t.faults) for t in found), sum(t.acknowledged for t in found),
            sum(t.unknown for t in found), sum(t.failed for t in found), lost, twice, others,
            f"{median(pauses):.1f} s, {max(pauses):.1f} s",
        )  # fmt: skip
        lines.append("| " + " | ".join(f"{v:,}" if isinstance(v, int) else v for v in values) + " |")
    return lines


def _plans(args: argparse.Namespace) -> list[TrialPlan]:
    first, _, end = args.seeds.partition(":")
    seeds = range(int(first), int(end or int(first) + 1))
    return [
        TrialPlan(
            seed,
            tuple(faults.split(",")),
            args.times,
            sync=sync,
            before_s=args.before_s,
            gap_s=args.gap_s,
            workloads=tuple(args.workloads),
        )
        for seed in seeds
        for faults in args.faults
        for sync in args.sync
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tinymq_chaos.real.peers", description=__doc__.split("\n")[0])
    parser.add_argument("faults", nargs="+", type=_faults, help=f"of {', '.join(_possible())}")
    parser.add_argument("--seeds", default="1", help="one, or a range FIRST:END")
    parser.add_argument("--sync", type=_some(SYNCS), default=SYNCS, help="2m, always or both (default)")
    parser.add_argument("--times", type=int, default=1, help="that a trial does its faults (default 1)")
    parser.add_argument("--before-s", type=float, default=2.0, help="of load, before the first fault (default 2)")
    parser.add_argument("--gap-s", type=float, default=6.0, help="between two faults (default 6)")
    parser.add_argument("--workloads", type=_some(SUITED), default=("idempotent", "lone"), help=", ".join(SUITED))
    parser.add_argument("--out", help="a folder; default: a new one")
    return parser


def _possible() -> list[str]:
    has = frozenset() if loop_disk.why_not() else frozenset({LOOP_DISKS})
    return [name for name, kind in KINDS.items() if kind.real.needs <= has]


def _faults(words: str) -> str:
    for name in words.split(","):
        if name not in KINDS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(_possible())}")
        if name not in _possible():
            reason = loop_disk.why_not() if LOOP_DISKS in KINDS[name].real.needs else "it is made for tinymq's brokers"
            raise argparse.ArgumentTypeError(f"{name} cannot be done here: {reason}")
    return words


def _some(of: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def chosen(words: str) -> tuple[str, ...]:
        found = tuple(words.split(","))
        if unknown := set(found) - set(of):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: none of {', '.join(of)}")
        return found

    return chosen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
