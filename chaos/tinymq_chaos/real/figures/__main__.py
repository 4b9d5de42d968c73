"""`make figures`: measure what a client sees of failures, over many of them; print the table of docs/reliability.md.

It uses real brokers and real signals. 100 failovers took 5 minutes on two quiet cores, and 9 on busy ones; as many
unseen ones took 6; all figures together take about 20. Exit code 1: a figure misses its bound; 130: interrupted. Make
turns both into 2; the table shows what missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from tinymq.client import AsyncClient
from tinymq_chaos.real.cluster.cluster import Cluster
from tinymq_chaos.real.figures import measures
from tinymq_chaos.real.figures.figure import Figure, table
from tinymq_chaos.real.figures.load import Load
from tinymq_chaos.real.figures.measures import PARTITIONS, TOPIC, FigureTrial

BROKERS = 3
STRAIGHT = {"advertise": "", "stream_advertise": "", "dial": [], "forward": []}  # settings without proxies
THROUGH_PROXIES = {"failover-unseen", "chain"}
Measure = Callable[[FigureTrial], Awaitable[Figure]]


def measured(options: argparse.Namespace) -> dict[str, Measure]:
    """Return the figures by name, in the order of the measurements."""
    return {
        "failover": partial(measures.failover, failures=options.failovers),
        "failover-unseen": partial(measures.failover_unseen, failures=options.failovers),
        "paused-leader": partial(measures.paused_leader, failures=options.pauses),
        "chain": partial(measures.chain, seconds=options.chain_s),
        "rolling-restart": partial(measures.rolling_restart, rounds=options.rolls),
        "cold-start": partial(measures.cold_start, rounds=options.cold_starts),
    }


def parse_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make figures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="of figures; none: all of them (--help of a wrong one lists them)")
    parser.add_argument("--failovers", type=int, default=100, help="kills of a leader (100)")
    parser.add_argument("--pauses", type=int, default=10, help="leaders stopped for six seconds (10)")
    parser.add_argument("--chain-s", type=float, default=60.0, help="how long the chained partition lasts (60)")
    parser.add_argument("--rolls", type=int, default=5, help="rolling restarts of all brokers (5)")
    parser.add_argument("--cold-starts", type=int, default=5, help="kills of all brokers, with 1 GiB of log each (5)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--json", type=Path, help="a file for the figures with all their samples")
    options = parser.parse_args(arguments)
    known = measured(options)
    for name in options.names:
        if name not in known:
            parser.error(f"{name!r} is not one of {', '.join(known)}")
    return options


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


async def take(name: str, measure: Measure, folder: Path, rng: random.Random) -> Figure:
    """Measure a figure on a cluster of its own.

    A proxy keeps accepting connections to a dead broker, where the kernel would refuse them. So proxies stand in
    between only for the figures that need them.
    """
    say(f"{name}: starting {BROKERS} brokers")
    proxied = name in THROUGH_PROXIES
    cluster = await asyncio.to_thread(partial(Cluster, folder, BROKERS, settings=None if proxied else STRAIGHT))
    servers = cluster.servers if proxied else cluster.direct
    try:
        await asyncio.to_thread(cluster.up)
        async with AsyncClient(servers, request_timeout_ms=30_000) as client:
            await client.admin.create_topic(TOPIC, PARTITIONS, BROKERS)
            load = Load(client, TOPIC, PARTITIONS)
            return await measure(FigureTrial(cluster, servers, client, load, rng, partial(_say_of, name)))
    finally:
        await asyncio.to_thread(cluster.close)


def _say_of(name: str, line: str) -> None:
    say(f"{name}: {line}")


def main() -> int:
    options = parse_options(sys.argv[1:])
    rng = random.Random(options.seed)
    say(f"seed {options.seed}; {os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}")
    figures: list[Figure] = []
    for name, measure in measured(options).items():
        if options.names and name not in options.names:
            continue
        with tempfile.TemporaryDirectory(prefix="tinymq-figures-") as folder:
            figures.append(asyncio.run(take(name, measure, Path(folder) / "cluster", rng)))
        say(f"{name}: {', '.join(map(str, figures[-1].parts))}")
        if options.json is not None:  # after each figure, so that an interrupt loses one
            options.json.write_text(json.dumps([figure.values() for figure in figures], indent=1) + "\n")
    print(table(figures))
    return 0 if all(figure.reached for figure in figures) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted: brokers and proxies are stopped", file=sys.stderr)
        sys.exit(130)
