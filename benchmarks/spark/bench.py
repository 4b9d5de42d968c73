"""`make bench-spark`: Spark reads the same rows from tinymq's followers, from Parquet files and from Kafka.

    make bench-spark                             2 GB of records of 1 KiB, a table
    make bench-spark RECORDS=200000              fewer records
    make bench-spark JSON=FILE                   and everything as JSON

Three brokers of tinymq, three of Kafka (from Maven) and one Spark session with two cores share this machine. Rounds of
the three sources alternate. The first three rounds of scans do not count, because the JVM compiles its code in them.
Medians are compared. Absolute figures mean little on a shared machine: look at the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.bench import cluster
from benchmarks.measure import RECORD_BYTES
from benchmarks.peers import jars
from benchmarks.peers.kafka_servers import KafkaServers
from benchmarks.spark import data, scans
from benchmarks.spark.producing import Producing
from benchmarks.spark.sending import Sending
from tests.spark import java_setup

LIMIT = "bytes of another process, the limit of Python"
TOPIC, FLIGHTS, WIDE = "rows", "flights", "wide"
RECORDS = 2_000_000
WIDE_PARTITIONS = 1_000
ALONE_S = 10.0
WARM_UPS = 3  # rounds of scans that do not count: each source still gets quicker in its second and third
SMALL_SHARE = 10  # the driver's memory after a scan of a tenth is compared with that after all

progress = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. `wanted` is a bound in `unit`: at least, or at most."""

    what: str
    value: float
    unit: str
    wanted: float | None
    at_most: bool
    samples: list[float]

    @property
    def reached(self) -> bool | None:
        if self.wanted is None:
            return None
        return self.value <= self.wanted if self.at_most else self.value >= self.wanted


def measure(folder: Path, records: int, rounds: int) -> list[Figure]:
    """Run everything. `folder` is on the disk to measure."""
    java_home = java_setup.home()
    with ExitStack() as stack:
        ours = stack.enter_context(cluster(folder))
        data.load_tinymq(ours, TOPIC, records)
        data.load_flights(ours, FLIGHTS)
        progress.print("starting Spark and three brokers of Kafka, and filling both from Spark", highlight=False)
        spark = scans.session(folder, java_home, jars.connector())
        stack.callback(spark.stop)
        kafka = KafkaServers()
        stack.callback(kafka.stop)
        kafka.start(folder)
        kafka.create_topic(TOPIC, data.PARTITIONS)
        parquet = data.load_parquet(scans.tinymq(spark, ours, TOPIC), folder)
        data.load_kafka(spark, parquet, kafka.addresses, TOPIC)
        sending = stack.enter_context(Sending(folder))
        sources = scans.Sources(spark, parquet, ours, kafka.addresses, TOPIC, sending.port)
        for name, rows in (("Parquet", sources.read_parquet()), ("Kafka", sources.read_kafka())):
            assert rows.count() == records, f"{name} has {rows.count()} of {records} rows"
        return [
            *_scans(sources, records, rounds),
            *_producers(sources, rounds),
            *_json(spark, ours, rounds),
            *_micro_batches(spark, ours, folder),
            *_driver(sources, records),
            *_plans(ours, rounds),
        ]


def _scans(sources: scans.Sources, records: int, rounds: int) -> list[Figure]:
    kinds: dict[str, Callable[[], float]] = {
        "Parquet": lambda: scans.timed(sources.read_parquet()),
        "Kafka": lambda: scans.timed(sources.read_kafka()),
        "tinymq, followers": lambda: scans.timed(sources.read_tinymq()),
        "tinymq, leaders": lambda: scans.timed(sources.read_tinymq("leader")),
        LIMIT: lambda: scans.timed(sources.read_ready(records, sources.sending)),
        "batches that the task has at hand": lambda: scans.timed(sources.read_ready(records)),
    }
    took = _rounds("scan", kinds, rounds, WARM_UPS)
    rates = {name: [records * RECORD_BYTES / s / 1e6 for s in some] for name, some in took.items()}
    medians = {name: statistics.median(some) for name, some in rates.items()}
    figures = [Figure(f"scan: {name}", medians[name], "MB/s", None, False, rates[name]) for name in kinds]
    for name, wanted in (("Parquet", 0.6), ("Kafka", 1.5), (LIMIT, None)):
        ratio = medians["tinymq, followers"] / medians[name]
        figures.append(Figure(f"scan: tinymq's followers to {name}", ratio, "times", wanted, False, []))
    figures.append(Figure("scan: that limit to Kafka", medians[LIMIT] / medians["Kafka"], "times", None, False, []))
    return figures


def _producers(sources: scans.Sources, rounds: int) -> list[Figure]:
    """The latency of one producer that sends record by record, beside scans of all rows and alone."""
    p99s: dict[str, list[float]] = {"no scan": [], "a scan from followers": [], "a scan from leaders": []}
    for number in range(rounds + 1):
        for name, some in p99s.items():
            progress.print(f"[dim]round {number} of {rounds}: a producer beside {name}", highlight=False)
            with Producing(sources.tinymq, TOPIC) as producing:
                if name == "no scan":
                    time.sleep(ALONE_S)
                else:
                    scans.timed(sources.read_tinymq(name.split()[-1].removesuffix("s")))
            some.append(producing.latency.p99_ms)
    kept = {name: some[1:] for name, some in p99s.items()}
    return [
        Figure(f"p99 of a producer beside {name}", statistics.median(some), "ms", None, True, some)
        for name, some in kept.items()
    ]


