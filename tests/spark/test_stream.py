"""Streams against real brokers, driven like Spark does; test_session.py has Spark's own part."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from pyspark_tinymq.read.stream import StreamReader
from tests.spark.reading import numbers, ranges, read, send, spans, stream
from tinymq import Client
from tinymq.base.errors import InvalidConfig, InvalidRequest, OffsetOutOfRange, TinymqError, UnknownPartition
from tinymq.base.types import Offset
from tinymq.testing.cluster import Cluster

Written = dict[str, Any]


class Query:
    """Spark's part of a stream: it stores offsets as text, and plans from one to the next."""

    def __init__(self, reader: StreamReader, checkpoint: list[str] | None = None) -> None:
        self.reader = reader
        self.log = checkpoint if checkpoint is not None else []  # the ends of the micro-batches
        self.limit: ReadLimit | None = None
        self._initial = ""

    @property
    def start(self) -> Written:
        if not self.log and not self._initial:
            self._initial = json.dumps(self.reader.initialOffset())
        return dict(json.loads(self.log[-1] if self.log else self._initial))

    def begins(self) -> bool:
        """Plan the next micro-batch, if there is one, and write its end into the log."""
        start = self.start
        end = json.dumps(self.reader.latestOffset(start, self.limit or self.reader.getDefaultReadLimit()))
        if end == json.dumps(start):
            return False
        self.log.append(end)
        return True

    def runs(self) -> list[int]:
        """The last micro-batch in the log."""
        end = json.loads(self.log[-1])
        if len(self.log) > 1:
            start = json.loads(self.log[-2])
        else:
            start = json.loads(self._initial or json.dumps(self.reader.initialOffset()))
        return numbers(read(self.reader, self.reader.partitions(start, end)))

    def batch(self) -> list[int] | None:
        """The next micro-batch; None if there are no new records."""
        return self.runs() if self.begins() else None


