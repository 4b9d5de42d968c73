"""`make bench-groups`: consumer groups and work queues beside their peers. Writes benchmarks/GROUPS.md and its plots.

    make bench-groups                     everything; about an hour
    make bench-groups QUICK=1             fewer rounds and kills, 200,000 waiting records; about ten minutes
    python -m benchmarks.groups.bench --only throughput --systems tinymq nats --rounds 2 --page somewhere/GROUPS.md

The page says what a run left out. Processor time per record is what other work on the machine changes least.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.groups import failures, loads, page, throughput
from benchmarks.measure import aged_memory
from benchmarks.peers.machine import Machine
from benchmarks.peers.processes import end_on_sigterm
from benchmarks.peers.stage import Stage
from benchmarks.peers.tinymq_servers import TinymqServers, started

SYSTEMS = ("tinymq", "nats", "rabbitmq", "kafka")
PARTS = ("throughput", "worker_killed", "member_leaves", "leader_killed", "idle_groups", "waiting")
AGED_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a run does."""

    rounds: int
    worker_kills: int
    leaves: int
    leader_kills: int
    waiting: int
    waiting_delay_s: float


WHOLE = Effort(rounds=7, worker_kills=30, leaves=50, leader_kills=20, waiting=1_000_000, waiting_delay_s=120.0)
QUICK = Effort(rounds=3, worker_kills=6, leaves=10, leader_kills=5, waiting=200_000, waiting_delay_s=30.0)


@dataclass(slots=True)
class Findings:
    """Everything that a run measured. A field that is empty or None was left out, or failed (`broken`)."""

    effort: Effort
    throughput: throughput.Results = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # of systems, with versions
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    worker_killed: list[failures.WorkerKilled] = field(default_factory=list)
    member_leaves: list[float] = field(default_factory=list)
    leader_killed: list[failures.LeaderKilled] = field(default_factory=list)
    idle: loads.IdleGroups | None = None
    waiting: loads.Waiting | None = None
    broken: dict[str, str] = field(default_factory=dict)  # parts that failed, and why


def run(folder: Path, parts: list[str], systems: list[str], effort: Effort) -> Findings:
    """Run the parts in turn. A part that fails is noted, and the others still run."""
    found = Findings(effort)
    runner = asyncio.Runner()  # one loop for all: gRPC's own threads know the first one only
    alone: dict[str, Callable[[TinymqServers], None]] = {
        "worker_killed": lambda servers: _repeat(
            effort.worker_kills,
            lambda n: found.worker_killed.append(runner.run(failures.kill_worker(servers.addresses, n))),
        ),
        "member_leaves": lambda servers: _repeat(
            effort.leaves, lambda n: found.member_leaves.extend(runner.run(failures.leave_group(servers.addresses, n)))
        ),
        "leader_killed": lambda servers: _repeat(
            effort.leader_kills, lambda n: found.leader_killed.append(runner.run(failures.kill_leader(servers, n)))
        ),
        "idle_groups": lambda servers: setattr(found, "idle", runner.run(loads.idle_groups(servers))),
        "waiting": lambda servers: setattr(
            found, "waiting", loads.waiting(servers, effort.waiting, effort.waiting_delay_s)
        ),
    }
    for part in parts:
        began_s = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=folder) as own:
            try:
                if part == "throughput":
                    with Stage(Path(own), systems) as stage:
                        found.names = {name: servers.name for name, servers in stage.servers.items()}
                        found.settings = {name: dict(servers.settings) for name, servers in stage.servers.items()}
                        throughput.measure(stage, effort.rounds, found.throughput)
                else:
                    with started(Path(own)) as servers:
                        alone[part](servers)
            except Exception as error:
                print(f"{part} failed: {error!r}", file=sys.stderr)
                found.broken[part] = repr(error)[:300]
        print(f"{part}: {time.perf_counter() - began_s:.0f} s", file=sys.stderr)
    runner.close()
    return found


def _repeat(times: int, run_one: Callable[[int], None]) -> None:
    for number in range(times):
        run_one(number)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="make bench-groups", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="about ten minutes instead of an hour")
    parser.add_argument("--rounds", type=int, help="of throughput, that count")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--dir", type=Path, help="on the disk to be measured; the system's temporary folder by default")
    parser.add_argument("--no-age", action="store_true", help="skip touching the memory first: on a warm machine")
    parser.add_argument("--page", type=Path, default=page.PAGE, help="where the page goes, with its plots beside it")
    return parser.parse_args(argv)


def main() -> None:
    args = parse()
    end_on_sigterm()
    effort = QUICK if args.quick else WHOLE
    if args.rounds:
        effort = Effort(args.rounds, *[getattr(effort, name) for name in Effort.__slots__[1:]])
    load = [os.getloadavg()[0]]
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tinymq-groups-", dir=args.dir) as name:
        with aged_memory(Path(name), 0.0 if args.no_age else AGED_SHARE) as aged_s:
            found = run(Path(name), args.only, args.systems, effort)
        load.append(os.getloadavg()[0])
    machine = Machine.this(load, aged_s, time.perf_counter() - began_s)
    page.write(args.page, found, machine, [part for part in PARTS if part not in args.only])
    print(f"wrote {args.page}", file=sys.stderr)


if __name__ == "__main__":
    main()
