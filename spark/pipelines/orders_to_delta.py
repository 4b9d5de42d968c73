"""Writes the orders of a topic to a Delta table, each exactly once, and then the value of each customer to another.

    spark-submit spark/pipelines/orders_to_delta.py --servers localhost:7070 --orders out/orders \\
        --customers out/customers --checkpoint out/state --until-end

Each micro-batch is one commit of the Delta table, under the query's id and the batch's number: a batch that is repeated
after a crash finds its number there and changes nothing. The program collects a micro-batch before it writes it, so
--batch-records bounds its memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipelines import delta
from pipelines.arguments import positive, whole
from pipelines.customers import ORDER, ORDERS, customers, orders, readable
from pipelines.refused import Refused
from pipelines.sessions import ended, say, session
from pipelines.streams import Journal

QUERY = "orders"


@dataclass(frozen=True, slots=True)
class OrdersArguments:
    """The arguments."""

    servers: str
    source: str
    orders: str
    customers: str | None
    checkpoint: Path
    until: date | None
    batch_records: int
    replica: str
    until_end: bool
    every: str
    restarts: int
    progress: Path | None


def parse(argv: Sequence[str]) -> OrdersArguments:
    """Parse the command line. Ends the process on --help and on errors."""
    parser = argparse.ArgumentParser(
        prog="orders_to_delta.py",
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--servers", required=True, help="brokers, as host:port,host:port")
    add("--from", dest="source", default="orders", metavar="TOPIC", help="the topic that holds the orders")
    add("--orders", required=True, metavar="DIR", help="the Delta table of orders; created if it does not exist")
    add("--customers", metavar="DIR", help="the Delta table of customers, rebuilt from the orders at the end")
    add("--checkpoint", type=Path, required=True, metavar="DIR", help="where the query stores its progress")
    add(
        "--until",
        type=date.fromisoformat,
        metavar="DAY",
        help="customers as of this day (None: the last order's)",
    )
    add("--batch-records", type=positive, default=20_000, metavar="N", help="orders in one micro-batch, at most")
    add("--replica", default="follower", choices=("leader", "follower", "nearest", "any"), help="replica to read from")
    add("--until-end", action="store_true", help="end when the present records of the topic are written")
    add("--every", default="10 seconds", help="how often there is a micro-batch, without --until-end")
    add("--restarts", type=whole, default=3, metavar="N", help="how often a query that failed is started again")
    add("--progress", type=Path, metavar="FILE", help="append Spark's report of each micro-batch, as a line of JSON")
    job = OrdersArguments(**vars(parser.parse_args(argv)))
    if job.customers is not None and not job.until_end:
        parser.error("--customers needs --until-end: they are made from all orders, once these are written")
    return job


@dataclass(slots=True)
class OrdersToDelta:
    """The query and the steps after it, on one session."""

    spark: SparkSession
    job: OrdersArguments
    journal: Journal
    unreadable: int = 0  # records that are no orders
    first_unreadable: str = ""
    again: list[int] = field(default_factory=list)  # repeated batches, which the table already had

    def run(self) -> bool:
        """Run the query. Returns False if some records are not orders; the output names them."""
        self._check()
        writer = self.records().writeStream.queryName(QUERY).foreachBatch(self.write)
        writer = writer.option("checkpointLocation", str(self.job.checkpoint))
        trigger = {"availableNow": True} if self.job.until_end else {"processingTime": self.job.every}
        self.journal.carry([lambda: writer.trigger(**trigger).start()], self.job.restarts)
        self._tell()
        return not self.unreadable

    def records(self) -> DataFrame:
        """The stream of records: the connector's columns, with the value as ORDER has it."""
        return (
            self.spark.readStream.format("tinymq")
            .option("servers", self.job.servers)
            .option("subscribe", self.job.source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(self.job.batch_records))
            .option("replica", self.job.replica)
            .option("valueFormat", "json")
            .option("valueSchema", ORDER)
            .load()
        )

    def write(self, batch: DataFrame, number: int) -> None:
        """Append one micro-batch to the table in one commit. A repeat changes nothing."""
        kept = batch.persist()
        try:
            rows = orders(kept).toArrow()
            bad = kept.where(~readable()).orderBy("partition", "offset").select("partition", "offset").collect()
        finally:
            kept.unpersist()
        if bad:
            self.unreadable += len(bad)
            self.first_unreadable = self.first_unreadable or f"{self.job.source}/{bad[0].partition} at {bad[0].offset}"
        if not delta.append(self.job.orders, rows, self._query_id(), number):
            self.again.append(number)
            say(f"batch {number} is in {self.job.orders} from an earlier run: nothing to do")

    def _query_id(self) -> str:
        """The application id stays the same for the life of a checkpoint. A new checkpoint counts its batches from 0
        under another id.
        """
        (query,) = (query for query in self.spark.streams.active if query.name == QUERY)
        return query.id

    def _check(self) -> None:
        """A new checkpoint starts with the first order, which would write all orders of an existing table a second
        time.
        """
        begun = self.job.checkpoint.exists() and any(self.job.checkpoint.iterdir())
        if not begun and delta.exists(self.job.orders):
            raise Refused(
                f"{self.job.orders} has orders, and {self.job.checkpoint} does not know which: give the checkpoint "
                "that was used before, or a new table"
            )

    def _tell(self) -> None:
        files = delta.files(self.job.orders) if delta.exists(self.job.orders) else []
        read = self.spark.read.schema(ORDERS)
        stored = read.parquet(*files) if files else self.spark.createDataFrame([], ORDERS)
        totals = stored.agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"), F.max("day").alias("last"))
        sums = totals.collect()[0]
        say(f"{sums.orders:,} orders worth ${(sums.cents or 0) / 100:,.2f} in {self.job.orders}")
        if self.unreadable:
            where = self.first_unreadable
            print(f"error: {self.unreadable:,} records are no orders, the first is {where}", file=sys.stderr)
        if self.job.customers is not None and sums.orders:
            until = self.job.until or sums.last
            table: pa.Table = customers(stored, until).toArrow()
            delta.replace(self.job.customers, table)
            say(f"{table.num_rows:,} customers as of {until} in {self.job.customers}")


def main(argv: Sequence[str]) -> int:
    """Parse, run, and return the exit code."""
    job = parse(argv)

    def work() -> bool:
        spark = session("orders_to_delta")
        try:
            return OrdersToDelta(spark, job, Journal(job.progress, say)).run()
        finally:
            spark.stop()

    return ended(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
