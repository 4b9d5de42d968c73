"""The pipelines on real brokers and in a real session: closing, replays, customers, backfills."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from examples.flights import source
from pipelines import (
    backfill,
    committed,
    comparison,
    delta,
    flight_delays,
    load,
    orders,
    orders_to_delta,
    reference,
)
from pipelines.customers import customers
from pipelines.refused import Refused
from pipelines.returned import returned
from pipelines.sessions import ended
from pipelines.streams import Journal
from pyspark_tinymq.write.place import PLACE
from tests.spark.pipeline_runs import TOPIC, WINDOWS, Runs
from tinymq import Client
from tinymq.testing.cluster import Cluster

SAMPLE, SUMMARY = "datasets/CDNOW_sample.txt", "datasets/cdnow_customers_summary.csv"
CALIBRATED = date(1997, 9, 30)  # the last day of the summary
BATCH_RECORDS = 3_000
FLIGHTS = 4_000

pytestmark = pytest.mark.timeout(600)  # on a busy machine; seconds on an idle one


@pytest.fixture
def all_run(cluster: Cluster) -> Iterator[None]:
    """Restart every killed broker after the test."""
    yield
    for broker in {1, 2, 3} - set(cluster.brokers):
        cluster.start(broker)


def _uncommit(checkpoint: Path) -> int:
    """Undo Spark's note of the last batch, as if the query was killed after it wrote the batch. Returns its number."""
    commits = checkpoint / "commits"
    batch = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for name in (f"{batch}", f".{batch}.crc"):
        (commits / name).unlink()
    return batch


