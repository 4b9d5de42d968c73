"""A standalone Spark cluster in processes: an executor is killed while it reads, and the query continues."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.spark.standalone import Standalone, end, submit, wait_until
from tinymq.testing.cluster import Cluster

PROGRAM = Path(__file__).parent / "programs" / "held_query.py"
TOPIC = "held"
PARTITIONS = 4
RECORDS = 20_000
QUERY_S_MAX = 400.0  # for six JVMs that share two cores with other programs


@pytest.mark.timeout(QUERY_S_MAX + 200)
def test_a_query_goes_on_when_an_executor_is_killed(cluster: Cluster, standalone: Standalone, tmp_path: Path) -> None:
    client = cluster.client()
    client.admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
    with client.producer() as producer:
        for i in range(RECORDS):
            producer.send(TOPIC, b"%d" % i, key=b"%d" % i)
    waiting = tmp_path / "waiting"
    waiting.mkdir()
    words = (cluster.servers, TOPIC, str(tmp_path))
    log = tmp_path / "query.log"
    query = submit(PROGRAM, *words, folder=tmp_path, python=sys.executable, master=standalone.url, log=log)
    try:
        wait_until(lambda: len(list(waiting.iterdir())) == 2 or query.poll() is not None, "two tasks read", QUERY_S_MAX)
        assert query.poll() is None, log.read_text()[-4_000:]
        victim, _ = sorted(standalone.executors())
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in standalone.executors(), "it is gone")
        (tmp_path / "go").touch()
        assert query.wait(QUERY_S_MAX) == 0, log.read_text()[-4_000:]
    finally:
        end(query)
    found = json.loads((tmp_path / "result.json").read_text())
    assert len(found) == RECORDS, "no row is missing or repeated"
    assert len({(partition, offset) for partition, offset, _ in found}) == RECORDS
    again = {partition for partition, _, attempt in found if attempt > 0}
    assert len(again) == 1, "only the killed executor's task was repeated"
