"""Makes an invoice of each sale, exactly once.

    spark-submit spark/pipelines/invoices.py --servers localhost:7070 --checkpoint out/invoices

Sales and prices are those of examples/enricher. The sales are read from followers. The invoices are written by the
exactly-once sink, so the program may be killed at any moment: started again with its checkpoint, it goes on, and each
sale has one invoice.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from examples.enricher.sales import INVOICES, PRICES, SALES
from pipelines.arguments import positive, whole
from pipelines.sessions import ended, say, session
from pipelines.streams import Journal

SALE = "number BIGINT, item STRING, pieces INT"
QUERY = "invoices"


@dataclass(frozen=True, slots=True)
class InvoiceArguments:
    """The arguments."""

    servers: str
    source: str
    to: str
    checkpoint: Path
    batch_records: int
    replica: str
    until_end: bool
    every: str
    restarts: int


def parse(argv: Sequence[str]) -> InvoiceArguments:
    """Parse the command line. Ends the process on --help and on errors."""
    parser = argparse.ArgumentParser(
        prog="invoices.py",
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--servers", required=True, help="brokers, as host:port,host:port")
    add("--from", dest="source", default=SALES, metavar="TOPIC", help="the topic that holds the sales")
    add("--to", default=INVOICES, metavar="TOPIC", help="the topic that gets the invoices; it has to exist")
    add("--checkpoint", type=Path, required=True, metavar="DIR", help="where the query stores its progress")
    add("--batch-records", type=positive, default=20_000, metavar="N", help="sales in one micro-batch, at most")
    add("--replica", default="follower", choices=("leader", "follower", "nearest", "any"), help="replica to read from")
    add("--until-end", action="store_true", help="end when the present sales have their invoices")
    add("--every", default="0 seconds", help="how often there is a micro-batch, without --until-end")
    add("--restarts", type=whole, default=3, metavar="N", help="how often a query that failed is started again")
    return InvoiceArguments(**vars(parser.parse_args(argv)))


def invoices(sales: DataFrame) -> DataFrame:
    """Return the records of the invoices, under the keys of their sales. A sale of an item without a price ends the
    query, because without an invoice it would be lost."""
    sale = F.col("value")
    prices = F.create_map(*(F.lit(each) for each in chain.from_iterable(PRICES.items())))
    price = prices[sale["item"]]
    missing = F.raise_error(F.concat(F.lit("no price of: "), F.coalesce(sale["item"], F.lit("nothing"))))
    cents = F.when(price.isNotNull(), price * sale["pieces"]).otherwise(missing.cast("int"))
    return sales.select("key", F.to_json(F.struct(sale["number"].alias("number"), cents.alias("cents"))).alias("value"))


def start(spark: SparkSession, job: InvoiceArguments) -> StreamingQuery:
    """Start the query, or go on with its checkpoint."""
    sales = (
        spark.readStream.format("tinymq")
        .option("servers", job.servers)
        .option("subscribe", job.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(job.batch_records))
        .option("replica", job.replica)
        .option("valueFormat", "json")
        .option("valueSchema", SALE)
        .load()
    )
    writing = (
        invoices(sales)
        .writeStream.queryName(QUERY)
        .format("tinymq")
        .option("servers", job.servers)
        .option("topic", job.to)
        .option("exactlyOnce", "true")
        .option("checkpointLocation", str(job.checkpoint))
    )
    if job.until_end:
        return writing.trigger(availableNow=True).start()
    return writing.trigger(processingTime=job.every).start()


def main(argv: Sequence[str]) -> int:
    """Parse, run, and return the exit code."""
    job = parse(argv)

    def work() -> bool:
        spark = session(QUERY)
        try:
            Journal(None, say).carry([lambda: start(spark, job)], job.restarts)
        finally:
            spark.stop()
        return True

    return ended(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
