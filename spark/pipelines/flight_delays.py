"""Counts the departures and delays of a topic of flights, by hour and airport.

    spark-submit spark/pipelines/flight_delays.py --servers localhost:7070 --results out/delays --checkpoint out/state

Two queries run one after the other. The first counts the flights into windows, and writes each complete window to
Parquet. The second reads the windows from there and writes them to a topic. Committed files never change, so a batch
that is repeated after a crash writes the same rows in the same order, and a reader recognizes the repeats (README.md).
A restart with the same folders continues both queries.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipelines import closing, committed
from pipelines.arguments import positive, whole
from pipelines.delays import DELAYS, FLIGHT, UNREADABLE, delays, records
from pipelines.sessions import ended, say, session
from pipelines.streams import Journal

WINDOWS = "windows"  # the query's name, and its checkpoint's
TOPIC = "topic"
LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class FlightArguments:
    """The arguments."""

    servers: str
    source: str
    to: str
    results: Path
    checkpoint: Path
    window: str
    watermark: str
    batch_records: int
    replica: str
    until_end: bool
    every: str
    restarts: int
    progress: Path | None


def parse(argv: Sequence[str]) -> FlightArguments:
    """Parse the command line. Ends the process on --help and on errors."""
    parser = argparse.ArgumentParser(
        prog="flight_delays.py",
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog="--watermark has to be longer than the time between the records that a batch may see side by side. A "
        "backlog is read from all partitions at the same share of each, and keyed records do not spread evenly: of the "
        "flights of 2013 in 6 partitions, 15 days lie between the slowest and the fastest. A live feed needs minutes.",
    )
    add = parser.add_argument
    add("--servers", required=True, help="brokers, as host:port,host:port")
    add("--from", dest="source", default="flights", metavar="TOPIC", help="the topic that holds the flights")
    add("--to", default="delays", metavar="TOPIC", help="the topic that gets the results; it has to exist")
    add("--results", type=Path, required=True, metavar="DIR", help="where the Parquet files go")
    add("--checkpoint", type=Path, required=True, metavar="DIR", help="where the queries store their progress")
    add("--window", default="1 hour", help="length of a window")
    add("--watermark", default="30 days", help="how late a flight may arrive and still count")
    add("--batch-records", type=positive, default=50_000, metavar="N", help="flights in one micro-batch, at most")
    add("--replica", default="follower", choices=("leader", "follower", "nearest", "any"), help="replica to read from")
    add("--until-end", action="store_true", help="the topic is complete: read it, close the last windows, and end")
    add("--every", default="1 second", help="how often there is a micro-batch, without --until-end")
    add("--restarts", type=whole, default=3, metavar="N", help="how often a query that failed is started again")
    add("--progress", type=Path, metavar="FILE", help="append Spark's report of each micro-batch, as a line of JSON")
    return FlightArguments(**vars(parser.parse_args(argv)))


@dataclass(slots=True)
class FlightDelays:
    """The two queries, on one session."""

    spark: SparkSession
    job: FlightArguments
    journal: Journal

    def run(self) -> bool:
        """Run both queries. Returns False if some flights are in no result; the output says why."""
        self.spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # not INT96: it has no zone
        if self.job.until_end:
            self._until_end()
        else:
            self._until_stopped()
        return self._told()

    def _until_end(self) -> None:
        """Read to the end before closing the topic: a closing record that is read before a flight makes the flight too
        late, and partitions do not end at the same moment.
        """
        self._carry(lambda: self._windows().trigger(availableNow=True).start())
        closing.close(self.job.servers, self.job.source)
        self._carry(lambda: self._windows().trigger(availableNow=True).start())
        self._carry(lambda: self._to_topic().trigger(availableNow=True).start())

    def _until_stopped(self) -> None:
        def second() -> StreamingQuery:
            self._wait_results()
            return self._to_topic().trigger(processingTime=self.job.every).start()

        self._carry(lambda: self._windows().trigger(processingTime=self.job.every).start(), second)

    def _carry(self, *starts: Callable[[], StreamingQuery]) -> None:
        self.journal.carry(starts, self.job.restarts)

    def _wait_results(self) -> None:
        """A stream of files needs an existing folder, whose log names the files that count."""
        while not (self.job.results / committed.LOG).exists() and self.spark.streams.active:
            time.sleep(LOOK_S)

    def flights(self) -> DataFrame:
        """The stream of flights: the connector's columns, with the value as FLIGHT has it."""
        return (
            self.spark.readStream.format("tinymq")
            .option("servers", self.job.servers)
            .option("subscribe", self.job.source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(self.job.batch_records))
            .option("replica", self.job.replica)
            .option("valueFormat", "json")
            .option("valueSchema", FLIGHT)
            .load()
        )

    def _windows(self) -> DataStreamWriter:
        results = delays(self.flights(), self.job.window, self.job.watermark)
        return self._query(results, WINDOWS).format("parquet").option("path", str(self.job.results))

    def _to_topic(self) -> DataStreamWriter:
        results = records(self.spark.readStream.schema(DELAYS).parquet(str(self.job.results)))
        return (
            self._query(results, TOPIC)
            .format("tinymq")
            .option("servers", self.job.servers)
            .option("topic", self.job.to)
        )

    def _query(self, rows: DataFrame, name: str) -> DataStreamWriter:
        folder = str(self.job.checkpoint / name)
        return rows.writeStream.queryName(name).outputMode("append").option("checkpointLocation", folder)

    def _told(self) -> bool:
        """Print the results, and what is missing in them."""
        results = self.spark.read.schema(DELAYS).parquet(str(self.job.results))
        sums = results.agg(F.count("*").alias("windows"), F.coalesce(F.sum("flights"), F.lit(0)).alias("flights"))
        found = sums.collect()[0]
        say(f"{found.windows:,} windows of {found.flights:,} flights in {self.job.results} and topic {self.job.to}")
        dropped = sum(each.dropped for each in self.journal.taken)
        unreadable = sum(each.observed.get("records", {}).get(UNREADABLE, 0) for each in self.journal.taken)
        if dropped:
            print(f"error: {dropped:,} rows came too late for --watermark '{self.job.watermark}'", file=sys.stderr)
        if unreadable:
            print(f"error: {unreadable:,} records of {self.job.source} are no flights", file=sys.stderr)
        return not dropped and not unreadable


def main(argv: Sequence[str]) -> int:
    """Parse, run, and return the exit code."""
    job = parse(argv)

    def work() -> bool:
        spark = session("flight_delays")
        try:
            return FlightDelays(spark, job, Journal(job.progress, say)).run()
        finally:
            spark.stop()

    return ended(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