@pytest.mark.long
@pytest.mark.usefixtures("all_run")
def test_batches_are_done_again_and_a_broker_dies_and_every_window_is_there_once(
    spark: SparkSession, cluster: Cluster, mq: Client, tmp_path: Path
) -> None:
    """The first days of 2013. The whole year, with processes that are killed, is in long/test_pipeline_killed.py."""
    flights = source.load(source.find_data())[:FLIGHTS]
    mq.admin.create_topic("flights", 3)
    mq.admin.create_topic("delays", 2)
    load.send(mq, "flights", flights, lambda _: None)
    job = flight_delays.parse(Runs(tmp_path, cluster.servers, FLIGHTS // 2).arguments())
    first = Journal(None, print)
    assert flight_delays.FlightDelays(spark, job, first).run()
    once = mq.admin.offsets("delays")
    again = {query: _uncommit(job.checkpoint / query) for query in (WINDOWS, TOPIC)}
    cluster.kill(cluster.wait_leader("flights", 0))
    second = Journal(None, print)
    assert flight_delays.FlightDelays(spark, job, second).run()

    for query, batch in again.items():
        assert batch in [report.batch for report in second.taken if report.query == query], "it was done again"
    assert mq.admin.offsets("delays") != once, "and there are repeats to be dropped"
    assert sum(report.dropped for report in (*first.taken, *second.taken)) == 0
    table = pd.DataFrame([json.loads(flight.value) for flight in flights])
    expected = reference.rows(reference.of_flights(table.assign(time_hour=pd.to_datetime(table["time_hour"]))))
    assert sum(row["flights"] for row in expected) == FLIGHTS
    assert comparison.compare(committed.read(tmp_path / "results").to_pylist(), expected).examples == ()
    came_back = returned(mq.reader("delays", end="latest").to_arrow())
    assert comparison.compare(came_back.rows, expected).examples == ()


@pytest.fixture(scope="module")
def sampled(mq: Client) -> dict[str, str]:
    """Topic `orders`: the orders of every tenth customer, and two records that are not orders. Returns the customers'
    ids.
    """
    lines = orders.find_data(SAMPLE).read_text().splitlines()
    ids = {line.split()[0]: str(int(line.split()[1])) for line in lines}
    mq.admin.create_topic("orders", 3)
    chosen = [order for order in orders.load(orders.find_data()) if order.key.decode() in ids]
    load.send(mq, "orders", chosen, lambda _: None)
    for value in (b"no order", b'{"customer":"1"}'):
        mq.send("orders", value, partition=2)
    return ids


def _orders(spark: SparkSession, cluster: Cluster, folder: Path, *more: str) -> orders_to_delta.OrdersToDelta:
    given = ["--servers", cluster.servers, "--orders", str(folder / "orders"), "--checkpoint", str(folder / "state")]
    given += ["--until-end", "--batch-records", str(BATCH_RECORDS), *more]
    return orders_to_delta.OrdersToDelta(spark, orders_to_delta.parse(given), Journal(None, print))


@pytest.mark.long
def test_orders_are_in_the_table_once_however_often_a_batch_is_done_and_customers_are_as_published(
    spark: SparkSession, cluster: Cluster, mq: Client, sampled: dict[str, str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    customers_of = ("--customers", str(tmp_path / "customers"), "--until", str(CALIBRATED))
    first = _orders(spark, cluster, tmp_path, *customers_of)
    assert not first.run(), "two records are no orders"
    sent = sum(each.high_watermark for each in mq.admin.offsets("orders").values()) - 2
    assert f"2 records are no orders, the first is orders/2 at {_first_bad(mq)}" in capsys.readouterr().err
    version, table = _table(tmp_path)
    assert table.num_rows == sent
    assert table.select(["partition", "offset"]).group_by(["partition", "offset"]).aggregate([]).num_rows == sent

    last = _uncommit(tmp_path / "state")
    assert last > 1
    again = _orders(spark, cluster, tmp_path)
    again.run()
    assert again.again == [last]
    assert _table(tmp_path) == (version, table)

    with pytest.raises(Refused, match="does not know which"):
        _orders(spark, cluster, tmp_path, "--checkpoint", str(tmp_path / "new")).run()
    _check_customers(tmp_path / "customers", sampled)


def _check_customers(folder: Path, ids: dict[str, str]) -> None:
    """The same figures as `lifetimes`, in weeks, and the same sums as pandas computes from the file."""
    found = DeltaTable(folder).to_pyarrow_table().to_pylist()
    published = pd.read_csv(orders.find_data(SUMMARY)).to_dict("records")
    expected = {str(row["ID"]): (row["frequency"], row["recency"], row["T"]) for row in published}
    weeks = {
        ids[row["customer"]]: (row["frequency"], round(row["recency_days"] / 7, 2), round(row["age_days"] / 7, 2))
        for row in found
    }
    assert len(weeks) == 2_357
    assert weeks == expected

    raw = pd.read_csv(orders.find_data(), sep=r"\s+", dtype={"customer_id": str}, parse_dates=["date"])
    raw = raw[raw["customer_id"].isin(ids) & (raw["date"] <= pd.Timestamp(CALIBRATED))]
    raw["cents"] = (raw["dollar_value"] * 100).round().astype(int)
    sums = raw.groupby("customer_id").agg(
        orders=("cents", "size"), cds=("number_of_cds", "sum"), cents=("cents", "sum")
    )
    columns = ("orders", "cds", "cents")
    assert {r["customer"]: [r[c] for c in columns] for r in found} == {i: list(r) for i, *r in sums.itertuples()}
    ranked = sorted(found, key=lambda row: (-row["cents"], row["customer"]))
    assert [row["decile"] for row in ranked] == sorted(row["decile"] for row in found)


@pytest.mark.long
def test_the_value_of_repeated_purchases_is_a_mean_over_days(spark: SparkSession) -> None:
    """Two orders on one day are one purchase; those of the first day do not count."""
    day = "1997-01-%02d"
    rows = [("a", day % 1, 500), ("a", day % 1, 100), ("a", day % 5, 100), ("a", day % 5, 200), ("a", day % 9, 100)]
    rows += [("b", day % 3, 700), ("b", "1997-03-01", 900)]
    made = spark.createDataFrame(rows, "customer STRING, day STRING, cents BIGINT")
    found = customers(made.withColumn("day", F.to_date("day")).withColumn("cds", F.lit(1)), date(1997, 1, 31))
    a, b = (row.asDict() for row in found.orderBy("customer").collect())
    assert (a["orders"], a["frequency"], a["recency_days"], a["age_days"], a["repeat_cents"]) == (5, 2, 8, 30, 200.0)
    assert (b["orders"], b["frequency"], b["recency_days"], b["cents"], b["repeat_cents"]) == (1, 0, 0, 700, None)


def test_of_two_writers_of_one_batch_the_second_changes_nothing(tmp_path: Path) -> None:
    """One run checked the table before the other wrote, one checks it afterwards."""
    rows = pa.table({"n": [1, 2]})
    table = str(tmp_path / "table")
    assert delta.append(table, rows, "app", 0)
    stale = DeltaTable(table)
    assert delta.append(table, rows, "app", 1)
    assert not delta.append(table, rows, "app", 1)
    assert not delta.append(table, rows, "app", 0)
    with pytest.raises(CommitFailedError):
        write_deltalake(
            stale, rows, mode="append", commit_properties=CommitProperties(app_transactions=[Transaction("app", 1)])
        )
    assert DeltaTable(table).to_pyarrow_table().num_rows == 4
    assert delta.append(table, rows, "another", 0)


def _first_bad(mq: Client) -> int:
    return mq.admin.offsets("orders")[2].high_watermark - 2


def _table(folder: Path) -> tuple[int, pa.Table]:
    found = DeltaTable(folder / "orders")
    return found.version(), found.to_pyarrow_table().sort_by([("partition", "ascending"), ("offset", "ascending")])


@pytest.mark.long
def test_late_flights_and_other_records_are_reported(
    spark: SparkSession, cluster: Cluster, mq: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a topic was closed, every flight is late."""
    mq.admin.create_topic("few", 2)
    mq.admin.create_topic("few-delays", 1)
    flight = json.dumps({"origin": "JFK", "dep_delay": 20}).encode()
    mq.send("few", flight, timestamp=datetime(2013, 1, 1, 10, 59, tzinfo=UTC), partition=0)
    mq.send("few", b"no flight", timestamp=datetime(2013, 1, 1, 11, tzinfo=UTC), partition=1)
    given = ["--servers", cluster.servers, "--from", "few", "--to", "few-delays", "--until-end"]
    given += ["--results", str(tmp_path / "results"), "--checkpoint", str(tmp_path / "state"), "--watermark", "1 day"]
    job = flight_delays.parse(given)
    assert not flight_delays.FlightDelays(spark, job, Journal(None, print)).run()
    said = capsys.readouterr()
    assert "1 records of few are no flights" in said.err
    assert "1 windows of 1 flights" in said.out
    mq.send("few", flight, timestamp=datetime(2013, 1, 1, 10, tzinfo=UTC), partition=1)
    assert not flight_delays.FlightDelays(spark, job, Journal(None, print)).run()
    said = capsys.readouterr()
    assert "1 rows came too late for --watermark '1 day'" in said.err
    (record,) = mq.reader("few-delays", end="latest").to_arrow().to_pylist()
    assert json.loads(record["value"]) == {
        "hour": "2013-01-01T10:00:00.000Z", "airport": "JFK", "flights": 1, "departed": 1, "late": 1, "delay_min": 20,
        "worst_min": 20,
    }  # fmt: skip
    assert (record["key"], record["timestamp"]) == (b"JFK", datetime(2013, 1, 1, 10, tzinfo=UTC))


FEBRUARY, MARCH = datetime(2013, 2, 1, tzinfo=UTC), datetime(2013, 3, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def old(mq: Client) -> str:
    """A topic with unordered times from January to April: one per month, and one at each end of February."""
    mq.admin.create_topic("old", 1)
    mq.admin.create_topic("copy", 2)
    times = [datetime(2013, month, 15, tzinfo=UTC) for month in (1, 4, 2, 3)] + [FEBRUARY, MARCH]
    for n, at in enumerate(times):
        headers = [("trace", b"%d" % n), (PLACE, b"of another query")] if n != 2 else None
        mq.send("old", json.dumps({"n": n}).encode(), key=b"k%d" % n, headers=headers, timestamp=at)
    mq.send("old", b"{bad", timestamp=FEBRUARY)
    mq.send("old", None, key=b"gone", timestamp=FEBRUARY)
    return "old"


@pytest.fixture
def run_backfill(spark: SparkSession, cluster: Cluster, old: str) -> Callable[..., int]:
    """Run a backfill of February with these arguments. Returns its exit code."""

    def run(*more: str) -> int:
        given = ["--servers", cluster.servers, "--from", old, "--to", "copy", "--since", "2013-02-01"]
        job = backfill.parse([*given, "--until", "2013-03-01", *more])
        return ended(lambda: backfill.Backfill(spark, job).run())

    return run


def test_a_backfill_copies_the_time_range_and_prints_the_result(
    run_backfill: Callable[..., int], mq: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = ("--schema", "n INT", "--where", "json IS NULL OR json.n > 1", "--value", "CAST(json.n * 10 AS STRING)")
    assert run_backfill(*changed, "--dry-run") == 0
    dry = capsys.readouterr().out
    assert "partition 0: offsets 1 to 8, 7 records" in dry
    assert "where: json IS NULL OR json.n > 1" in dry
    assert "nothing was written" in dry
    assert run_backfill(*changed) == 1, "one value is no JSON"
    said = capsys.readouterr()
    assert dry.splitlines()[:-1] == said.out.splitlines()[:-1]
    assert "4 records of that time, 3 of them written to copy, which grew by 3" in said.out
    assert "1 values are no JSON" in said.err
    found = {row["key"]: row for row in mq.reader("copy", end="latest").to_arrow().to_pylist()}
    assert {key: row["value"] for key, row in found.items()} == {b"k2": b"20", b"k4": b"40", b"gone": None}
    assert found[b"k4"]["timestamp"] == FEBRUARY
    assert found[b"k2"]["timestamp"] == datetime(2013, 2, 15, tzinfo=UTC)
    headers = {key: [header["key"] for header in row["headers"]] for key, row in found.items()}
    assert headers == {b"k2": [PLACE], b"k4": ["trace", PLACE], b"gone": [PLACE]}
    assert found[b"k4"]["headers"][1]["value"] != b"of another query"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--to", "old"], "it would read what it writes"),
        (["--to", "nowhere"], "make it first"),
        (["--from", "nowhere"], "make it first"),
        (["--until", "2013-02-01"], "is not before"),
        (["--where", "vlue IS NULL"], "cannot be resolved"),
        (["--where", "value IS NOT"], "PARSE_SYNTAX_ERROR"),
        (["--where", "true; DROP TABLE x"], "PARSE_SYNTAX_ERROR"),
        (["--where", "length(value)"], "is not a boolean"),
        (["--value", "1"], "--value is a int"),
        (["--key", "offset"], "--key is a bigint"),
        (["--timestamp", "'today'"], "--timestamp is a string"),
        (["--value", "count(1)"], "GROUP BY"),
        (["--where", "rand() < 0.5"], "something else each time"),
        (["--key", "uuid()"], "something else each time"),
        (["--value", "json.n"], "cannot be resolved"),
        (["--schema", "n WRONG"], "'WRONG'"),
    ],
)
def test_a_backfill_that_cannot_be_is_refused_before_it_writes(
    run_backfill: Callable[..., int], mq: Client, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = mq.admin.offsets("copy")
    assert run_backfill(*arguments) == 2
    said = capsys.readouterr()
    assert why in said.err
    assert said.out == ""
    assert mq.admin.offsets("copy") == before


def test_times_that_rise_are_read_no_further_than_the_end(
    run_backfill: Callable[..., int], mq: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    mq.admin.create_topic("risen", 1)
    for day in range(1, 6):
        mq.send("risen", b"%d" % day, timestamp=datetime(2013, 2, day, tzinfo=UTC))
    few = ("--from", "risen", "--until", "2013-02-03T00:00:00+00:00", "--ordered", "--dry-run")
    assert run_backfill(*few) == 0
    assert "partition 0: offsets 0 to 2, 2 records" in capsys.readouterr().out
    assert run_backfill("--from", "risen", "--since", "2020-01-01", "--until", "2021-01-01") == 0
    assert "nothing to read, nothing written" in capsys.readouterr().out
