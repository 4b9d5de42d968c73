"""`python -m benchmarks.client_cpu`: the processor time that the client's process spends per record.

    python -m benchmarks.client_cpu                          this tree
    python -m benchmarks.client_cpu --other ../before        this tree beside another checkout
    python -m benchmarks.client_cpu --only send iterate --rounds 30

One broker runs on this machine, and one client process for each tree. Their rounds alternate, and so does which tree
begins. The table has medians; the ratio is the median of the ratios of the rounds that belong together. Processor time
is affected less by other work on the machine than time is, but it is affected: caches and clock rates are shared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.table import Table

from benchmarks.bench import cluster

ROUNDS = 15
RECORDS = 100_000
HERE = Path(__file__).resolve().parent.parent

WORKLOADS = {
    "send": "100 B, Producer.send",
    "send_keyed": "the same with keys",
    "lone": "100 B, Client.send, one at a time",
    "async_send": "100 B, AsyncProducer.send",
    "async_64": "100 B, AsyncClient.send of 64 tasks",
    "async_1000": "100 B, AsyncClient.send of 1,000 tasks",
    "iterate": "100 B, for message in Reader",
    "poll": "100 B, Reader.poll by 1,000",
    "queue_poll": "100 B, Queue.poll by 1,000",
    "group": "100 B, for message in Consumer, of a group",
    "group_poll": "100 B, Consumer.poll by 1,000",
    "async_iterate": "100 B, async for message in AsyncReader",
    "arrow": "1 KiB, Reader.to_arrow by 16,000",
}


@dataclass(frozen=True, slots=True)
class Compared:
    """The rounds of one workload: nanoseconds per record, those of the two trees in pairs."""

    ours: Sequence[float]
    others: Sequence[float]  # empty without another tree

    @property
    def ratio(self) -> float | None:
        """Ours to the other's: the median over the pairs; None without another tree."""
        pairs = zip(self.ours, self.others, strict=True) if self.others else ()
        ratios = [mine / other for mine, other in pairs]
        return statistics.median(ratios) if ratios else None


class Tree:
    """The client process of one checkout. Leaving ends it."""

    def __init__(self, folder: Path, servers: str, records: int) -> None:
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        rounds = HERE / "benchmarks" / "client_cpu_rounds.py"
        command = [sys.executable, "-P", str(rounds), servers, str(records)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder
        )

    def run(self, workload: str, records: int) -> float:
        """Run one round. Returns nanoseconds per record."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"workload": workload, "records": records}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the client's process ended during {workload}; what it said is above")
        return float(json.loads(line)["ns"])

    def __enter__(self) -> Tree:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(folder: Path, other: Path | None, only: Sequence[str], rounds: int, records: int) -> dict[str, Compared]:
    """Run the rounds of all workloads. The first one of each does not count."""
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in only}
    with ExitStack() as stack:
        servers = stack.enter_context(cluster(folder, brokers=1))
        trees = [stack.enter_context(Tree(HERE, servers, records))]
        if other is not None:
            trees.append(stack.enter_context(Tree(other.resolve(), servers, records)))
        for number in range(rounds + 1):
            for name in only:
                order = list(zip(trees, found[name], strict=False))
                for tree, results in order if number % 2 else reversed(order):
                    results.append(tree.run(name, records))
    return {name: Compared(ours[1:], others[1:]) for name, (ours, others) in found.items()}


def table(found: dict[str, Compared]) -> Table:
    """Return the table for people."""
    made = Table(title="processor time of the client's process, ns per record: medians (and least to most)")
    for title in ("workload", "this tree", "the other", "ratio"):
        made.add_column(title, justify="left" if title == "workload" else "right")
    for name, compared in found.items():
        ratio = compared.ratio
        made.add_row(
            WORKLOADS[name],
            _spread(compared.ours),
            _spread(compared.others),
            "" if ratio is None else f"{ratio:.2f}",
        )
    return made


def _spread(ns: Sequence[float]) -> str:
    return f"{statistics.median(ns):,.0f} ({min(ns):,.0f}–{max(ns):,.0f})" if ns else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, metavar="CHECKOUT", help="another tree, whose client is measured beside")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME",
                        help=f"of {', '.join(WORKLOADS)}")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="that count, of each tree (default: %(default)s)")
    parser.add_argument("--records", type=int, default=RECORDS, help="per round (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tinymq-cpu-") as folder:
        found = measure(Path(folder), args.other, args.only, args.rounds, args.records)
    Console(width=max(110, Console().width)).print(table(found))


if __name__ == "__main__":
    main()
