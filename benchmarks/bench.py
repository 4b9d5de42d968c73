"""`make bench`: three brokers and one producer, beside the bare limit of the same machine, round by round.

    make bench                                   a table
    python -m benchmarks.bench --json FILE       and everything as JSON

Both systems write the same number of bytes to three files on the same disk, synced on a majority before each answer.
Between brokers both speak framed TCP; from the client the bare one speaks gRPC, and tinymq uses its stream port. Rounds
of the two alternate, the first of each does not count, and medians are compared. Absolute figures mean little on a
shared machine: look at the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.driver import Driver
from benchmarks.measure import AGED_SHARE, BULK_BATCHES, LONE_WRITES, Latency, Round, Summary, aged_memory, memory_bytes

SMALL_RECORDS = 300_000  # per round
TABLE_WIDTH = 130  # into a file or a narrow window, too

progress = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Workload:
    """One line of the table."""

    name: str
    title: str
    unit: str
    system: str  # the driver that runs tinymq's side
    method: str
    count: int
    bare: str | None  # what it is compared with
    by_latency: bool = False  # compare p50, not rates
    wanted: float | None = None  # at least this ratio (at most, by latency); without a bare side, this rate


WORKLOADS = (
    Workload("bulk", "1 KiB records, send_batch of 1,000", "MB/s", system="tinymq", method="write_bulk",
             count=BULK_BATCHES, bare="write_bulk", wanted=0.65),
    Workload("read", "reading them back, to_arrow by 16,000", "MB/s", system="tinymq", method="read",
             count=BULK_BATCHES, bare="read", wanted=0.40),
    Workload("alone", "1 KiB records one at a time, send", "/s", system="tinymq", method="write_alone",
             count=LONE_WRITES, bare="write_alone", by_latency=True, wanted=1.6),
    Workload("alone_async", "the same, AsyncClient.send", "/s", system="async", method="write_alone",
             count=LONE_WRITES, bare="write_alone", by_latency=True),
    Workload("small", "100 B records, producer().send", "/s", system="tinymq", method="write_small",
             count=SMALL_RECORDS, bare=None, wanted=300_000),
    Workload("small_short", "the same, switch_interval_ms=0.5", "/s", system="short", method="write_small",
             count=SMALL_RECORDS, bare=None),
    Workload("read_small", "100 B records, Reader.poll by 1,000", "/s", system="tinymq", method="read_small",
             count=SMALL_RECORDS, bare=None),
    Workload("read_small_short", "the same, switch_interval_ms=0.5", "/s", system="short", method="read_small",
             count=SMALL_RECORDS, bare=None),
    Workload("poll_small", "100 B records, Queue.poll by 1,000", "/s", system="tinymq", method="poll_small",
             count=SMALL_RECORDS, bare=None),
    Workload("poll_small_short", "the same, switch_interval_ms=0.5", "/s", system="short", method="poll_small",
             count=SMALL_RECORDS, bare=None),
)  # fmt: skip


@contextmanager
def cluster(folder: Path, brokers: int = 3) -> Iterator[str]:
    """Run brokers through the public command line until the block ends. Yields their addresses."""
    command = [sys.executable, "-m", "tinymq.cli.main", "dev"]
    where = ["--dir", str(folder / "cluster")]
    try:
        subprocess.run([*command, "up", "-n", str(brokers), *where], check=True, stdout=subprocess.DEVNULL)
        status = subprocess.run([*command, "status", "-o", "json", *where], check=True, capture_output=True, text=True)
        yield ",".join(broker["address"] for broker in json.loads(status.stdout)["brokers"])
    finally:
        subprocess.run([*command, "down", "--purge", *where], check=False, stdout=subprocess.DEVNULL)


def measure(folder: Path, rounds: int, workloads: list[Workload]) -> dict[str, dict[str, Summary]]:
    """Interleaved: each workload's tinymq round directly after the bare limit's."""
    results: dict[str, dict[str, list[Round]]] = {w.name: {"tinymq": [], "bare": []} for w in workloads}
    with ExitStack() as stack:
        servers = stack.enter_context(cluster(folder))
        drivers = {
            "bare": stack.enter_context(Driver("benchmarks.bare", "--dir", str(folder))),
            "tinymq": stack.enter_context(Driver("benchmarks.tinymq_rounds", "--servers", servers)),
            # The switch interval applies to a whole process, so the rows with the shorter one have a process of their
            # own.
            "short": stack.enter_context(
                Driver("benchmarks.tinymq_rounds", "--servers", servers, "--switch-interval-ms", "0.5")
            ),
            "async": stack.enter_context(Driver("benchmarks.tinymq_rounds", "--servers", servers, "--asynchronous")),
        }
        for number in range(rounds + 1):
            for w in workloads:
                progress.print(f"[dim]round {number} of {rounds}: {w.title}", highlight=False)
                if w.bare is not None:
                    results[w.name]["bare"].append(drivers["bare"].run(w.bare, w.count))
                results[w.name]["tinymq"].append(drivers[w.system].run(w.method, w.count))
    return {
        name: {system: Summary.of(some[1:]) for system, some in systems.items() if some}
        for name, systems in results.items()
    }


def ratio(workload: Workload, summaries: dict[str, Summary]) -> float | None:
    """tinymq to the bare limit: of rates, or of p50 latencies."""
    if "bare" not in summaries:
        return None
    ours, bare = summaries["tinymq"], summaries["bare"]
    if workload.by_latency:
        assert ours.latency is not None
        assert bare.latency is not None
        return ours.latency.p50_ms / bare.latency.p50_ms
    return ours.rate / bare.rate


def reached(workload: Workload, summaries: dict[str, Summary]) -> bool | None:
    """Does the row meet its goal? None if it has no goal."""
    if workload.wanted is None:
        return None
    value = ratio(workload, summaries)
    if value is None:
        return summaries["tinymq"].rate >= workload.wanted
    return value <= workload.wanted if workload.by_latency else value >= workload.wanted


def table(workloads: list[Workload], results: dict[str, dict[str, Summary]]) -> Table:
    """Print the table."""
    made = Table(title="tinymq beside the bare limit: medians (and least to most) of the rounds")
    for title in ("workload", "system", "throughput", "p50 ms", "p99 ms", "p99.9 ms", "ratio", "wanted"):
        made.add_column(title, justify="left" if title in ("workload", "system") else "right")
    for w in workloads:
        for system, summary in results[w.name].items():
            ours = system == "tinymq"
            value = ratio(w, results[w.name]) if ours else None
            made.add_row(
                w.title if ours else "",
                system,
                f"{summary.rate:,.0f} {w.unit} ({summary.rate_min:,.0f}–{summary.rate_max:,.0f})",
                *_latency(summary.latency),
                "" if value is None else f"{value:.2f}" + (" of p50" if w.by_latency else ""),
                _wanted(w, results[w.name]) if ours else "",
            )
        made.add_section()
    return made


def _latency(latency: Latency | None) -> tuple[str, str, str]:
    if latency is None:
        return "", "", ""
    return f"{latency.p50_ms:.2f}", f"{latency.p99_ms:.2f}", f"{latency.p999_ms:.2f}"


def _wanted(workload: Workload, summaries: dict[str, Summary]) -> str:
    if workload.wanted is None:
        return ""
    sign = "≤" if workload.by_latency else "≥"
    number = f"{workload.wanted:,.0f}" if workload.bare is None else f"{workload.wanted:.2f}"
    return f"[{'green' if reached(workload, summaries) else 'red'}]{sign} {number}"


def report(
    workloads: list[Workload], results: dict[str, dict[str, Summary]], aged_s: float, load: list[float]
) -> dict[str, object]:
    """Everything, for JSON."""
    return {
        "machine": {
            "cpus": os.cpu_count(),
            "memory_gb": round(memory_bytes() / 1e9, 1),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "aged_s": round(aged_s, 1),
            "load_before_and_after": load,
        },
        "workloads": {
            w.name: {
                "title": w.title,
                "unit": w.unit,
                **{system: summary.as_dict() for system, summary in results[w.name].items()},
                "ratio": ratio(w, results[w.name]),
                "ratio_of": None if w.bare is None else "p50" if w.by_latency else "rate",
                "wanted": w.wanted,
                "reached": reached(w, results[w.name]),
            }
            for w in workloads
        },
    }


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    names = [w.name for w in WORKLOADS]
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="that count, of each system (default: %(default)s)")
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=f"of {', '.join(names)}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")
    parser.add_argument("--dir", type=Path, help="on the disk to be measured; the system's temporary folder by default")
    parser.add_argument("--no-age", action="store_true", help="skip touching the memory first: on a warm machine")
    return parser.parse_args(argv)


def main() -> None:
    args = parse()
    workloads = [w for w in WORKLOADS if w.name in args.only]
    load = [os.getloadavg()[0]]
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tinymq-bench-", dir=args.dir) as name:
        folder = Path(name)
        if not args.no_age:
            progress.print("[dim]touching the memory once, so that no round pays for it later (up to a minute)")
        with aged_memory(folder, 0.0 if args.no_age else AGED_SHARE) as aged_s:
            results = measure(folder, args.rounds, workloads)
    load.append(os.getloadavg()[0])
    Console(width=max(TABLE_WIDTH, progress.width)).print(table(workloads, results))
    progress.print(
        f"[dim]{time.perf_counter() - started:.0f} s; load average {load[0]:.1f} before, {load[1]:.1f} after"
    )
    if args.json:
        args.json.write_text(json.dumps(report(workloads, results, aged_s, load), indent=2) + "\n")


if __name__ == "__main__":
    main()