def test_a_stream_takes_what_comes_and_nothing_twice(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("coming")
    send(cluster, "coming", 5)
    latest = Query(stream(cluster, subscribe="coming"))
    earliest = Query(stream(cluster, subscribe="coming", startingOffsets="earliest"))
    assert latest.batch() == []  # it names the query's start
    assert latest.batch() is None
    assert earliest.batch() == [0, 1, 2, 3, 4]
    assert earliest.batch() is None
    send(cluster, "coming", 3, first=5)
    assert latest.batch() == [5, 6, 7]
    assert earliest.batch() == [5, 6, 7]
    assert earliest.batch() is None
    assert earliest.reader.reportLatestOffset() == {"coming": {"0": 8}}


@pytest.mark.parametrize("where", ["latest", "earliest"])
def test_a_restart_goes_on_where_the_checkpoint_ends(cluster: Cluster, mq: Client, where: str) -> None:
    """Also when the first micro-batch was planned but not completed: the repeat is the same, whichever records came
    since.
    """
    topic = f"restarted-{where}"
    mq.admin.create_topic(topic)
    send(cluster, topic, 4)
    options: dict[str, object] = {"subscribe": topic, "startingOffsets": where}
    first = Query(stream(cluster, **options))
    assert first.batch() == ([] if where == "latest" else [0, 1, 2, 3])
    send(cluster, topic, 1, first=4)
    assert Query(stream(cluster, **options), first.log).batch() == [4]
    checkpoint: list[str] = []
    second = Query(stream(cluster, **options), checkpoint)
    _ = second.start
    send(cluster, topic, 3, first=5)
    assert second.begins()
    send(cluster, topic, 3, first=8)  # and here the driver dies
    third = Query(stream(cluster, **options), checkpoint)
    again = third.runs()
    assert again == ([] if where == "latest" else [0, 1, 2, 3, 4, 5, 6, 7])
    assert third.batch() == [8, 9, 10]
    assert Query(stream(cluster, **options), checkpoint).runs() == [8, 9, 10]


def test_admission_by_records(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("bounded", partitions=2)
    send(cluster, "bounded", 90)
    send(cluster, "bounded", 10, partition=1)
    query = Query(stream(cluster, subscribe="bounded", startingOffsets="earliest", maxOffsetsPerTrigger=50))
    assert isinstance(query.reader.getDefaultReadLimit(), ReadMaxRows)
    assert query.begins()
    assert spans(query.reader.partitions(query.reader.initialOffset(), query.start)) == [
        ("bounded/0", 0, 45),
        ("bounded/1", 0, 5),
    ]
    query.limit = ReadAllAvailable()  # Trigger.Once
    assert query.batch() == [*range(45, 90), *range(5, 10)]


def test_admission_by_bytes(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("heavy")
    with mq.producer() as producer:
        for _ in range(100):
            producer.send("heavy", b"x" * 10_000)
    query = Query(stream(cluster, subscribe="heavy", startingOffsets="earliest", maxBytesPerTrigger="100k"))
    counts = []
    while query.begins():
        start = json.loads(query.log[-2]) if len(query.log) > 1 else query.reader.initialOffset()
        counts.append(sum(each.end - each.start for each in ranges(query.reader.partitions(start, query.start))))
    assert sum(counts) == 100
    assert set(counts[:-1]) <= {9, 10}


def test_too_little_waits_for_more_or_for_its_time(
    cluster: Cluster, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq.admin.create_topic("slow")
    now_s = 1000.0
    monkeypatch.setattr("pyspark_tinymq.read.stream.monotonic", lambda: now_s)
    options: dict[str, object] = {"subscribe": "slow", "minOffsetsPerTrigger": 10, "maxTriggerDelay": "60s"}
    query = Query(stream(cluster, **options, startingOffsets="earliest"))
    send(cluster, "slow", 2)
    assert query.batch() == [0, 1], "present records do not wait at the start"
    send(cluster, "slow", 9, first=2)
    assert query.batch() is None
    send(cluster, "slow", 1, first=11)
    assert query.batch() == list(range(2, 12))
    send(cluster, "slow", 1, first=12)
    assert query.batch() is None
    now_s += 61.0
    assert query.batch() == [12]
    send(cluster, "slow", 1, first=13)
    assert query.batch() is None
    again = Query(stream(cluster, **options), query.log)
    assert again.batch() == [13]
    send(cluster, "slow", 1, first=14)
    assert again.batch() is None
    again.reader.prepareForTriggerAvailableNow()
    assert again.batch() == [14]


def test_available_now_ends_where_it_was_when_it_began(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("today")
    send(cluster, "today", 10)
    query = Query(stream(cluster, subscribe="today", startingOffsets="earliest", maxOffsetsPerTrigger=4))
    query.reader.prepareForTriggerAvailableNow()
    send(cluster, "today", 10, first=10)
    found = [query.batch(), query.batch(), query.batch()]
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert query.batch() is None
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch() == [10, 11, 12, 13]


def test_partitions_and_topics_that_come_later(cluster: Cluster, mq: Client) -> None:
    """New partitions are read from their first record; an empty one adds nothing."""
    mq.admin.create_topic("grow-a")
    query = Query(stream(cluster, subscribePattern="grow-.*"))
    assert query.batch() == []
    mq.admin.add_partition("grow-a")
    mq.admin.create_topic("grow-b")
    assert query.batch() is None
    send(cluster, "grow-a", 3, partition=1)
    send(cluster, "grow-b", 2, first=10)
    assert query.batch() == [0, 1, 2, 10, 11]
    assert query.batch() is None


@pytest.mark.parametrize("fails", ["true", "false"])
def test_records_trimmed_between_two_micro_batches(cluster: Cluster, mq: Client, fails: str) -> None:
    """Without holdMs a stream refuses no trim; if its next records are removed, that is a data loss."""
    topic = f"paused-{fails}"
    mq.admin.create_topic(topic)
    send(cluster, topic, 10)
    options: dict[str, object] = {"subscribe": topic, "failOnDataLoss": fails, "holdMs": 0, "replica": "leader"}
    query = Query(stream(cluster, **options, startingOffsets="earliest"))
    assert query.batch() == list(range(10))
    send(cluster, topic, 10, first=10)
    mq.admin.trim(topic, 0, Offset(15))
    assert query.begins()
    if fails == "true":
        with pytest.raises(OffsetOutOfRange, match="begins with 15 now: 10 to 14 were removed"):
            query.runs()
    else:
        assert query.runs() == list(range(15, 20))


def test_earliest_whose_head_goes_before_the_first_micro_batch(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("fading")
    send(cluster, "fading", 10)
    query = Query(stream(cluster, subscribe="fading", startingOffsets="earliest", holdMs=0))
    assert query.begins()
    mq.admin.trim("fading", 0, Offset(4))
    assert query.runs() == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_was_recreated_is_another_one(cluster: Cluster, mq: Client, fails: str) -> None:
    topic = f"again-{fails}"
    mq.admin.create_topic(topic)
    send(cluster, topic, 5)
    query = Query(stream(cluster, subscribe=topic, startingOffsets="earliest", failOnDataLoss=fails))
    assert query.batch() == [0, 1, 2, 3, 4]
    mq.admin.delete_topic(topic)
    mq.admin.create_topic(topic)
    send(cluster, topic, 8, first=100)
    if fails == "true":
        with pytest.raises(OffsetOutOfRange, match="deleted and made again"):
            query.begins()
    else:
        assert query.batch() == list(range(100, 108))
        assert query.batch() is None


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_partition_that_is_gone(cluster: Cluster, mq: Client, fails: str) -> None:
    topic = f"shrunk-{fails}"
    mq.admin.create_topic(topic, partitions=2)
    send(cluster, topic, 3)
    send(cluster, topic, 3, partition=1, first=10)
    query = Query(stream(cluster, subscribe=topic, startingOffsets="earliest", failOnDataLoss=fails))
    assert query.batch() == [0, 1, 2, 10, 11, 12]
    mq.admin.delete_partition(topic, 1)
    send(cluster, topic, 1, first=3)
    if fails == "true":
        with pytest.raises(UnknownPartition, match=f"{topic}/1 is gone"):
            query.begins()
    else:
        assert query.batch() == [3]


def test_the_next_records_are_held(cluster: Cluster, mq: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hold moves when a micro-batch is completed. While idle it is renewed at each third of its lease."""
    mq.admin.create_topic("kept")
    send(cluster, "kept", 5)
    now_s = 1000.0
    monkeypatch.setattr("pyspark_tinymq.plan.planner.monotonic", lambda: now_s)
    query = Query(stream(cluster, subscribe="kept", startingOffsets="earliest", holdMs=4_000))
    assert query.batch() == [0, 1, 2, 3, 4]
    (hold,) = mq.admin.list_holds("kept")
    assert hold.offset == 0
    assert query.batch() is None
    (moved,) = mq.admin.list_holds("kept")
    assert (moved.hold_id, moved.offset) == (hold.hold_id, 5)
    while any(each.left_s > 3.2 for each in mq.admin.list_holds("kept")):
        assert query.batch() is None
    now_s += 1.4  # more than a third of the lease
    assert query.batch() is None
    (renewed,) = mq.admin.list_holds("kept")
    assert (renewed.hold_id, renewed.offset) == (hold.hold_id, 5)
    assert renewed.left_s > 3.2


def test_progress_is_published(cluster: Cluster, mq: Client) -> None:
    """Progress is a channel with the stream's lag. The last micro-batch is published when Spark asks for more."""
    mq.admin.create_topic("watched", partitions=2)
    send(cluster, "watched", 10)
    options: dict[str, object] = {"subscribe": "watched", "startingOffsets": "earliest", "groupId": "spark-watch"}
    query = Query(stream(cluster, **options, maxOffsetsPerTrigger=6))
    query.reader.prepareForTriggerAvailableNow()

    def lags() -> list[tuple[int, int]]:
        return [(channel.position, channel.lag) for channel in mq.admin.list_channels("watched")]

    assert query.batch() == [0, 1, 2, 3, 4, 5]
    query.reader.commit(query.start)
    assert lags() == [(6, 4), (0, 0)]
    assert query.batch() == [6, 7, 8, 9]
    assert query.batch() is None
    assert lags() == [(10, 0), (0, 0)]
    send(cluster, "watched", 5, first=10)
    assert lags() == [(10, 5), (0, 0)]
    again = Query(stream(cluster, **options), query.log)
    assert again.batch() == [10, 11, 12, 13, 14]


def test_a_channel_with_a_reader_is_left_alone(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("shared")
    send(cluster, "shared", 3)
    with mq.queue("shared", 0, "workers", consumer="a-worker") as queue:
        assert queue.poll()
        with pytest.raises(InvalidConfig, match="a-worker reads shared/0"):
            Query(stream(cluster, subscribe="shared", groupId="workers")).begins()


def test_where_a_stream_cannot_begin(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("small")
    send(cluster, "small", 3)
    cases: list[tuple[dict[str, object], type[TinymqError]]] = [
        ({"startingOffsets": '{"small":{"0":9}}'}, OffsetOutOfRange),
        ({"startingOffsets": '{"small":{"1":0}}'}, UnknownPartition),
        ({"startingTimestamp": 1 << 50}, InvalidRequest),
    ]
    for options, error in cases:
        with pytest.raises(error):
            Query(stream(cluster, subscribe="small", **options)).begins()
    late = Query(
        stream(cluster, subscribe="small", startingTimestamp=1 << 50, startingOffsetsByTimestampStrategy="latest")
    )
    assert late.batch() == []
    send(cluster, "small", 1, first=3)
    assert late.batch() == [3]
