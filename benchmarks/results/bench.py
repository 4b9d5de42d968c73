"""`make bench-peers`: throughput, latency and lone writes beside the peers and the bare limit. Writes RESULTS.md.

    make bench-peers                 everything; about forty minutes
    make bench-peers QUICK=1         fewer rounds, sizes and rates; about ten minutes
    python -m benchmarks.results.bench --systems tinymq nats --rounds 2 --page somewhere/RESULTS.md

Rounds of all systems take turns. At a rate, each record is timed from when it was due: no coordinated omission.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import aged_memory
from benchmarks.peers.machine import Machine
from benchmarks.peers.processes import end_on_sigterm
from benchmarks.peers.stage import Outcome, Stage
from benchmarks.peers.systems import SYSTEMS
from benchmarks.peers.tinymq_servers import TinymqServers
from benchmarks.results import hops, page

AGED_SHARE = 0.85
NAMES = ("bare", "tinymq", "kafka", "kafka-synced", "nats", "rabbitmq")
SPEED = {"tinymq": 1.0, "bare": 1.0, "kafka": 1.0, "kafka-synced": 1.0, "nats": 0.25, "rabbitmq": 0.05}  # of records
ROUND_BYTES = 100_000_000  # of values that a fast system writes in a round, at most
ROUND_RECORDS = 200_000
LONE = 300  # writes, one at a time
SIZE = 1024  # of lone writes, and of those at a rate
OFFERED_S = 4.0
WARM_UPS = 1
RATES_UP_TO = {"rabbitmq": 2_000.0}  # beyond it, only its queue would be measured


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a run does."""

    rounds: int
    sizes: tuple[int, ...]
    rates: tuple[float, ...]


WHOLE = Effort(rounds=5, sizes=(100, 1024, 10_240, 102_400), rates=(100.0, 300.0, 1_000.0, 3_000.0))
QUICK = Effort(rounds=2, sizes=(100, 1024, 10_240), rates=(100.0, 1_000.0))


class Case(NamedTuple):
    """One line of a table. `at`: the size of records in bytes, or the offered records per second."""

    workload: str
    system: str
    at: float


@dataclass(slots=True)
class Findings:
    """Everything that a run measured."""

    effort: Effort
    names: dict[str, str] = field(default_factory=dict)
    synced: dict[str, bool] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    outcomes: dict[Case, list[Outcome]] = field(default_factory=dict)
    hops: list[hops.Hops] = field(default_factory=list)  # of tinymq's lone writes, by round


def measure(stage: Stage, effort: Effort) -> Findings:
    """All systems in turns. Which of them begins changes from round to round."""
    found, outcomes = Findings(effort), defaultdict(list)
    names = list(stage.servers)
    for number in range(effort.rounds + WARM_UPS):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            print(f"round {number - WARM_UPS + 1} of {effort.rounds}: {stage.servers[name].name}", file=sys.stderr)
            for case, outcome in _round(stage, name, effort, number):
                if number >= WARM_UPS:
                    outcomes[case].append(outcome)
            if number >= WARM_UPS and name == "tinymq":
                found.hops.append(_hops(stage, f"hops-{number}"))
    for name, servers in stage.servers.items():
        found.names[name], found.synced[name] = servers.name, servers.synced
        found.settings[name] = dict(servers.settings)
    found.outcomes = dict(outcomes)
    return found


def _round(stage: Stage, name: str, effort: Effort, number: int) -> Iterator[tuple[Case, Outcome]]:
    has = SYSTEMS[name].has
    for size in effort.sizes:
        topic = f"size-{size}-{number}"
        records = max(200, int(min(ROUND_RECORDS, ROUND_BYTES // size) * SPEED[name]))
        stage.make(name, topic, 1)
        yield Case("produce", name, size), stage.run(name, "produce", topic=topic, records=records, size=size)
        if has("read") and not (name == "bare" and size != SIZE):
            yield Case("read", name, size), stage.run(name, "read", topic=topic, records=records)
    topic = f"lone-{number}"
    stage.make(name, topic, 1)
    yield Case("lone", name, SIZE), stage.run(name, "lone", topic=topic, records=LONE, size=SIZE)
    for rate in effort.rates if has("offer") else ():
        if rate <= RATES_UP_TO.get(name, rate):
            records = int(rate * OFFERED_S)
            outcome = stage.run(name, "offer", topic=topic, records=records, size=SIZE, rate=rate)
            yield Case("offer", name, rate), outcome


def _hops(stage: Stage, topic: str) -> hops.Hops:
    servers = stage.servers["tinymq"]
    assert isinstance(servers, TinymqServers)
    stage.make("tinymq", topic, 1)
    before = hops.read(servers.metrics_addresses())
    written = stage.run("tinymq", "lone", topic=topic, records=LONE, size=SIZE)
    return hops.between(before, hops.read(servers.metrics_addresses()), written.measured)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="make bench-peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="about ten minutes instead of forty")
    parser.add_argument("--rounds", type=int, help="that count")
    parser.add_argument("--systems", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--dir", type=Path, help="on the disk to be measured; the system's temporary folder by default")
    parser.add_argument("--no-age", action="store_true", help="skip touching the memory first: on a warm machine")
    parser.add_argument("--page", type=Path, default=page.PAGE, help="where the page goes, with its plots beside it")
    return parser.parse_args(argv)


def main() -> None:
    args = parse()
    end_on_sigterm()
    effort = QUICK if args.quick else WHOLE
    effort = Effort(args.rounds or effort.rounds, effort.sizes, effort.rates)
    load, began_s = [os.getloadavg()[0]], time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tinymq-peers-", dir=args.dir) as name:
        with (
            aged_memory(Path(name), 0.0 if args.no_age else AGED_SHARE) as aged_s,
            Stage(Path(name), args.systems) as on,
        ):
            found = measure(on, effort)
        load.append(os.getloadavg()[0])
    page.write(args.page, found, Machine.this(load, aged_s, time.perf_counter() - began_s))
    print(f"wrote {args.page}", file=sys.stderr)


if __name__ == "__main__":
    main()
