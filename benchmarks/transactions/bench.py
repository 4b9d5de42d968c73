"""`make bench-transactions`: transactions beside Kafka's, delayed messages, Spark's sink. Writes TRANSACTIONS.md.

    make bench-transactions                   everything; about twenty minutes, most of them for the delayed messages
    make bench-transactions QUICK=1           fewer rounds, 20,000 delayed messages; about three minutes
    python -m benchmarks.transactions.bench --only latency throughput --systems tinymq kafka --rounds 3 --page X.md

Rounds of all systems take turns, so figures that are compared come from the same seconds. The page names the rows that
a run left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.measure import aged_memory
from benchmarks.peers.machine import Machine
from benchmarks.peers.processes import end_on_sigterm
from benchmarks.peers.stage import Stage
from benchmarks.peers.tinymq_servers import TinymqServers, started
from benchmarks.transactions import beside, delayed, page, plan, sink

ROWS = (*plan.ROWS, "delayed", "sink")
AGED_SHARE = 0.85


@dataclass(slots=True)
class Findings:
    """Everything that a run measured. A field that is empty or None was left out, or failed (`broken`)."""

    effort: plan.Effort
    names: dict[str, str] = field(default_factory=dict)  # of systems, with versions
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    beside: beside.Results = field(default_factory=dict)
    delayed: delayed.Delayed | None = None
    sink: sink.Sinks = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)  # rows that failed, and why


def run(folder: Path, rows: list[str], systems: list[str], effort: plan.Effort) -> Findings:
    """Run the rows. One that fails is noted, and the others still run."""
    ours = TinymqServers()
    found = Findings(effort, names={"tinymq": ours.name}, settings={"tinymq": dict(ours.settings)})
    beside_rows = [row for row in rows if row in plan.ROWS]

    def run_beside(own: Path) -> None:
        with Stage(own, systems) as stage:
            found.names |= {name: servers.name for name, servers in stage.servers.items()}
            found.settings |= {name: dict(servers.settings) for name, servers in stage.servers.items()}
            beside.measure(stage, beside_rows, effort, found.beside)

    def run_delayed(own: Path) -> None:
        with started(own) as servers:
            found.delayed = delayed.measure(servers, effort.delayed)

    def run_sink(own: Path) -> None:
        with started(own) as servers:
            found.sink = sink.measure(servers.addresses, own, effort.sink_rows, effort.rounds)

    for name, part, wanted in (
        ("beside Kafka", run_beside, bool(beside_rows)),
        ("sink", run_sink, "sink" in rows),
        ("delayed", run_delayed, "delayed" in rows),
    ):
        if not wanted:
            continue
        began_s = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=folder) as own:
            try:
                part(Path(own))
            except Exception as error:
                print(f"{name} failed: {error!r}", file=sys.stderr)
                found.broken[name] = repr(error)[:300]
        print(f"{name}: {time.perf_counter() - began_s:.0f} s", file=sys.stderr)
    return found


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="make bench-transactions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="about three minutes instead of twenty")
    parser.add_argument("--rounds", type=int, help="that count")
    parser.add_argument("--delayed", type=int, metavar="N", help="messages that wait")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--systems", nargs="+", choices=plan.SYSTEMS, default=list(plan.SYSTEMS))
    parser.add_argument("--dir", type=Path, help="on the disk to be measured; the system's temporary folder by default")
    parser.add_argument("--no-age", action="store_true", help="skip touching the memory first: on a warm machine")
    parser.add_argument("--page", type=Path, default=page.PAGE, help="where the page goes, with its plot beside it")
    return parser.parse_args(argv)


def effort_of(args: argparse.Namespace) -> plan.Effort:
    """How much the command line asks for."""
    effort = plan.QUICK if args.quick else plan.WHOLE
    return replace(effort, rounds=args.rounds or effort.rounds, delayed=args.delayed or effort.delayed)


def main() -> None:
    args = parse()
    end_on_sigterm()
    load, began_s = [os.getloadavg()[0]], time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tinymq-transactions-", dir=args.dir) as name:
        with aged_memory(Path(name), 0.0 if args.no_age else AGED_SHARE) as aged_s:
            found = run(Path(name), args.only, args.systems, effort_of(args))
        load.append(os.getloadavg()[0])
    machine = Machine.this(load, aged_s, time.perf_counter() - began_s)
    page.write(args.page, found, machine, [row for row in ROWS if row not in args.only])
    print(f"wrote {args.page}", file=sys.stderr)


if __name__ == "__main__":
    main()
