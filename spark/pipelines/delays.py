"""Computes delays from flights, as one transformation of DataFrames. No I/O.

A flight is a record whose value is a JSON object with `origin` and `dep_delay` (minutes; null if it never left) and
whose timestamp is the scheduled hour of departure. The source parses the values (valueFormat=json).
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

FLIGHT = "origin STRING, dep_delay INT"  # the source's valueSchema: of the value, what is looked at
LATE_MIN = 15  # a departure counts as late when it is later than this
UNREADABLE = "unreadable"  # the observed metric: records with a value that is no flight

# The columns of the results, as Parquet and as JSON. Sums can be added up again, means cannot.
DELAYS = T.StructType(
    [
        T.StructField("hour", T.TimestampType()),  # where the window begins
        T.StructField("airport", T.StringType()),
        T.StructField("flights", T.LongType()),  # that were to leave
        T.StructField("departed", T.LongType()),  # that did
        T.StructField("late", T.LongType()),  # of those that did, the ones over LATE_MIN minutes late
        T.StructField("delay_min", T.LongType()),  # summed; early departures count as negative; 0 if none departed
        T.StructField("worst_min", T.IntegerType()),  # null if none departed
    ]
)


def observed(records: DataFrame) -> DataFrame:
    """Return `records` unchanged; Spark counts the malformed values in the query's progress."""
    unreadable = F.col("value").isNotNull() & F.col("value.origin").isNull()
    return records.observe("records", F.count(F.when(unreadable, 1)).alias(UNREADABLE))


def delays(records: DataFrame, window: str, watermark: str) -> DataFrame:
    """Delays by window and airport, with the columns of DELAYS; a stream's or a batch's.

    `watermark` is the time by which a record may lag behind the newest one and still count. A closing record has no
    value, but moves the watermark, so it must not be filtered out before the aggregation. Spark moves a filter on
    `airport` below the aggregation and the watermark, where it would remove closing records. A filter on a count stays
    above.
    """
    delay = F.col("value.dep_delay")
    return (
        observed(records)
        .withWatermark("timestamp", watermark)
        .groupBy(F.window("timestamp", window), F.col("value.origin").alias("airport"))
        .agg(
            F.count("value.origin").alias("flights"),
            F.count(delay).alias("departed"),
            F.count(F.when(delay > LATE_MIN, 1)).alias("late"),
            F.coalesce(F.sum(delay), F.lit(0)).cast("long").alias("delay_min"),
            F.max(delay).alias("worst_min"),
        )
        .where(F.col("flights") > 0)
        .select(F.col("window.start").alias("hour"), *DELAYS.names[1:])
    )


def records(delays: DataFrame) -> DataFrame:
    """Delays as records: the airport as key, so that its windows stay together; the row as JSON; its hour as time."""
    return delays.select(
        F.col("airport").cast("binary").alias("key"),
        F.to_json(F.struct(*DELAYS.names)).cast("binary").alias("value"),
        F.col("hour").alias("timestamp"),
    )
