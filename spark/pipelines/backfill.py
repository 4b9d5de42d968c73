"""Copies the records of a stretch of time from topic to topic, changed as the command line says.

    spark-submit spark/pipelines/backfill.py --servers localhost:7070 --from flights --to flights-february \\
        --since 2013-02-01 --until 2013-03-01 --schema 'carrier STRING, origin STRING, dep_delay INT' \\
        --where 'json.dep_delay > 60' --value 'to_json(struct(json.carrier, json.dep_delay AS late_min))'

The program prints what it will do, does it (unless --dry-run), and prints the result. It refuses a bad request before
it writes a record. A record keeps its key, headers and time unless an expression changes them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from pipelines.arguments import moment
from pipelines.ranges import OffsetSpan, ends_of, offsets_json, offsets_of
from pipelines.refused import Refused
from pipelines.sessions import ended, say, session
from pyspark_tinymq.write.place import PLACE
from tinymq.base.errors import UnknownTopic
from tinymq.client import Client

CORRUPT = "_corrupt_record"
WRITTEN = {"key": ("string", "binary"), "value": ("string", "binary"), "timestamp": ("timestamp",)}


@dataclass(frozen=True, slots=True)
class BackfillArguments:
    """The arguments of the command line."""

    servers: str
    source: str
    to: str
    since: datetime
    until: datetime
    schema: str | None
    where: str
    key: str
    value: str
    timestamp: str
    ordered: bool
    replica: str
    dry_run: bool


def parse(argv: Sequence[str]) -> BackfillArguments:
    """Parse the command line. Ends the process on --help and on errors."""
    parser = argparse.ArgumentParser(
        prog="backfill.py",
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog="Expressions are Spark's SQL, over the columns key, value (both binary: cast(value AS STRING)), "
        "partition, offset, timestamp, headers, and json with --schema. Times are UTC unless they name a zone.",
    )
    add = parser.add_argument
    add("--servers", required=True, help="brokers, as host:port,host:port")
    add("--from", dest="source", required=True, metavar="TOPIC", help="where the records are")
    add("--to", required=True, metavar="TOPIC", help="topic for the copies; has to exist, and to be another topic")
    add("--since", type=moment, required=True, metavar="TIME", help="the earliest time of a record")
    add(
        "--until",
        type=moment,
        required=True,
        metavar="TIME",
        help="end of the time range: later records are not copied",
    )
    add("--schema", metavar="DDL", help="values are JSON with these members, which expressions find as json.NAME")
    add("--where", default="true", metavar="EXPR", help="condition for the records to copy")
    add("--key", default="key", metavar="EXPR", help="expression for the key")
    add("--value", default="value", metavar="EXPR", help="expression for the value")
    add("--timestamp", default="timestamp", metavar="EXPR", help="expression for the time")
    add("--ordered", action="store_true", help="times rise in each partition: read no further than --until")
    add("--replica", default="follower", choices=("leader", "follower", "nearest", "any"), help="replica to read from")
    add("--dry-run", action="store_true", help="print the plan, and write nothing")
    return BackfillArguments(**vars(parser.parse_args(argv)))


@dataclass(slots=True)
class Backfill:
    """One backfill, on one session."""

    spark: SparkSession
    job: BackfillArguments

    def run(self) -> bool:
        """Run the backfill. Returns False if some values were not JSON with these members, and prints how many."""
        if self.job.source == self.job.to:
            raise Refused(f"--from and --to are both {self.job.to}: it would read what it writes")
        if self.job.since >= self.job.until:
            raise Refused(f"--since {self.job.since} is not before --until {self.job.until}")
        with Client(self.job.servers) as client:
            try:
                ranges = self._ranges(client)
                before = ends_of(client, self.job.to)
            except UnknownTopic as error:
                raise Refused(f"{error.message}: make it first") from None
            read, taken = Observation("read"), Observation("taken")
            records = self.transformed(self._source(ranges), read, taken)
            self._say(ranges, before)
            if self.job.dry_run:
                say("nothing was written: --dry-run")
                return True
            if any(each.records for each in ranges):
                self._write(records)
                return self._counted(read, taken, ends_of(client, self.job.to), before)
            say("nothing to read, nothing written")
            return True

    def transformed(self, source: DataFrame, read: Observation, taken: Observation) -> DataFrame:
        """Return the rows of `source` that the program will write. Writes nothing. Raises Refused for invalid
        expressions.
        """
        job = self.job
        within = (F.col("timestamp") >= F.lit(job.since)) & (F.col("timestamp") < F.lit(job.until))
        bad = F.lit(False)
        try:
            records = source.where(within)
            if job.schema is not None:
                schema = f"{job.schema}, {CORRUPT} STRING"
                parsed = F.from_json(F.col("value").cast("string"), schema, {"columnNameOfCorruptRecord": CORRUPT})
                records = records.withColumn("json", parsed)
                bad = F.col(f"json.{CORRUPT}").isNotNull()
            records = records.observe(read, F.count(F.lit(1)).alias("records"), F.count(F.when(bad, 1)).alias("bad"))
            chosen = records.where(~bad).where(F.expr(job.where))
            written = chosen.select(
                F.expr(job.key).alias("key"),
                F.expr(job.value).alias("value"),
                F.expr(job.timestamp).alias("timestamp"),
                # a copy gets its own place
                F.expr(f"filter(headers, header -> header.key <> '{PLACE}')").alias("headers"),
            )
            _check(written)
        except (AnalysisException, ParseException) as error:
            raise Refused(f"Spark does not take that: {error.getMessage() or error}") from None
        return written.observe(taken, F.count(F.lit(1)).alias("records"))

    def _ranges(self, client: Client) -> list[OffsetSpan]:
        until = self.job.until if self.job.ordered else None
        return offsets_of(client, self.job.source, self.job.since, until)

    def _source(self, ranges: Sequence[OffsetSpan]) -> DataFrame:
        """Return the records at exactly these offsets, which were printed. Records written meanwhile are not read."""
        return (
            self.spark.read.format("tinymq")
            .option("servers", self.job.servers)
            .option("subscribe", self.job.source)
            .option("startingOffsets", offsets_json(self.job.source, {each.partition: each.start for each in ranges}))
            .option("endingOffsets", offsets_json(self.job.source, {each.partition: each.end for each in ranges}))
            .option("replica", self.job.replica)
            .option("includeHeaders", "true")
            .load()
        )

    def _write(self, records: DataFrame) -> None:
        writer = records.write.format("tinymq").mode("append")
        writer.option("servers", self.job.servers).option("topic", self.job.to).save()

    def _say(self, ranges: Sequence[OffsetSpan], before: dict[int, int]) -> None:
        job = self.job
        say(f"from {job.source}: records from {job.since} up to, and not including, {job.until}")
        for each in ranges:
            say(f"  partition {each.partition}: offsets {each.start:,} to {each.end:,}, {each.records:,} records")
        say(f"  {sum(each.records for each in ranges):,} records to look through")
        for name in ("schema", "where", "key", "value", "timestamp"):
            if (expression := getattr(job, name)) not in (None, name, "true"):
                say(f"{name}: {expression}")
        say(f"to {job.to}: {len(before)} partitions, {sum(before.values()):,} records until now")

    def _counted(self, read: Observation, taken: Observation, after: dict[int, int], before: dict[int, int]) -> bool:
        found, bad = read.get["records"], read.get["bad"]
        grown = sum(after.values()) - sum(before.values())
        wrote = taken.get["records"]
        say(f"{found:,} records of that time, {wrote:,} of them written to {self.job.to}, which grew by {grown:,}")
        if grown > wrote:
            say("it grew by more: others write to it, or a task was tried again and its records are there twice")
        if grown < wrote:
            print(f"error: {self.job.to} grew by less than was written", file=sys.stderr)
        if bad:
            print(f"error: {bad:,} values are no JSON with these members; they were left out", file=sys.stderr)
        return not bad and grown >= wrote


def _check(written: DataFrame) -> None:
    """Raise Refused unless a record can have these types, and a retried task writes the same rows."""
    for name, kind in written.dtypes:
        if kind not in WRITTEN.get(name, (kind,)):
            raise Refused(f"--{name} is a {kind}, not a {' or a '.join(WRITTEN[name])}: cast it, or use to_json")
    if not written._jdf.queryExecution().analyzed().deterministic():
        raise Refused("an expression gives something else each time (rand, uuid): a task that is tried again would "
                      "write other records than before")  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Parse, run, and return the exit code."""
    job = parse(argv)

    def work() -> bool:
        spark = session("backfill")
        try:
            return Backfill(spark, job).run()
        finally:
            spark.stop()

    return ended(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
