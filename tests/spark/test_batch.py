"""Batches, planned and read against real brokers; test_session.py has Spark's own part."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, DayTimeIntervalType, IntegerType, StructField, StructType

from pyspark_tinymq.options.columns import ROWS_MAX, arrow_schema, joined, spark_schema
from pyspark_tinymq.options.offsets import Partition
from pyspark_tinymq.plan.lookup import Lookup
from pyspark_tinymq.plan.plan import Bounds
from pyspark_tinymq.read.batch import BatchReader
from pyspark_tinymq.source import DefaultSource
from tests.spark.reading import batch, numbers, planned, read, rows, send, spans
from tinymq import Client
from tinymq.base.errors import (
    InvalidConfig,
    InvalidRequest,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
)
from tinymq.base.types import Offset
from tinymq.testing.cluster import Cluster

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


@pytest.fixture(scope="module")
def mq(cluster: Cluster) -> Client:
    """A cluster with topics: `flights`, three partitions with 40, 20 and no records, one per second from noon on;
    `trimmed`, which keeps offsets 30 to 49.
    """
    client = cluster.client()
    client.admin.create_topic("flights", partitions=3)
    client.admin.create_topic("trimmed")
    with client.producer() as producer:
        for partition, count in ((0, 40), (1, 20)):
            for number in range(count):
                at_us = (NOON_MS + number * 1000) * 1000
                producer.send("flights", b"%d" % number, key=b"k", partition=partition, timestamp=at_us)
    send(cluster, "trimmed", 50)
    client.admin.trim("trimmed", 0, Offset(30))
    return client


FLIGHTS = [("flights/0", 0, 40), ("flights/1", 0, 20)]
BOTH, ONE = '{"flights":[0,1]}', '{"flights":[1]}'
GOING_ON = {"subscribe": "trimmed", "failOnDataLoss": "false"}
PLANS: list[tuple[dict[str, object], list[tuple[str, int, int]]]] = [  # (options, ranges)
    ({"subscribe": "flights"}, FLIGHTS),
    ({"subscribePattern": "fl.*"}, FLIGHTS),
    ({"subscribePattern": "light"}, []),  # whole names
    ({"assign": '{"flights":[1,2]}'}, FLIGHTS[1:]),
    ({"subscribe": "trimmed"}, [("trimmed/0", 30, 50)]),
    ({"subscribe": "trimmed,flights"}, [*FLIGHTS, ("trimmed/0", 30, 50)]),
    (
        {
            "assign": BOTH,
            "startingOffsets": '{"flights":{"0":5,"1":-2}}',
            "endingOffsets": '{"flights":{"0":9,"1":-1}}',
        },
        [("flights/0", 5, 9), ("flights/1", 0, 20)],
    ),
    (
        {"subscribe": "flights", "startingTimestamp": NOON_MS + 4_500, "endingTimestamp": NOON_MS + 7_000,
         "startingOffsetsByTimestampStrategy": "latest"},
        [("flights/0", 5, 7), ("flights/1", 5, 7)],
    ),
    (
        {"assign": BOTH, "startingOffsetsByTimestamp": f'{{"flights":{{"0":{NOON_MS + 39_000},"1":0}}}}'},
        [("flights/0", 39, 40), ("flights/1", 0, 20)],
    ),
    ({"assign": '{"flights":[0]}', "endingTimestamp": NOON_MS + 99_000}, FLIGHTS[:1]),
    ({"assign": ONE, "minPartitions": 3}, [("flights/1", 0, 6), ("flights/1", 6, 13), ("flights/1", 13, 20)]),
    ({"assign": ONE, "maxRecordsPerPartition": 10}, [("flights/1", 0, 10), ("flights/1", 10, 20)]),
    (GOING_ON | {"startingOffsets": '{"trimmed":{"0":10}}'}, [("trimmed/0", 30, 50)]),
    (GOING_ON | {"startingOffsets": '{"trimmed":{"0":99}}'}, []),
    (GOING_ON | {"startingOffsets": '{"trimmed":{"0":40}}', "endingOffsets": '{"trimmed":{"0":99}}'},
     [("trimmed/0", 40, 50)]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "ranges"), PLANS, ids=lambda value: str(value)[:70])
def test_plans(cluster: Cluster, mq: Client, options: dict[str, object], ranges: list[tuple[str, int, int]]) -> None:
    reader = batch(cluster, **options)
    tasks = planned(reader)
    assert spans(tasks) == ranges
    found = read(reader, tasks)
    wanted = [(where, offset) for where, start, end in ranges for offset in range(start, end)]
    assert [(f"{topic}/{partition}", offset) for topic, partition, offset, _ in found] == wanted
    assert numbers(found) == [offset for _, offset in wanted]


REFUSED = [  # (options, error, what it says)
    ({"subscribe": "nowhere"}, UnknownTopic, "nowhere"),
    ({"assign": '{"flights":[0,7]}'}, UnknownPartition, "there is no flights/7"),
    ({"subscribe": "flights", "startingOffsets": '{"flights":{"0":5}}'}, UnknownPartition, "flights/1, flights/2"),
    ({"subscribe": "trimmed", "startingOffsets": '{"trimmed":{"0":10}}'}, OffsetOutOfRange, "begins with 30 now"),
    ({"subscribe": "trimmed", "startingOffsets": '{"trimmed":{"0":99}}'}, OffsetOutOfRange, "ends at 50"),
    ({"subscribe": "trimmed", "endingOffsets": '{"trimmed":{"0":99}}'}, OffsetOutOfRange, "endingOffsets is 99"),
    ({"subscribe": "flights", "startingTimestamp": NOON_MS + 30_000}, InvalidRequest, "flights/2: no record"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "says"), REFUSED, ids=lambda value: str(value)[:70])
def test_plans_that_are_refused(
    cluster: Cluster, mq: Client, options: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        batch(cluster, **options).partitions()


def test_columns(cluster: Cluster, mq: Client) -> None:
    """Exactly the schema that Spark expects: it accepts no other."""
    mq.admin.create_topic("headed")
    mq.send("headed", b"v", headers=[("a", b"1"), ("a", None)], timestamp=NOON)
    mq.send("headed", None, key=b"k", timestamp=NOON)
    reader = batch(cluster, subscribe="headed", includeHeaders="true")
    (task,) = planned(reader)
    (found,) = reader.read(task)
    assert found.schema.equals(arrow_schema(spark_schema(headers=True)))
    head = {"topic": "headed", "partition": 0, "timestamp": NOON, "timestampType": 0}
    pairs = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert found.to_pylist() == [
        head | {"key": None, "value": b"v", "offset": 0, "headers": pairs},
        head | {"key": b"k", "value": None, "offset": 1, "headers": None},
    ]
    assert batch(cluster, subscribe="headed").read(task).__next__().schema.equals(arrow_schema(spark_schema(False)))


def test_another_schema_is_refused(cluster: Cluster) -> None:
    from pyspark_tinymq.source import DefaultSource

    source = DefaultSource({"servers": cluster.servers, "subscribe": "flights"})
    with pytest.raises(InvalidConfig, match=r"follow from its options .* was asked for \(leave .schema\(...\)"):
        source.reader(spark_schema(headers=True))


def test_an_empty_plan_reads_nothing(cluster: Cluster, mq: Client) -> None:
    reader = batch(cluster, assign='{"flights":[2]}')
    assert reader.partitions() == []
    assert list(reader.read(None)) == []  # type: ignore[arg-type]


class Trimming(Lookup):
    """Remove the head of a topic right after the first few lookups of it."""

    def __init__(self, client: Client, reader: BatchReader, topic: str, times: int) -> None:
        super().__init__(client, reader._source)
        self._mq, self._topic, self._times = client, topic, times

    def bounds(self, partitions: object, *, partial: bool = False) -> dict[Partition, Bounds]:
        found = super().bounds(partitions, partial=partial)  # type: ignore[arg-type]
        if self._times:
            self._times -= 1
            self._mq.admin.trim(self._topic, 0, Offset(found[Partition(self._topic, 0)].first + 2))
        return found


def test_earliest_never_fails_while_the_head_is_trimmed(
    cluster: Cluster, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two lookups, between lookup and hold, and before the task begins, when the hold has ended."""
    mq.admin.create_topic("melting")
    send(cluster, "melting", 40)
    reader = batch(cluster, subscribe="melting", holdMs=0, replica="leader")
    monkeypatch.setattr("pyspark_tinymq.read.batch.Lookup", lambda client, _: Trimming(client, reader, "melting", 3))
    tasks = planned(reader)
    monkeypatch.undo()
    assert tasks[0].start <= 6
    mq.admin.trim("melting", 0, Offset(20))
    assert numbers(read(reader, tasks)) == list(range(20, 40))
    held = batch(cluster, subscribe="melting")
    monkeypatch.setattr("pyspark_tinymq.read.batch.Lookup", lambda client, _: Trimming(client, held, "melting", 3))
    tasks = planned(held)
    assert numbers(read(held, tasks)) == list(range(tasks[0].start, 40))
    assert tasks[0].start == 26
    assert [hold.offset for hold in mq.admin.list_holds("melting")] == [26]


