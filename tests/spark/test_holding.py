"""The holds of readers, beside producers, other holds and retention."""

from __future__ import annotations

import json
import os
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_tinymq.options.offsets import Partition
from pyspark_tinymq.plan import hold_ledger as holding
from pyspark_tinymq.plan.hold_ledger import Holding, Ledger, group_holdings
from tests.spark.reading import batch, numbers, planned, read, rows, send, stream
from tests.spark.test_stream import Query
from tinymq import Client
from tinymq.base.errors import Held, NotDelivered, OffsetOutOfRange, OutcomeUnknown, QuotaExceeded
from tinymq.base.types import Offset
from tinymq.testing.cluster import Cluster

A, B = Partition("t", 0), Partition("t", 1)
WAIT_S = 20.0


def held(mq: Client, topic: str) -> dict[int, int]:
    """The held offset, by partition."""
    return {hold.partition: hold.offset for hold in mq.admin.list_holds(topic)}


def test_a_hold_ledger_names_the_holds_that_are_due() -> None:
    ledger = Ledger(lease_s=60.0)
    assert ledger.due({A: 5, B: 0}, 0.0) == {A: 5, B: 0}
    ledger.note({A: 5, B: 0}, {A: 3}, 0.0)  # B could not be held
    assert (ledger.holds(A, 5), ledger.holds(A, 4), ledger.holds(B, 0)) == (True, False, False)
    assert ledger.due({A: 5, B: 0}, 19.0) == {}
    assert ledger.due({A: 6, B: 1}, 19.0) == {A: 6}, "moved at once; a refused hold is not retried for a while"
    assert ledger.due({A: 5, B: 1}, 20.0) == {A: 5, B: 1}
    ledger.note({B: 1}, [B], 20.0)
    assert ledger.holds(B, 1)
    assert ledger.clear() == {A: 5, B: 1}
    assert not ledger.holds(A, 5)


def test_a_task_of_a_large_plan_renews_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_tinymq.plan.hold_ledger.TOGETHER_MAX", 2)
    found = group_holdings(b"id", 60.0, {Partition("t", number): number for number in range(5)})
    groups = [{0: 0, 1: 1}, {0: 0, 1: 1}, {2: 2, 3: 3}, {2: 2, 3: 3}, {4: 4}]
    assert [holding.offsets for holding in found.values()] == [{"t": group} for group in groups]
    assert len({holding.key for holding in found.values()}) == 3
    assert Holding(b"id", 60.0, {}).key == (b"id", None)


def fill(cluster: Cluster, topic: str, count: int) -> None:
    """Records of 1 KiB, in batches that are small beside the topic."""
    with cluster.client() as mq, mq.producer(batch_bytes_max=16_384, delivery_timeout_ms=30_000) as producer:
        for _ in range(count):
            producer.send(topic, b"x" * 1000, partition=0)


def test_a_stream_that_keeps_up_stops_no_producer(cluster: Cluster, mq: Client) -> None:
    """A full topic that drops its oldest records: only unread records block the drop."""
    mq.admin.create_topic("ring", settings={"max_bytes": 1 << 19, "on_full": "drop_oldest"})
    fill(cluster, "ring", 600)
    query = Query(stream(cluster, subscribe="ring", startingOffsets="latest"))
    assert query.begins()
    for _ in range(6):  # three times the topic's bound
        fill(cluster, "ring", 250)
        assert query.begins()
        start, end = query.log[-2:]
        tasks = query.reader.partitions(json.loads(start), json.loads(end))
        assert len(read(query.reader, tasks)) == 250
        assert not query.begins()  # Spark asks for more as soon as it is done
        assert held(mq, "ring") == {0: query.start["ring"]["0"]}


