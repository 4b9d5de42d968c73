"""Retention, capacity, holds, shares and channels by the command line, on three brokers, one of which is killed."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from grpc import StatusCode

from tests.fakes.queue_client import QueueClient
from tests.metrics.pages import get, parsed
from tinymq import Client, Offset
from tinymq.base.config import Limits, Timing
from tinymq.base.errors import Fenced, NotDelivered, OffsetOutOfRange, TinymqError
from tinymq.cli.common.exits import Exit
from tinymq.cli.main import run
from tinymq.client import Delivery
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.testing import Cluster

DEADLINE_S = 40.0
TIMING = Timing(retention_check_s=0.1)
RATE = 1 << 20  # bytes per second of one client; most tests send far less
ALL = (1, 2, 3)
BATCH = 16  # records of 1 KiB each, in one entry: a segment of 64 KiB has about four
HINT = "trim the partition, or raise the topic's bounds"

Capture = pytest.CaptureFixture[str]


@dataclass
class Three:
    """The brokers of all tests, inside this process, with real files and ports."""

    cluster: Cluster

    @property
    def servers(self) -> str:
        return self.cluster.servers

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            self.cluster.kill(number)

    def up(self) -> None:
        """Start the stopped brokers, and wait until every replica takes part again."""
        for number in set(ALL) - set(self.cluster.brokers):
            self.cluster.run(self.cluster._start(number))
        until(lambda: run(["cluster", "status", "-s", self.servers]) == Exit.OK, "not all take part")

    def segments(self, topic_id: bytes) -> dict[int, set[str]]:
        """Return the names of the segment files of a topic's partition 0, by broker."""
        folders = {number: Path(app.config.data_dir) for number, app in self.cluster.brokers.items()}
        paths = {number: folder / "groups" / topic_id.hex() / "0" for number, folder in folders.items()}
        return {number: {file.name for file in path.glob("*.log")} for number, path in paths.items()}

    def log_starts(self, topic: str) -> list[int]:
        """Return the log start of partition 0 that each broker reports."""
        pages = [json.loads(get(self.cluster.metrics_address(number), "/status")[2]) for number in ALL]
        rows = [replica for page in pages for replica in page["replicas"] if replica["topic"] == topic]
        return [row["log_start"] for row in rows if row["partition"] == 0]

    def throttled_s(self) -> float:
        """Return the total time by which the three brokers delayed the requests of producers."""
        pages = [parsed(get(self.cluster.metrics_address(number), "/metrics")[2]) for number in ALL]
        samples = [sample for page in pages for sample in page["tinymq_throttled_seconds"].samples]
        return sum(sample.value for sample in samples if sample.labels.get("direction") == "produce")


@pytest.fixture(scope="module")
def three() -> Iterator[Three]:
    """A client of the cluster, all of whose brokers run at the beginning of each test."""
    with Cluster(3, timing=TIMING, limits=Limits(client_produce_bytes_per_s=RATE), metrics=True) as cluster:
        yield Three(cluster)