def test_explicit_offsets_that_go_before_the_task_begins(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("going")
    send(cluster, "going", 40)
    options = {"subscribe": "going", "startingOffsets": '{"going":{"0":5}}', "holdMs": 0, "replica": "leader"}
    strict, lenient = batch(cluster, **options), batch(cluster, **options, failOnDataLoss="false")
    plans = planned(strict), planned(lenient)
    mq.admin.trim("going", 0, Offset(20))
    with pytest.raises(OffsetOutOfRange):
        read(strict, plans[0])
    assert numbers(read(lenient, plans[1])) == list(range(20, 40))


def test_follower_reads_leave_leaders_alone(cluster: Cluster, mq: Client) -> None:
    """With replica=leader it is the other way round; the brokers' scan statistics show it."""
    reader = batch(cluster, subscribe="flights", scanId="from-followers")
    assert len(read(reader, reader.partitions())) == 60
    served = mq.admin.describe_scan("from-followers").served
    assert {each.role for each in served} == {"follower"}
    assert sum(each.records for each in served) == 60
    assert sum(each.bytes for each in served) > 0
    reader = batch(cluster, subscribe="flights", scanId="from-leaders", replica="leader")
    assert len(read(reader, reader.partitions())) == 60
    assert {each.role for each in mq.admin.describe_scan("from-leaders").served} == {"leader"}


def test_a_task_waits_for_what_its_replica_does_not_show_yet(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("late")
    send(cluster, "late", 10)
    reader = batch(cluster, subscribe="late", maxReplicaWaitMs=10_000)
    (task,) = planned(reader)
    task.end = 12  # as if the driver had seen more than any replica has
    sending = threading.Timer(0.3, lambda: send(cluster, "late", 2, first=10))
    sending.start()
    assert numbers(rows(reader.read(task))) == list(range(12))
    sending.join()


def test_records_that_no_replica_has_raise_with_each_replicas_answer(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("short")
    send(cluster, "short", 5)
    reader = batch(cluster, subscribe="short", maxReplicaWaitMs=20, unreachableMs=400)
    (task,) = planned(reader)
    task.end = 9
    with pytest.raises(OffsetNotAvailable) as failed:
        read(reader, [task])
    assert all(cluster.address(broker) in failed.value.message for broker in (1, 2, 3))


def test_small_batches_are_joined_and_large_ones_left() -> None:
    def of(count: int) -> pa.RecordBatch:
        return pa.record_batch({"value": [b"x" * 100] * count})

    assert [each.num_rows for each in joined([of(1)] * 10)] == [10]
    size = of(100).nbytes
    assert [each.num_rows for each in joined([of(100)] * 10, sizes=4 * size)] == [200, 200, 200, 200, 200]
    assert [each.num_rows for each in joined([of(1), of(1000), of(1)], sizes=2 * size)] == [1, 1000, 1]
    large = of(1000)
    assert next(joined([large], sizes=size)) is large
    assert [each.num_rows for each in joined([of(3)] * 3, rows=6)] == [6, 3]
    assert list(joined([])) == []
    assert ROWS_MAX > 1000


def test_a_task_asks_replicas_in_the_planned_order(
    cluster: Cluster, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later attempt begins with another replica."""
    asked: list[dict[str, Any]] = []
    scan = Client.scan

    def noted(self: Client, *place: Any, **how: Any) -> Any:
        asked.append(how)
        return scan(self, *place, **how)

    monkeypatch.setattr(Client, "scan", noted)
    told = {"fetchBytes": "64k", "unreachableMs": "7000", "maxReplicaWaitMs": "123", "scanId": "told"}
    reader = batch(cluster, assign=ONE, **told)
    for attempt in range(2):
        context = SimpleNamespace(attemptNumber=lambda attempt=attempt: attempt)
        monkeypatch.setattr("pyspark_tinymq.plan.task.TaskContext.get", lambda context=context: context)
        assert len(read(reader, reader.partitions())) == 20
    wanted = {"fetch_bytes_max": 64 << 10, "unreachable_ms_max": 7_000, "wait_ms": 123, "scan_id": "told"}
    for how in asked:
        assert {name: how[name] for name in wanted} == wanted
        assert how["leader_last"]
    first, second = ([broker for tier in how["replicas"] for broker in tier] for how in asked)
    assert sorted(first) == sorted(second) == [1, 2, 3]
    assert first[0] != second[0]


VALUE_OPTIONS = {"subscribe": "flights", "valueFormat": "json", "valueSchema": "a INT"}
REFUSED_VALUES: list[tuple[DataType, dict[str, str], str]] = [
    (DayTimeIntervalType(), {}, "a"),
    (IntegerType(), {"timeZone": "Europe/Pariss"}, "Pariss"),
    (IntegerType(), {"columnNameOfCorruptRecord": "_corupt"}, "_corupt: valueSchema has no such column"),
]


@pytest.mark.parametrize(("kind", "options", "says"), REFUSED_VALUES)
def test_values_that_cannot_be_parsed_are_refused_before_a_task_begins(
    kind: DataType, options: dict[str, str], says: str
) -> None:
    source = DefaultSource({"servers": "localhost:1"} | VALUE_OPTIONS | options)
    schema = spark_schema(False, StructType([StructField("a", kind)]))
    for made in (source.reader, source.streamReader):
        with pytest.raises(InvalidConfig, match=says):
            made(schema)
