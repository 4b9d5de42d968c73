"""`make bench-self REF=commit`: this tree beside another commit, paired and interleaved. Says what moved.

    make bench-self REF=HEAD~5
    python -m benchmarks.self_compare main --pairs 20 --only work passage

The other commit is built from `git archive` into .venv/tools; both run brokers and a client of their own. Rounds
alternate, and so does which build begins. A figure has moved when the interval in which the median of the pairs' ratios
lies with 95 % certainty (by ranks, whatever the distribution) has not 1 in it. Few pairs cannot show a move.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.driver import Driver
from benchmarks.peers.contract import WORKLOADS
from benchmarks.peers.processes import end_on_sigterm
from benchmarks.peers.spread import percentile, spread
from benchmarks.peers.stage import Outcome, run_round
from benchmarks.peers.tinymq_servers import TinymqServers
from tests.upgrade import base_build

ROOT = Path(__file__).resolve().parent.parent
PAIRS = 12
PARTITIONS = 4
SIZE = 1024
RECORDS = 30_000
FEW = 300  # one by one
RATE, OFFERED = 500.0, 1_000
CERTAINTY = 0.95
FIGURES: dict[str, Callable[[Outcome], float]] = {
    "records/s": lambda one: one.measured.rate,
    "client µs": lambda one: one.client_cpu_us,
    "brokers µs": lambda one: one.servers_cpu_us,
    "p50 ms": lambda one: percentile(one.measured.took_ms, 0.5),
    "p99 ms": lambda one: percentile(one.measured.took_ms, 0.99),
}


@dataclass(frozen=True, slots=True)
class Moved:
    """The ratios of one figure, this tree's to the other's, pair by pair."""

    ratios: Sequence[float]

    @property
    def interval(self) -> tuple[float, float]:
        """In which their median lies, with CERTAINTY: the ranks are those of a fair coin's throws."""
        ranked, count = sorted(self.ratios), len(self.ratios)
        rank, outside = 0, 2 * 0.5**count  # the median is beyond all of them
        while rank < (count - 1) // 2 and outside + 2 * math.comb(count, rank + 1) * 0.5**count <= 1 - CERTAINTY:
            rank += 1
            outside += 2 * math.comb(count, rank) * 0.5**count
        if outside > 1 - CERTAINTY:
            return 0.0, math.inf  # so few pairs say nothing
        return ranked[rank], ranked[-1 - rank]

    @property
    def word(self) -> str:
        low, high = self.interval
        return "" if low <= 1 <= high else "moved"


class Build:
    """The brokers and the client of one build."""

    def __init__(self, folder: Path, site: str | None, stack: ExitStack) -> None:
        """`site`: the folder of its packages; None: this tree."""
        # Without PYTHONSAFEPATH, `python -m` would find the packages of the present folder first.
        env = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": ":".join([*([site] if site else []), str(ROOT)])}
        self.servers = TinymqServers(env=env)
        stack.callback(self.servers.stop)
        self.servers.start(folder)
        self.driver = stack.enter_context(
            Driver("benchmarks.peers.client", "tinymq", "--servers", self.servers.addresses, env=env)
        )

    def round(self, number: int, only: Sequence[str]) -> dict[str, Outcome]:
        """Each workload once. Readers read what `produce` wrote."""
        topic = f"t{number}"
        for name in (topic, f"{topic}-lone", f"{topic}-passage"):
            self.driver.ask("make", topic=name, partitions=PARTITIONS)
        found = {w: run_round(self.driver, self.servers, w, **_arguments(w, topic)) for w in ("produce", *only)}
        return {workload: found[workload] for workload in only}


def _arguments(workload: str, topic: str) -> dict[str, object]:
    return {
        "produce": {"topic": topic, "records": RECORDS, "size": SIZE},
        "lone": {"topic": f"{topic}-lone", "records": FEW, "size": SIZE},
        "offer": {"topic": f"{topic}-lone", "records": OFFERED, "size": SIZE, "rate": RATE},
        "read": {"topic": topic, "records": RECORDS},
        "group_read": {"topic": topic, "records": RECORDS, "group": f"{topic}-stream"},
        "work": {"topic": topic, "records": RECORDS, "group": f"{topic}-queue"},
        "passage": {"topic": f"{topic}-passage", "records": OFFERED, "size": SIZE, "rate": RATE, "group": f"{topic}-p"},
    }[workload]


def measure(folder: Path, site: str, pairs: int, only: Sequence[str]) -> list[tuple[dict[str, Outcome], ...]]:
    """Pairs of rounds: this tree's, and the other commit's. A first pair does not count."""
    found = []
    with ExitStack() as stack:
        builds = (Build(folder / "this", None, stack), Build(folder / "other", site, stack))
        for number in range(pairs + 1):
            order = (0, 1) if number % 2 else (1, 0)
            print(f"pair {number} of {pairs}", file=sys.stderr)
            done = {which: builds[which].round(number, only) for which in order}
            if number:
                found.append((done[0], done[1]))
    return found


def table(found: Sequence[tuple[dict[str, Outcome], ...]], other: str) -> Table:
    """One line for each figure of each workload."""
    made = Table(title=f"this tree beside {other}: medians (and least to most) of {len(found)} pairs")
    for title in ("workload", "figure", "this tree", other, "ratio", "95 % interval", ""):
        made.add_column(title)
    for workload in found[0][0]:
        for figure, value in FIGURES.items():
            if "ms" in figure and not found[0][0][workload].measured.took_ms:
                continue
            ours, others = ([value(pair[which][workload]) for pair in found] for which in (0, 1))
            moved = Moved([one / max(another, 1e-9) for one, another in zip(ours, others, strict=True)])
            low, high = moved.interval
            form = "{:,.0f}" if "/s" in figure else "{:,.2f}"
            made.add_row(
                workload, figure, spread(ours, form), spread(others, form),
                f"{statistics.median(moved.ratios):.3f}", f"{low:.3f} to {high:.3f}", moved.word,
            )  # fmt: skip
        made.add_section()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="make bench-self", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ref", help="the other commit: a hash, a branch, HEAD~5")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of rounds (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    args = parser.parse_args()
    end_on_sigterm()
    named = ["git", "rev-parse", "--verify", f"{args.ref}^{{commit}}"]
    done = subprocess.run(named, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"make: no commit {args.ref!r}: {done.stderr.strip()}")
    try:
        site = str(base_build.site(done.stdout.strip()))
    except RuntimeError as error:
        sys.exit(f"make: {error}")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="tinymq-self-") as folder:
        for name in ("this", "other"):
            (Path(folder) / name).mkdir()
        found = measure(Path(folder), site, args.pairs, args.only)
    console = Console(width=130)
    console.print(table(found, args.ref))
    console.print(f"load average {load:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