@pytest.fixture
def mq(three: Three, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("TINYMQ_SERVERS", three.servers)
    three.up()
    with Client(three.servers) as client:
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


def send(client: Client, topic: str, numbers: range, size: int = 1) -> None:
    """Send numbers as batches of records of at least `size` bytes, and wait until all are acknowledged."""
    with client.producer(delivery_timeout_ms=60_000) as producer:
        for at in range(numbers.start, numbers.stop, BATCH):
            for number in range(at, min(at + BATCH, numbers.stop)):
                producer.send(topic, str(number).encode().rjust(size), partition=0)
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


# ---- retention and capacity ----------------------------------------------------------------------------------------


def test_old_records_are_removed_from_all_three_disks(three: Three, mq: Client, capfd: Capture) -> None:
    create("old", "segment_bytes=64KiB", "segment_ms=1s")
    send(mq, "old", range(300), size=1024)
    topic_id = mq.admin.describe_topic("old").topic_id
    until(lambda: all(len(names) >= 4 for names in three.segments(topic_id).values()), "all three have it")
    before = three.segments(topic_id)
    assert three.log_starts("old") == [0] * 3

    assert answer(capfd, "topic", "alter", "old", "--set", "retention_ms=1s")["settings"]["retention_ms"] == "1000"
    until(lambda: three.log_starts("old") == [300] * 3, "the log start moves on all three")
    until(lambda: not any(before[n] & names for n, names in three.segments(topic_id).items()), "the files are gone")
    with pytest.raises(OffsetOutOfRange) as gone, mq.reader("old", [0], Offset(5)) as reader:
        reader.poll(DEADLINE_S)
    assert (gone.value.detail["log_start"], gone.value.detail["high_watermark"]) == ("300", "300")
    capfd.readouterr()
    assert run(["consume", "old", "--offset", "5", "-e"]) == Exit.USAGE
    assert "offset 5 is below the log start 300 [OffsetOutOfRange]" in capfd.readouterr().err

    answer(capfd, "topic", "alter", "old", "--set", "retention_ms=none")
    send(mq, "old", range(300, 310))
    create("control", "retention_ms=1s")
    mq.admin.transfer_leader("control", 0, leader_of(mq, "old"))  # one broker checks the retention of both topics
    send(mq, "control", range(10))
    until(lambda: three.log_starts("control") == [10] * 3, "what came later is gone")
    assert read(mq, "old") == list(range(300, 310))
    assert three.log_starts("old") == [300] * 3


def test_a_full_topic_refuses_writes_until_it_drops_the_oldest(
    three: Three, mq: Client, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    create("full", "max_records=100", "on_full=reject")

    def produce(numbers: range, timeout_s: float) -> int:
        lines = io.BytesIO(b"".join(b"%d\n" % number for number in numbers))
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=lines))
        capfd.readouterr()
        return run(["produce", "full", "--partition", "0", "--timeout", str(timeout_s)])

    assert produce(range(100), DEADLINE_S) == Exit.OK
    assert produce(range(100, 110), 2.0) == Exit.FAILED
    said = capfd.readouterr().err
    assert "0 acknowledged, 10 not" in said
    assert "not written: the partition is full [QuotaExceeded]" in said
    assert said.count(f"hint: {HINT}\n") == 1, "logged once for all refusals"
    status, error = asyncio.run(refused(three.servers, pb.ProduceMessageRequest(topic="full", value=b"x")))
    assert (status, error.code, error.hint) == (StatusCode.RESOURCE_EXHAUSTED, "QuotaExceeded", HINT)
    assert int(error.detail["retry_after_ms"]) > 0
    assert read(mq, "full") == list(range(100))

    answer(capfd, "topic", "alter", "full", "--set", "on_full=drop_oldest")
    assert produce(range(100, 110), DEADLINE_S) == Exit.OK
    assert read(mq, "full") == list(range(10, 110))


def test_records_beyond_retention_bytes_are_removed_from_all_three_disks(
    three: Three, mq: Client, capfd: Capture
) -> None:
    create("large", "segment_bytes=64KiB", "retention_ms=none")
    send(mq, "large", range(320), size=1024)
    topic_id = mq.admin.describe_topic("large").topic_id
    until(lambda: all(len(names) >= 4 for names in three.segments(topic_id).values()), "all three have it")
    before = three.segments(topic_id)
    whole = record_bytes(three, mq, "large")
    assert whole > 320 * 1024
    bound = 100 * 1024
    assert answer(capfd, "topic", "alter", "large", "--set", f"retention_bytes={bound}")
    until(
        lambda: len(set(three.log_starts("large"))) == 1 and three.log_starts("large")[0] > 0, "it goes from all three"
    )
    (start,) = set(three.log_starts("large"))
    batch = whole // (320 // BATCH)
    assert bound <= record_bytes(three, mq, "large") <= bound + bound // 128 + batch, (
        "neither fewer records nor one more batch stay"
    )
    assert read(mq, "large") == list(range(start, 320))
    until(lambda: not any(min(before[n]) in names for n, names in three.segments(topic_id).items()), "files go")

    three.kill(leader_of(mq, "large"))
    send(mq, "large", range(320, 640), size=1024)
    three.up()
    until(lambda: min(three.log_starts("large")) >= 320 + start, "whoever leads keeps no more")
    until(lambda: len(set(three.log_starts("large"))) == 1, "and all three agree")
    kept = read(mq, "large")
    assert kept == list(range(kept[0], 640))
    assert bound <= record_bytes(three, mq, "large") <= bound + bound // 128 + batch


