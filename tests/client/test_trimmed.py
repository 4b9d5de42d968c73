"""The next record was removed: readers and queues raise an error, or skip and count the offsets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from tinymq import Client, Offset, Queue
from tinymq.base.errors import InvalidConfig, InvalidRequest, OffsetOutOfRange, UnknownPartition
from tinymq.testing.cluster import Cluster

NAMES = (f"t{i}" for i in itertools.count())
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        yield running


@pytest.fixture(scope="module")
def mq(cluster: Cluster) -> Client:
    return cluster.client(request_timeout_ms=10_000)


@pytest.fixture
def topic(mq: Client) -> str:
    """Append twenty batches of one record each, one second apart."""
    name = mq.admin.create_topic(next(NAMES), partitions=1, replication_factor=3).name
    for i in range(20):
        mq.send(name, b"%d" % i, timestamp=FIRST + timedelta(seconds=i))
    return name


def drain(queue: Queue, seen: list[int]) -> None:
    while found := queue.poll(3):
        seen += [m.offset for m in found]


def test_a_queue_removes_its_head_for_all_channels(mq: Client, topic: str) -> None:
    with mq.queue(topic, channel="c") as queue, mq.queue(topic, channel="d") as other:
        assert queue.remove_before(Offset(5)) == 5
        assert queue.remove_before(Offset(3)) == 5, "only ever forward"
        assert queue.remove_before(FIRST + timedelta(seconds=7)) == 7
        with pytest.raises(OffsetOutOfRange):
            queue.get(Offset(6))
        assert [m.offset for _ in range(2) for m in other.poll()] == [7, 8]
        assert queue.size() == 13
        for call in (queue.remove_before, partial(mq.admin.trim, topic, 0)):
            with pytest.raises(OffsetOutOfRange) as beyond:
                call(Offset(21))
            assert beyond.value.detail == {"log_start": "7", "high_watermark": "20"}
        assert queue.size() == 13, "and nothing is gone"
        assert queue.remove_before("latest") == 20
        assert queue.size() == 0
    assert mq.admin.offsets(topic)[0].log_start == 20


def test_a_queue_does_not_deliver_removed_messages_from_its_buffer(mq: Client, topic: str) -> None:
    with mq.queue(topic, channel="ahead") as queue:
        assert [m.offset for m in queue.poll(2)] == [0, 1]
        assert queue.remove_before(Offset(10)) == 10
        assert queue.position() == 10
        assert [m.offset for m in queue.poll(3)] == [10, 11, 12]
        assert queue.remove_before(Offset(12)) == 12, "behind what comes next: nothing is read twice"
        assert [m.offset for m in queue.poll()] == [13]
        assert queue.skipped == 0


def test_removed_records_are_reported(mq: Client, topic: str) -> None:
    with mq.queue(topic, channel="c", fetch_bytes_max=1, buffer_bytes_max=1) as queue:
        queue.poll(2)
        queue.commit()
        mq.admin.trim(topic, 0, Offset(15))
        seen: list[int] = []
        with pytest.raises(OffsetOutOfRange) as raised:
            drain(queue, seen)
        assert raised.value.detail["log_start"] == "15"
        assert max(seen, default=0) < 15, "what had been fetched"
        with pytest.raises(OffsetOutOfRange):
            queue.poll()
        assert queue.seek("earliest") == 15
        seen.clear()
        drain(queue, seen)
        assert seen == list(range(15, 20))
        assert queue.skipped == 0


def test_removed_records_are_skipped_and_counted_on_request(mq: Client, topic: str) -> None:
    with mq.queue(topic, channel="c", on_trimmed="skip", fetch_bytes_max=1, buffer_bytes_max=1) as queue:
        seen = [m.offset for m in queue.poll(2)]
        mq.admin.trim(topic, 0, Offset(15))
        drain(queue, seen)
        assert len(seen) + queue.skipped == 20
        assert queue.skipped > 0
        assert seen == sorted(seen)
        assert seen[-5:] == list(range(15, 20))
        mq.send(topic, b"20")
        mq.admin.trim(topic, 0, Offset(21))
        drain(queue, seen)  # the record was removed, unless it had been fetched, and there is no other
        mq.send(topic, b"21")
        drain(queue, seen)
        assert seen[-1] == 21
        assert len(seen) + queue.skipped == 22


def test_readers_do_the_same(cluster: Cluster, mq: Client, topic: str) -> None:
    mq.admin.trim(topic, 0, Offset(15))
    topic_id = mq.admin.describe_topic(topic).topic_id

    def all_know() -> bool:
        brokers = [app.serving.broker for app in cluster.brokers.values()]
        return all(broker is not None and broker.find(topic_id, 0).log_start == 15 for broker in brokers)

    cluster.wait_until(all_know)
    with pytest.raises(OffsetOutOfRange):
        mq.reader(topic, start=Offset(3)).poll(10)
    for replica in ("leader", "follower"):
        with mq.reader(topic, start=Offset(3), end="latest", on_trimmed="skip", replica=replica) as reader:
            assert reader.skipped in (0, 12)
            assert [m.offset for m in reader] == list(range(15, 20))
            assert reader.skipped == 12
    with pytest.raises(InvalidConfig, match="skp"):
        mq.reader(topic, on_trimmed="skp")


def test_a_trim_of_what_is_not_there(mq: Client, topic: str) -> None:
    with pytest.raises(UnknownPartition):
        mq.admin.trim(topic, 1, Offset(3))
    for bad in (5, None, "now"):
        with pytest.raises(InvalidRequest):
            mq.admin.trim(topic, 0, bad)  # type: ignore[arg-type]
    for bad in ("5", True, "earliest"):
        with pytest.raises(InvalidRequest):
            mq.admin.hold(topic, 0, bad)  # type: ignore[arg-type]
    for lease in (0.5, 4000, True, "1"):
        with pytest.raises(InvalidRequest):
            mq.admin.hold(topic, 0, Offset(1), lease=lease)  # type: ignore[arg-type]
    mq.admin.trim(topic, 0, Offset(9))
    with pytest.raises(OffsetOutOfRange), mq.admin.hold(topic, 0, Offset(8)):
        pass
