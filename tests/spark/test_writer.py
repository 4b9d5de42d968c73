"""Tasks of the sink, in this process, against real brokers: acknowledgements, failures and errors."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from pyspark_tinymq.session import session
from pyspark_tinymq.write.place import PLACE, TaskPlace
from pyspark_tinymq.write.sink import Sink, read_sink
from pyspark_tinymq.write.writer import Range, Written, send, summary
from tinymq import Client
from tinymq.base.errors import BatchTooLarge, TinymqError, UnknownPartition, UnknownTopic
from tinymq.testing.cluster import Cluster

TASK = TaskPlace("app", 0, 2)


def sink(cluster: Cluster, **options: str) -> Sink:
    return read_sink({"servers": cluster.servers, "deliveryTimeoutMs": "20000"} | options)


def batches(count: int, rows: int = 10, size: int = 0) -> Iterator[pa.RecordBatch]:
    """`count` batches of numbered rows."""
    for batch in range(count):
        numbers = range(batch * rows, (batch + 1) * rows)
        yield pa.RecordBatch.from_pydict({"value": [b"%d" % n + b"." * size for n in numbers]})


def stored(mq: Client, topic: str) -> list[tuple[bytes, bytes]]:
    """(value, place) of every record of a topic, in order."""
    with mq.reader(topic, end="latest") as reader:
        table = reader.to_arrow()
    headers = table.column("headers").to_pylist()
    places = [next((pair["value"] for pair in row or () if pair["key"] == PLACE), b"") for row in headers]
    return list(zip(table.column("value").to_pylist(), places, strict=True))


def test_all_rows_are_acknowledged_when_a_task_answers(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("whole")
    written = send(sink(cluster, topic="whole"), batches(7), TASK, 3)
    assert stored(mq, "whole") == [(b"%d" % n, b"app/0/2/%d" % n) for n in range(70)]
    assert written.ranges == (Range("whole", 0, 0, 70, 70),)
    assert (written.application, written.version, written.partition, written.attempt) == ("app", 0, 2, 3)
    assert summary([written, None]) == "70 records of 1 tasks are in whole"


def test_another_attempt_writes_the_same_places_under_an_id_of_its_own(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("again", partitions=3)
    first, second = (send(sink(cluster, topic="again"), batches(2), TASK, attempt) for attempt in range(2))
    assert first.write_id != second.write_id
    rows = sorted(stored(mq, "again"))
    assert len(rows) == 40
    assert rows[::2] == rows[1::2]


def test_a_task_without_rows_asks_nothing_of_the_cluster() -> None:
    nowhere = read_sink({"servers": "127.0.0.1:1", "topic": "t"})
    empty = pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())})
    written = send(nowhere, iter([empty, empty]), TASK, 0)
    assert (written.records, written.ranges) == (0, ())


def test_columns_say_where_to(cluster: Cluster, mq: Client) -> None:
    for topic in ("left", "right"):
        mq.admin.create_topic(topic, partitions=2)
    given = {
        "value": [b"a", b"b", b"c"],
        "topic": ["left", "right", "left"],
        "partition": pa.array([1, 0, 1], pa.int32()),
    }
    written = send(sink(cluster, includePlace="false"), iter([pa.RecordBatch.from_pydict(given)]), TASK, 0)
    assert written.ranges == (Range("left", 1, 0, 2, 2), Range("right", 0, 0, 1, 1))
    assert stored(mq, "left") == [(b"a", b""), (b"c", b"")]


@pytest.mark.parametrize(
    ("columns", "error", "says"),
    [
        ({"value": [b"x"], "topic": ["nowhere"]}, UnknownTopic, "nowhere"),
        ({"value": [b"x"], "topic": ["few"], "partition": pa.array([7], pa.int32())}, UnknownPartition, "7"),
        ({"value": [b"x"], "topic": ["few"], "partition": pa.array([-1], pa.int32())}, UnknownPartition, "-1"),
        ({"value": [b"x", b"y" * (20 << 20)], "topic": ["few"] * 2}, BatchTooLarge, "largest value among these rows"),
    ],
    ids=["topic", "partition", "negative", "oversized"],
)
def test_rows_that_cannot_be_written_raise_a_typed_error(
    cluster: Cluster, mq: Client, columns: dict[str, object], error: type[TinymqError], says: str
) -> None:
    """The error names the task and the rows, and comes long before the deadline."""
    if "few" not in {topic.name for topic in mq.admin.list_topics()}:
        mq.admin.create_topic("few", partitions=2)
    started_s = time.monotonic()
    with pytest.raises(error) as caught:
        send(sink(cluster, requestTimeoutMs="60000"), iter([pa.RecordBatch.from_pydict(columns)]), TASK, 1)
    told = f"{caught.value} {' '.join(caught.value.__notes__)}"
    assert says in told
    assert "of task app/0/2, attempt 1" in told
    assert time.monotonic() - started_s < 60


def test_rows_that_do_not_come_leave_no_producer_behind(cluster: Cluster, mq: Client) -> None:
    """An exception that Spark raises from the iterator passes through, and sent records stay sent."""
    mq.admin.create_topic("cut")

    def cut() -> Iterator[pa.RecordBatch]:
        yield from batches(3)
        raise RuntimeError("the task was cancelled")

    threads = threading.active_count()
    with pytest.raises(RuntimeError, match="cancelled"):
        send(sink(cluster, topic="cut"), cut(), TASK, 0)
    assert threading.active_count() <= threads + 1  # of the shared client that the first task opened
    assert len(stored(mq, "cut")) == 30


def test_unacknowledged_bytes_are_bounded(cluster: Cluster, mq: Client) -> None:
    """More rows than a small buffer holds pass through it, and the process does not grow."""
    mq.admin.create_topic("large")
    before = _resident_bytes()
    written = send(sink(cluster, topic="large", bufferBytes="1m", batchBytes="256k"), batches(60, 100, 10_000), TASK, 0)
    assert written.records == 6_000
    assert (written.ranges[0].start, written.ranges[0].end) == (0, 6_000)
    assert _resident_bytes() - before < 300 << 20  # three brokers in this process keep the newest of it, too


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_broker_that_dies_in_the_middle_costs_no_row_and_makes_no_repeat() -> None:
    """The producer is idempotent: records in flight are sent again, and stored once."""
    with Cluster(nodes=3) as brokers:
        mq = brokers.client()
        mq.admin.create_topic("dying")
        leader = brokers.wait_leader("dying")

        def killing() -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(batches(40)):
                if number == 20:
                    brokers.kill(leader)
                yield batch

        written = send(sink(brokers, topic="dying"), killing(), TASK, 0)
        assert written.ranges == (Range("dying", 0, 0, 400, 400),)
        assert [value for value, _ in stored(mq, "dying")] == [b"%d" % n for n in range(400)]
        _two_of_three_dead(brokers)
    session.close_all()


def _two_of_three_dead(brokers: Cluster) -> None:
    """Nothing is acknowledged: the task ends with a typed error by its deadline."""
    brokers.kill(next(iter(brokers.brokers)))
    started_s = time.monotonic()
    with pytest.raises(TinymqError) as caught:
        send(sink(brokers, topic="dying", deliveryTimeoutMs="1500", requestTimeoutMs="1500"), batches(3), TASK, 0)
    assert caught.value.code in ("OutcomeUnknown", "BrokerUnreachable", "NotReady", "DeadlineExceeded", "BufferFull")
    assert time.monotonic() - started_s < 60, "the default is a minute"


def test_a_commit_message_can_be_pickled() -> None:
    written = Written(
        write_id="id",
        application="app",
        version=1,
        partition=2,
        attempt=0,
        records=5,
        ranges=(Range("t", 0, 1, 6, 5),),
    )
    assert pickle.loads(pickle.dumps(written)) == written
