"""Computes the value of customers: from orders to one row for each customer. DataFrames in and out, no I/O.

Frequency, recency, age and repeat value are in days, as Fader, Hardie and Lee (2005) define them for models of customer
value. Several orders on one day count as one purchase.
"""

from __future__ import annotations

from datetime import date

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

ORDER = "customer STRING, day DATE, cds INT, cents BIGINT"  # the source's valueSchema
ORDERS = f"{ORDER}, partition INT, offset BIGINT"  # the table: each order with its place in the topic
UNREADABLE = "unreadable"


def orders(records: DataFrame) -> DataFrame:
    """Return the records that are orders, with the columns of ORDERS."""
    names = [each.split()[0] for each in ORDER.split(", ")]
    return records.where(readable()).select(*(F.col(f"value.{name}") for name in names), "partition", "offset")


def readable() -> Column:
    """Return the condition that a record is an order: all members are present."""
    return F.col("value.customer").isNotNull() & F.col("value.day").isNotNull() & F.col("value.cents").isNotNull()


def customers(orders: DataFrame, until: date) -> DataFrame:
    """Return one row for each customer, from the orders up to and including the day `until`.

    customer        string
    orders, cds     how many, in all
    cents           what they paid, in all
    first, last     days of the first and the last purchase
    frequency       days with a purchase after the first
    recency_days    from the first purchase to the last
    age_days        from the first purchase to `until`
    repeat_cents    what a day with a purchase after the first brought, on the mean; null if there was none
    decile          1: among the tenth of the customers who paid most
    """
    end = F.lit(until)
    days = orders.where(F.col("day") <= end).groupBy("customer", "day")
    by_day = days.agg(F.count("*").alias("orders"), F.sum("cds").alias("cds"), F.sum("cents").alias("cents"))
    first = F.min("day").over(Window.partitionBy("customer"))
    repeated = F.when(F.col("day") > F.col("first"), F.col("cents"))
    customers_found = (
        by_day.withColumn("first", first)
        .groupBy("customer", "first")
        .agg(
            F.sum("orders").alias("orders"),
            F.sum("cds").alias("cds"),
            F.sum("cents").alias("cents"),
            F.max("day").alias("last"),
            (F.count("*") - 1).alias("frequency"),
            F.avg(repeated).alias("repeat_cents"),
        )
    )
    rank = F.ntile(10).over(Window.orderBy(F.desc("cents"), "customer"))
    columns: list[str | Column] = [
        "customer",
        "orders",
        "cds",
        "cents",
        "first",
        "last",
        "frequency",
        F.datediff("last", "first").alias("recency_days"),
        F.datediff(end, F.col("first")).alias("age_days"),
        "repeat_cents",
        rank.alias("decile"),
    ]
    return customers_found.select(*columns)
