"""Topics in memory, and topics synced at intervals, on three real processes that are killed."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tinymq import Client
from tinymq.base.types import GroupId, TopicId
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.client import Delivery
from tinymq.dev import dev_cluster, dev_directory

DEADLINE_S = 40.0
ALL = (1, 2, 3)
BATCH = 16  # records in one entry

Capture = pytest.CaptureFixture[str]


@dataclass
class Dev:
    """A local cluster of three processes."""

    path: Path

    @property
    def folder(self) -> dev_directory.DevDirectory:
        return dev_directory.load(self.path)

    def kill(self, *numbers: int) -> None:
        """Send SIGKILL to all brokers before waiting for any of them."""
        processes = [self.folder.process(number) for number in numbers]
        assert all(process is not None and process.signal(signal.SIGKILL) for process in processes)
        deadline = time.monotonic() + DEADLINE_S
        assert all(process is not None and process.wait_gone(deadline) for process in processes)

    def up(self) -> None:
        """Start the stopped brokers, and wait until every replica takes part again."""
        dev_cluster.up(self.path, None, lambda _: None)
        until(lambda: run(["cluster", "status", "-s", self.folder.servers]) == Exit.OK, "not all take part")

    def said(self, event: str) -> list[dict[str, Any]]:
        """Return the matching lines of all three logs."""
        lines = [line for number in ALL for line in self.folder.log(number).read_text().splitlines() if event in line]
        return [found for line in lines if (found := json.loads(line))["event"] == event]

    def segments(self, topic_id: bytes) -> dict[int, set[str]]:
        """Return the names of the segment files of a topic's partition 0, by broker."""
        paths = {number: self.folder.data(number) / "groups" / topic_id.hex() / "0" for number in ALL}
        return {number: {file.name for file in path.glob("*.log")} for number, path in paths.items()}


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """The cluster of all tests. All of its brokers run at the beginning of each test, and none afterwards."""
    path = tmp_path_factory.mktemp("topics") / "dev"
    dev_cluster.up(path, 3, lambda _: None)
    try:
        yield Dev(path)
    finally:
        dev_cluster.down(path, purge=False)


@pytest.fixture
def mq(dev: Dev, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("TINYMQ_SERVERS", dev.folder.servers)
    dev.up()
    with Client(dev.folder.servers) as client:
        yield client


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < deadline, what
        pause.wait(0.05)


def answer(capfd: Capture, *command: str) -> Any:
    capfd.readouterr()
    assert run([*command, "-o", "json"]) == Exit.OK, capfd.readouterr().err
    return json.loads(capfd.readouterr().out)


def create(name: str, *settings: str) -> None:
    options = [word for setting in settings for word in ("--set", setting)]
    assert run(["topic", "create", name, "-p", "1", "-r", "3", *options]) == Exit.OK


def send(client: Client, topic: str, numbers: range) -> None:
    """Send numbers in batches, and wait until all are acknowledged."""
    with client.producer(delivery_timeout_ms=60_000) as producer:
        for at in range(numbers.start, numbers.stop, BATCH):
            for number in range(at, min(at + BATCH, numbers.stop)):
                producer.send(topic, b"%d" % number, partition=0)
            producer.flush()


def read(client: Client, topic: str) -> list[int]:
    with client.reader(topic, end="latest") as reader:
        return [int(record.value or b"") for record in reader]


def leader_of(client: Client, topic: str) -> int:
    found = [0]

    def known() -> bool:
        found.append(client.admin.describe_topic(topic).partitions[0].leader)
        return found[-1] != 0

    until(known, f"{topic} has no leader")
    return found[-1]


def test_a_topic_in_memory_outlives_the_broker_that_leads_it(dev: Dev, mq: Client, capfd: Capture) -> None:
    """tests/testing/test_storages.py kills every broker, one after the other."""
    create("memory", "storage=memory", "max_bytes=1MiB")
    promise = answer(capfd, "topic", "describe", "memory")["promise"]
    assert "in the memory of a majority of its replicas, and on no disk" in promise
    assert "without any, offsets begin at 0 again" in promise
    send(mq, "memory", range(100))
    dev.kill(leader_of(mq, "memory"))
    assert read(mq, "memory") == list(range(100)), "two of three replicas have the record"
    dev.up()
    assert read(mq, "memory") == list(range(100)), "another replica fills the third"
    assert dev.said("memory_topic_lost") == []
    assert dev.segments(mq.admin.describe_topic("memory").topic_id) == {number: set() for number in ALL}


def test_a_topic_synced_at_intervals_outlives_all_processes_and_one_in_memory_does_not(
    dev: Dev, mq: Client, capfd: Capture
) -> None:
    """None of the first records was synced, because the interval is longer than the test."""
    create("lost", "storage=memory", "max_bytes=1MiB")
    send(mq, "lost", range(100))
    create("lazy", "sync=60s")
    assert "Brokers that crash lose nothing" in answer(capfd, "topic", "describe", "lazy")["promise"]
    sent: list[Delivery] = []
    acknowledged = threading.Semaphore(0)
    over = threading.Event()

    def produce() -> None:
        with mq.producer(delivery_timeout_ms=60_000) as producer:
            while not over.is_set():
                sent.append(producer.send("lazy", b"%d" % len(sent), partition=0))
                if len(sent) % BATCH == 0:
                    sent[-1].result(DEADLINE_S)
                    acknowledged.release()

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        for _ in range(20):
            assert acknowledged.acquire(timeout=DEADLINE_S)
        dev.kill(*ALL)
        before = sum(delivery.done() for delivery in list(sent))
        assert before >= 20 * BATCH
        dev.up()
        assert acknowledged.acquire(timeout=DEADLINE_S), "the producer works again"
    finally:
        over.set()
        thread.join(DEADLINE_S)
    assert read(mq, "lazy") == list(range(len(sent))), "each record once and in order, including every acknowledged one"

    lost = mq.admin.describe_topic("lost").topic_id
    assert str(GroupId(TopicId(lost), 0)) in {line["group"] for line in dev.said("memory_topic_lost")}
    (partition,) = answer(capfd, "topic", "describe", "lost")["partitions"]
    assert (partition["start_offset"], partition["end_offset"]) == (0, 0)
    with Client(dev.folder.servers) as client:
        send(client, "lost", range(7))
        assert read(client, "lost") == list(range(7))
