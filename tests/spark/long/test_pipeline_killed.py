"""flight_delays on the whole year: killed in both queries, together with a broker, then run to its end. Brokers are
processes here, killed with kill -9.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.flights import source
from pipelines import committed, comparison, load, reference
from pipelines.returned import returned
from pyspark_tinymq import drop_repeats
from tests.spark.pipeline_runs import TOPIC, WINDOWS, Runs, left_of
from tinymq import Client
from tinymq.dev import dev_cluster
from tinymq.dev.dev_directory import DevDirectory

BATCH_RECORDS = 40_000
RUN_S_MAX = 900.0


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[DevDirectory]:
    """Three, each a process."""
    folder = tmp_path / "cluster"
    try:
        yield dev_cluster.up(folder, 3, print)
    finally:
        dev_cluster.down(folder, purge=True)


def _kill_leader(mq: Client, brokers: DevDirectory, topic: str) -> int:
    """Of the topic's first partition."""
    leader = next(at.leader for at in mq.admin.describe_topic(topic).partitions if at.partition == 0)
    dev_cluster.kill(brokers.path, leader)
    return leader


@pytest.mark.timeout(3600)
def test_the_year_with_a_kill_in_each_query_and_of_a_broker(
    brokers: DevDirectory, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    runs = Runs(tmp_path, brokers.servers, BATCH_RECORDS)
    flights = load.flights()
    with Client(brokers.servers) as mq:
        mq.admin.create_topic("flights", 6)
        mq.admin.create_topic("delays", 3)
        load.send(mq, "flights", flights, lambda _: None)

        with runs.start() as run:
            in_windows = runs.kill_within(run, WINDOWS, 2, RUN_S_MAX, also=lambda: True)
        killed = _kill_leader(mq, brokers, "flights")
        with runs.start() as run:
            in_topic = runs.kill_within(run, TOPIC, 0, RUN_S_MAX, also=lambda: _records(mq) > 0)
        written = _records(mq)
        dev_cluster.start(brokers.path, killed)
        with runs.start() as run:
            reports = runs.finish(run, RUN_S_MAX)
        assert not [name for session in runs.sessions for name in left_of(session)]

        assert in_windows in {report.batch for report in reports if report.query == WINDOWS}, "the batch was repeated"
        assert in_topic == 0
        assert sum(report.dropped for report in reports) == 0
        closings = mq.admin.offsets("flights")
        sent = sum(each.high_watermark for each in closings.values())
        assert sent == len(flights) + 2, "runs two and three came to the end, and closed the topic"

        expected = reference.rows(reference.delays(source.find_data()))
        assert comparison.compare(committed.read(tmp_path / "results").to_pylist(), expected).examples == ()
        came_back = returned(mq.reader("delays", end="latest").to_arrow())
        assert comparison.compare(came_back.rows, expected).examples == ()
        assert came_back.repeats >= 1, f"{written} were written before the kill, and again after it"

        spark: SparkSession = request.getfixturevalue("spark")  # not sooner: only one Java runs at a time
        options = {"servers": brokers.servers, "subscribe": "delays", "includeHeaders": "true"}
        everything = spark.read.format("tinymq").options(**options).load()
        assert everything.count() == len(expected) + came_back.repeats
        assert drop_repeats(everything).count() == len(expected)


def _records(mq: Client) -> int:
    return sum(each.high_watermark for each in mq.admin.offsets("delays").values())