def test_a_partition_never_holds_more_bytes_than_its_bound(three: Three, mq: Client, capfd: Capture) -> None:
    bound = 100 * 1024
    create("bytes", f"max_bytes={bound}", "on_full=reject")
    producer = mq.producer(delivery_timeout_ms=2000, batch_bytes_max=16384)
    for number in range(200):
        producer.send("bytes", str(number).encode().rjust(1024), partition=0)
    with pytest.raises(NotDelivered) as full:
        producer.close()
    assert {record.error.code for record in full.value.records} == {"QuotaExceeded"}
    kept = read(mq, "bytes")
    assert 50 < len(kept) < 100, "the records that had room are there"
    assert sorted(kept + [int(record.value or b"") for record in full.value.records]) == list(range(200))
    assert record_bytes(three, mq, "bytes") <= bound
    mq.admin.trim("bytes", 0, Offset(len(kept) // 2))
    send(mq, "bytes", range(200, 216), size=1024)
    assert read(mq, "bytes") == [*kept[len(kept) // 2 :], *range(200, 216)], "the trim made room again"

    answer(capfd, "topic", "alter", "bytes", "--set", "on_full=drop_oldest")
    send(mq, "bytes", range(1000, 1100), size=1024)
    three.kill(leader_of(mq, "bytes"))
    send(mq, "bytes", range(1100, 1200), size=1024)
    three.up()
    last = read(mq, "bytes")
    assert len(last) > 50
    assert last == list(range(1200 - len(last), 1200))
    assert record_bytes(three, mq, "bytes") <= bound
    until(lambda: len(set(three.log_starts("bytes"))) == 1, "all three logs start at the same record")


def test_held_records_stay_across_a_change_of_leader(three: Three, mq: Client, capfd: Capture) -> None:
    create("held", "segment_bytes=64KiB", "retention_ms=none")
    send(mq, "held", range(100))
    made = answer(capfd, "hold", "create", "held", "0", "--offset", "40", "--lease", "10m")
    answer(capfd, "topic", "alter", "held", "--set", "retention_ms=1s")
    until(lambda: three.log_starts("held") == [40] * 3, "the records before the hold are removed")
    three.kill(leader_of(mq, "held"))
    send(mq, "held", range(100, 110))
    three.up()
    create("loose", "retention_ms=1s")
    mq.admin.transfer_leader("loose", 0, leader_of(mq, "held"))  # one broker checks the retention of both topics
    send(mq, "loose", range(10))
    until(lambda: three.log_starts("loose") == [10] * 3, "younger records without a hold are removed")
    assert three.log_starts("held") == [40] * 3
    assert read(mq, "held") == list(range(40, 110))
    trim = ["topic", "trim", "held", "0", "--before-offset", "50"]
    refused = ""
    for timeout_s in ("1", "5", "30"):  # on a slow machine, an answer takes longer than the first
        capfd.readouterr()
        assert run([*trim, "--timeout", timeout_s]) != Exit.OK
        refused = capfd.readouterr().err
        if "OutcomeUnknown" not in refused:
            break
    assert "Held" in refused

    (listed,) = answer(capfd, "hold", "list", "held")["holds"]
    assert (listed["hold"], listed["offset"]) == (made["hold"], 40)
    answer(capfd, "hold", "release", "held", "0", made["hold"])
    until(lambda: three.log_starts("held") == [110] * 3, "and then it goes, too")


def test_a_client_above_its_rate_is_delayed_and_loses_nothing(three: Three, mq: Client) -> None:
    create("shared")
    before, began = three.throttled_s(), time.monotonic()
    sent: list[Delivery] = []
    over = threading.Event()

    def greedy() -> None:
        with (
            Client(three.servers, client_id="greedy") as client,
            client.producer(buffer_bytes_max=RATE, batch_bytes_max=RATE // 4) as producer,
        ):
            while not over.is_set():
                sent.append(producer.send("shared", str(len(sent)).encode().rjust(8192), partition=0))

    thread = threading.Thread(target=greedy, daemon=True)
    thread.start()
    try:
        until(lambda: three.throttled_s() > before + 1, "it is made to wait")
        with Client(three.servers, client_id="modest") as modest:
            alone = modest.send("shared", b"-1", partition=0)
        assert not all(delivery.done() for delivery in list(sent)[:-1]), "a client below its rate is not delayed"
    finally:
        over.set()
        thread.join(DEADLINE_S)
    assert all(delivery.exception(DEADLINE_S) is None for delivery in sent), "no write failed"
    assert time.monotonic() - began > len(sent) * 8192 / RATE - 1.5, (
        "a burst of one second's bytes passes, then the rate applies"
    )
    found = read(mq, "shared")
    assert found.pop(alone.offset) == -1
    assert found == list(range(len(sent)))


def record_bytes(three: Three, mq: Client, topic: str) -> int:
    """Return the bytes of records in partition 0, as its leader counts them."""
    topic_id, leader = mq.admin.describe_topic(topic).topic_id, leader_of(mq, topic)

    async def ask() -> pb.ListChannelsReply:
        async with grpc.aio.insecure_channel(three.cluster.address(leader)) as channel:
            request = pb.ListChannelsRequest(topic_id=topic_id, partitions=[0])
            return await pb_grpc.ChannelsStub(channel).List(request, timeout=DEADLINE_S)

    (found,) = asyncio.run(ask()).partitions
    assert not found.HasField("error"), found.error
    return found.record_bytes


async def refused(servers: str, request: pb.ProduceMessageRequest) -> tuple[StatusCode, TinymqError]:
    """Return the outcome of sending one message."""
    async with QueueClient(servers.split(",")) as client:
        return await client.refused("ProduceMessage", request)


# ---- channels ------------------------------------------------------------------------------------------------------


def test_a_channel_resumes_at_its_position_and_has_one_consumer(three: Three, mq: Client, capfd: Capture) -> None:
    create("queue")
    send(mq, "queue", range(100))
    with mq.queue("queue", channel="c", auto_commit=False) as first:
        assert [m.offset for m in first.poll(10)] == list(range(10))
        first.commit()
        three.kill(leader_of(mq, "queue"))
        assert [m.offset for m in first.poll(10)] == list(range(10, 20))
        first.commit()
        three.kill(*three.cluster.brokers)
        three.up()
        (channel,) = answer(capfd, "channel", "list", "queue")["channels"]
        assert (channel["position"], channel["lag"]) == (20, 80)
        assert [m.offset for m in first.poll(10)] == list(range(20, 30)), "the consumer need not reopen the channel"
        first.commit()
        assert [m.offset for m in first.poll(10)] == list(range(30, 40))
    with mq.queue("queue", channel="c", auto_commit=False) as again:
        assert [m.offset for m in again.poll(5)] == list(range(30, 35)), (
            "records that were not committed are delivered again"
        )
        with mq.queue("queue", channel="c", auto_commit=False) as second:
            assert [m.offset for m in second.poll(100)] == list(range(30, 100))
            with pytest.raises(Fenced):
                again.commit()
            second.commit()
    (channel,) = answer(capfd, "channel", "list", "queue")["channels"]
    assert (channel["position"], channel["lag"]) == (100, 0)
