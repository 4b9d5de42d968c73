"""The exactly-once sink, while brokers are killed between each pair of its steps."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.spark.exactly_once_query import RECORDS_MAX
from tests.spark.query_process import MODULES, query_process
from tests.spark.strikes import STRIKES, StrikeFolder
from tinymq import Client
from tinymq.dev import dev_cluster, dev_directory, process
from tinymq.dev.dev_directory import DevBroker

PARTITIONS = 2
END_S = 1200.0  # two quiet processors need a minute or two
LOOK_S = 0.05


class StruckBrokers:
    """Three brokers that die by strikes, each a process. Use it in `with`."""

    def __init__(self, path: Path, strikes: StrikeFolder, struck: Path) -> None:
        self._at = dev_directory.create(path, 3)
        self._strikes = strikes
        self._struck = struck
        self.starts = 0

    @property
    def servers(self) -> str:
        return self._at.servers

    def __enter__(self) -> Self:
        self.keep_running()
        dev_cluster.up(self._at.path, 3, print)  # they run: it forms the cluster
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        dev_cluster.down(self._at.path, purge=False)

    def keep_running(self) -> None:
        """Start those that have died."""
        for broker in self._at.brokers:
            found = self._at.process(broker.id)
            if found is None or not found.alive:
                self._start(broker)

    def _start(self, broker: DevBroker) -> None:
        module = [sys.executable, "-m", "tests.spark.struck_broker", str(self._struck)]
        started = process.start([*module, "--config", str(self._at.config(broker.id))], self._at.log(broker.id))
        self._at.set_process(broker.id, started)
        self._strikes.note_broker(broker.id, started.pid)
        self.starts += 1


@pytest.mark.timeout(1800)
def test_each_row_is_written_once_though_leader_and_coordinator_die_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One query, one kill in each micro-batch. The query itself never fails, and no task of it is tried again."""
    monkeypatch.setenv("PYTHONPATH", MODULES)
    strikes, log, records = StrikeFolder(tmp_path), tmp_path / "log", len(STRIKES) * RECORDS_MAX
    with StruckBrokers(tmp_path / "brokers", strikes, tmp_path) as brokers, Client(brokers.servers) as mq:
        for topic in ("input", "output"):
            mq.admin.create_topic(topic, partitions=PARTITIONS)
        with mq.producer() as producer:
            for number in range(records):
                producer.send("input", b"%d" % number, partition=number % PARTITIONS)
        until_s = time.monotonic() + END_S
        with query_process(brokers.servers, tmp_path, "struck", log) as query:
            while True:
                brokers.keep_running()
                try:
                    query.wait(LOOK_S)
                except subprocess.TimeoutExpired:
                    assert time.monotonic() < until_s, f"{strikes.taken}: {log.read_text()[-5000:]}"
                    continue
                break
        assert query.returncode == 0, f"{strikes.taken}: {log.read_text()[-5000:]}"
        assert strikes.taken == set(range(len(STRIKES)))
        brokers.keep_running()
        assert brokers.starts == 3 + len(STRIKES)
        found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        with mq.reader("output", end="latest") as reader:
            for message in reader:
                assert message.offset == len(found[message.partition]), "offsets have no gap"
                found[message.partition].append(int(message.value or b"-1"))
        assert found == {partition: list(range(partition, records, PARTITIONS)) for partition in range(PARTITIONS)}