def test_a_batchs_hold_lasts_a_minute(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("brief")
    send(cluster, "brief", 3)
    reader = batch(cluster, subscribe="brief")
    tasks = planned(reader)
    assert numbers(read(reader, tasks)) == [0, 1, 2]
    (hold,) = mq.admin.list_holds("brief")
    assert 0 < hold.left_s <= 60.0
    (task,) = tasks
    assert task.holding.offsets == {"brief": {0: 0}}
    assert batch(cluster, subscribe="brief", holdMs=0)._source.hold_s == 0
    assert stream(cluster, subscribe="brief")._source.hold_s == 600.0


def test_a_stream_that_ends_lets_go(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("ends")
    send(cluster, "ends", 4)
    query = Query(stream(cluster, subscribe="ends", startingOffsets="earliest", maxOffsetsPerTrigger=3))
    query.reader.prepareForTriggerAvailableNow()
    assert (query.batch(), query.batch()) == ([0, 1, 2], [3])
    assert held(mq, "ends") == {0: 3}
    assert query.batch() is None
    assert held(mq, "ends") == {}
    stopped = Query(stream(cluster, subscribe="ends", startingOffsets="earliest"))
    assert stopped.batch() == [0, 1, 2, 3]
    assert held(mq, "ends") == {0: 0}
    stopped.reader.stop()
    assert held(mq, "ends") == {}


def test_an_empty_first_micro_batch_has_a_hold(cluster: Cluster, mq: Client) -> None:
    """It names the query's start, so those records come next."""
    mq.admin.create_topic("nothing")
    send(cluster, "nothing", 5)
    query = Query(stream(cluster, subscribe="nothing"))
    query.limit = ReadAllAvailable()
    assert query.batch() == []
    assert held(mq, "nothing") == {0: 5}


def test_exhausted_holds_are_reported_at_once_and_reading_continues(
    cluster: Cluster, mq: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "HOLD_TIMEOUT_S", 60.0)
    mq.admin.create_topic("many", partitions=2)
    for partition in (0, 1):
        send(cluster, "many", 3, partition=partition)
    for _ in range(64):
        mq.admin.make_hold("many", 0, Offset(0))
    with pytest.raises(QuotaExceeded):
        mq.admin.hold_many("many", {0: 0, 1: 0}, hold_id=os.urandom(16), timeout=WAIT_S)
    began = time.monotonic()
    reader = batch(cluster, subscribe="many")
    tasks = planned(reader)
    assert time.monotonic() - began < holding.HOLD_TIMEOUT_S
    assert "at most 64 holds" in caplog.text
    assert [task.holding.offsets for task in tasks] == [{"many": {1: 0}}] * 2
    assert [task.lenient for task in tasks] == [False, False], "planned records are read, or the query ends"
    assert numbers(read(reader, tasks)) == [0, 1, 2] * 2


def trim_at_once(mq: Client, topic: str, upto: Offset) -> None:
    """Trim partition 0, and wait for a refusal no longer than the broker needs for its answer: a refused trim is tried
    again until the deadline."""
    timeout_s = 0.1
    while True:
        try:
            mq.admin.trim(topic, 0, upto, timeout=timeout_s)
        except OutcomeUnknown:
            timeout_s *= 4
        else:
            return


def test_a_plan_refuses_no_trim_and_what_it_lost_ends_the_query(cluster: Cluster, mq: Client) -> None:
    """With failOnDataLoss=false the query continues. A plan with holdMs refuses the trim."""
    mq.admin.create_topic("twice")
    send(cluster, "twice", 10)
    binding = batch(cluster, subscribe="twice", replica="leader", holdMs=60_000)
    assert len(planned(binding)) == 1
    with pytest.raises(Held):
        trim_at_once(mq, "twice", Offset(8))
    (hold,) = mq.admin.list_holds("twice")
    mq.admin.release_hold("twice", 0, hold.hold_id)
    reader = batch(cluster, subscribe="twice", replica="leader", endingOffsets='{"twice":{"0":9}}')
    lenient = batch(cluster, subscribe="twice", replica="leader", failOnDataLoss="false")
    plans = planned(reader), planned(lenient)
    assert numbers(read(reader, plans[0])) == list(range(9))
    mq.admin.trim("twice", 0, Offset(8))
    with pytest.raises(OffsetOutOfRange, match="twice/0: offsets 0 to 7 were planned, and were removed") as lost:
        read(reader, plans[0])
    assert "holdMs" in lost.value.hint
    mq.admin.trim("twice", 0, Offset(10))
    with pytest.raises(OffsetOutOfRange, match="twice/0: offsets 0 to 8 were planned"):
        read(reader, plans[0])
    assert read(lenient, plans[1]) == []


def test_a_plan_refuses_no_producer_unless_holdms_says_so(cluster: Cluster, mq: Client) -> None:
    """A full topic that drops its oldest records."""
    mq.admin.create_topic("full", settings={"max_records": 64, "on_full": "drop_oldest"})
    send(cluster, "full", 64)
    reader = batch(cluster, subscribe="full", replica="leader")
    tasks = planned(reader)
    send(cluster, "full", 64, first=64, batch_bytes_max=1_000, delivery_timeout_ms=30_000)
    with pytest.raises(OffsetOutOfRange, match=r"full/0: offsets 0 to 6[34] were planned"):
        read(reader, tasks)
    query = Query(stream(cluster, subscribe="full", startingOffsets="earliest"))
    assert query.batch()
    send(cluster, "full", 1, first=128)
    assert query.begins()
    send(cluster, "full", 64, first=129, batch_bytes_max=1_000, delivery_timeout_ms=30_000)
    with pytest.raises(OffsetOutOfRange, match=r"records are lost: full/0 begins with \d+ now: 128 to 128 were"):
        query.runs()
    assert planned(batch(cluster, subscribe="full", holdMs=60_000))
    with pytest.raises(NotDelivered, match="its records from 129 on are held"):
        send(cluster, "full", 1, delivery_timeout_ms=300)


def test_a_task_renews_all_that_was_planned_with_its_range(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("waiting", partitions=2)
    for partition in (0, 1):
        send(cluster, "waiting", 3, partition=partition)
    reader = batch(cluster, subscribe="waiting", holdMs=4_000)  # a busy machine may rest for a second
    tasks = planned(reader)
    reading = reader.read(tasks[0])
    found = rows([next(reading)])  # and the consumer is slow
    deadline_s = time.monotonic() + WAIT_S
    left, renewed = 4.0, 0
    while renewed < 3:  # more than the lease, for a third of it lies between two
        assert time.monotonic() < deadline_s
        (other,) = mq.admin.list_holds("waiting", 1)
        renewed += other.left_s > left
        left = other.left_s
    assert numbers(found) == [0, 1, 2]
    assert list(reading) == []
