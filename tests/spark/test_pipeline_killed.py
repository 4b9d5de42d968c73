"""flight_delays on a few days of flights: its process is killed in a micro-batch, a broker dies, and nothing is wrong.

The whole year, with more kills, is in long/test_pipeline_killed.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from examples.flights import source
from examples.flights.source import Flight
from pipelines import committed, comparison, load, reference
from pipelines.returned import returned
from tests.spark.pipeline_runs import WINDOWS, Runs
from tinymq.testing.cluster import Cluster

FLIGHTS = 4_000
BATCH_RECORDS = 1_000
RUN_S_MAX = 240.0  # of a machine with much else to do; seconds where there is nothing


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    """The first days of 2013."""
    return source.load(source.find_data())[:FLIGHTS]


@pytest.mark.timeout(600)
def test_killed_in_a_batch_and_a_broker_dies_and_every_window_is_there_once(
    cluster: Cluster, flights: list[Flight], tmp_path: Path
) -> None:
    mq = cluster.client()
    mq.admin.create_topic("flights", 3)
    mq.admin.create_topic("delays", 2)
    load.send(mq, "flights", flights, lambda _: None)
    runs = Runs(tmp_path, cluster.servers, BATCH_RECORDS)
    with runs.start() as run:
        killed = runs.kill_within(run, WINDOWS, 1, RUN_S_MAX, also=lambda: True)
    cluster.kill(cluster.wait_leader("flights", 0))
    with runs.start() as run:
        reports = runs.finish(run, RUN_S_MAX)

    windows = [report for report in reports if report.query == WINDOWS]
    assert killed in [report.batch for report in windows]
    assert sum(report.rows_in for report in windows) == FLIGHTS + 1, "each was counted once, and the closing record"
    assert sum(report.dropped for report in reports) == 0
    expected = reference.rows(reference.of_flights(_table(flights)))
    assert comparison.compare(committed.read(tmp_path / "results").to_pylist(), expected).examples == ()
    came_back = returned(mq.reader("delays", end="latest").to_arrow())
    assert comparison.compare(came_back.rows, expected).examples == ()
    assert sum(row["flights"] for row in expected) == FLIGHTS


def _table(flights: list[Flight]) -> pd.DataFrame:
    found = pd.DataFrame([json.loads(flight.value) for flight in flights])
    return found.assign(time_hour=pd.to_datetime(found["time_hour"]))