def _plans(servers: str, rounds: int) -> list[Figure]:
    """Runs last, because 3,000 replicas are work for brokers even without writes."""
    progress.print(f"[dim]making a topic of {WIDE_PARTITIONS:,} partitions", highlight=False)
    data.load_wide(servers, WIDE, WIDE_PARTITIONS)
    took = _rounds("planning", {"plan": lambda: scans.planning_s(servers, WIDE)}, rounds)["plan"]
    what = f"planning a batch over {WIDE_PARTITIONS:,} partitions"
    return [Figure(what, statistics.median(took), "s", 1.0, True, took)]


def _json(spark: SparkSession, servers: str, rounds: int) -> list[Figure]:
    took: dict[str, list[float]] = {"valueFormat=json": [], "from_json": []}
    for number in range(rounds + 1):
        progress.print(f"[dim]round {number} of {rounds}: JSON values", highlight=False)
        for name, seconds in zip(took, scans.json_s(spark, servers, FLIGHTS), strict=True):
            took[name].append(seconds)
    ours, theirs = (some[1:] for some in took.values())
    ratio = statistics.median(theirs) / statistics.median(ours)
    return [
        Figure("336,776 JSON values: valueFormat=json", statistics.median(ours), "s", None, True, ours),
        Figure("336,776 JSON values: from_json", statistics.median(theirs), "s", None, True, theirs),
        Figure("JSON values: ours to from_json", ratio, "times", 1.0, False, []),
    ]


def _micro_batches(spark: SparkSession, servers: str, folder: Path) -> list[Figure]:
    progress.print("[dim]an empty micro-batch", highlight=False)
    return [Figure("an empty micro-batch", scans.empty_batch_s(spark, servers, TOPIC, folder), "s", 0.3, True, [])]


def _driver(sources: scans.Sources, records: int) -> list[Figure]:
    """After scans of a tenth of the rows and of all: the extra bytes per row show whether the driver keeps rows."""
    progress.print("[dim]the driver's memory", highlight=False)
    last = {str(p): records // data.PARTITIONS // SMALL_SHARE for p in range(data.PARTITIONS)}
    ends = json.dumps({TOPIC: last})
    grown = scans.driver_growth_bytes(
        sources.spark,
        lambda: scans.tinymq(sources.spark, sources.tinymq, TOPIC, endingOffsets=ends),
        sources.read_tinymq,
    )
    per_row = max(0, grown) / (records - records // SMALL_SHARE)
    return [Figure("the driver's memory, for each row more", per_row, "B", 8.0, True, [float(grown)])]


def _rounds(what: str, kinds: dict[str, Callable[[], float]], rounds: int, warm_ups: int = 1) -> dict[str, list[float]]:
    """Time each in turn. Returns the seconds, without the first rounds."""
    took: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(1 - warm_ups, rounds + 1):
        for name, run in kinds.items():
            progress.print(f"[dim]round {number} of {rounds}: {what}: {name}", highlight=False)
            took[name].append(run())
    return {name: some[warm_ups:] for name, some in took.items()}


def table(figures: list[Figure]) -> Table:
    """Print the table."""
    made = Table(title="Spark reads tinymq, Parquet and Kafka: medians (and least to most) of the rounds")
    for title in ("what", "seen", "wanted"):
        made.add_column(title, justify="left" if title == "what" else "right")
    for f in figures:
        spread = f" ({min(f.samples):,.2f}–{max(f.samples):,.2f})" if len(f.samples) > 1 else ""
        wanted = "" if f.wanted is None else f"{'≤' if f.at_most else '≥'} {f.wanted:g}"
        colour = {True: "[green]", False: "[red]", None: ""}[f.reached]
        made.add_row(f.what, f"{f.value:,.2f} {f.unit}{spread}", colour + wanted)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="make bench-spark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=RECORDS, help="of 1 KiB each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="that count (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")
    parser.add_argument("--dir", type=Path, help="on the disk to be measured; the system's temporary folder by default")
    arguments = parser.parse_args()
    if arguments.records < data.PARTITIONS * SMALL_SHARE or arguments.rounds < 1:
        parser.error(f"--records has to be {data.PARTITIONS * SMALL_SHARE} or more, --rounds 1 or more")
    before, started = os.getloadavg()[0], time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tinymq-bench-spark-", dir=arguments.dir) as folder:
        try:
            figures = measure(Path(folder), arguments.records, arguments.rounds)
        except KeyboardInterrupt:
            sys.exit("interrupted: brokers and Spark are stopped")
    Console().print(table(figures))
    progress.print(
        f"pyspark {pyspark.__version__}, {time.perf_counter() - started:.0f} s; "
        f"load average {before:.1f} before, {os.getloadavg()[0]:.1f} after",
        highlight=False,
    )
    if arguments.json:
        arguments.json.write_text(json.dumps([{**asdict(f), "reached": f.reached} for f in figures], indent=1))


if __name__ == "__main__":
    main()
