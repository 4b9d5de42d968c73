"""Readers of changing topics: partitions appear, disappear or are recreated between two lookups, or before the read."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_tinymq.plan.lookup import Lookup
from pyspark_tinymq.session import session
from tests.spark.reading import batch, numbers, planned, read, send, stream
from tests.spark.test_stream import Query
from tinymq import Client
from tinymq.base.errors import OffsetOutOfRange, UnknownPartition, UnknownTopic
from tinymq.testing.cluster import Cluster


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_plan_never_reads_another_topic_of_that_name(cluster: Cluster, mq: Client, fails: str) -> None:
    """In a process that knows neither topic: the offsets exist, but belong to other records."""
    topic = f"remade-{fails}"
    mq.admin.create_topic(topic)
    send(cluster, topic, 5)
    reader = batch(cluster, subscribe=topic, failOnDataLoss=fails)
    tasks = planned(reader)
    mq.admin.delete_topic(topic)
    mq.admin.create_topic(topic)
    send(cluster, topic, 5, first=100)
    session.close_all()
    if fails == "true":
        with pytest.raises(UnknownTopic, match="created again"):
            read(reader, tasks)
    else:
        assert read(reader, tasks) == []
    assert numbers(read(reader, planned(reader))) == [100, 101, 102, 103, 104], "planned again"


class Arriving(Lookup):
    """Records arrive right after the first lookup of the partitions' ends."""

    def __init__(self, client: Client, source: Any, arrive: Callable[[], None]) -> None:
        super().__init__(client, source)
        self._arrivals = [arrive]

    def bounds(self, partitions: Any, **settings: Any) -> Any:
        found = super().bounds(partitions, **settings)
        if self._arrivals:
            self._arrivals.pop()()
        return found


FUTURE_MS = 1 << 45


@pytest.mark.parametrize("where", ["startingTimestamp", "endingTimestamp"])
def test_records_that_come_while_a_time_is_looked_up_are_no_loss(
    cluster: Cluster, mq: Client, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A time later than every record means the end, which has moved by then."""
    topic = f"busy-{where}"
    mq.admin.create_topic(topic)
    send(cluster, topic, 3)
    options: dict[str, object] = {"subscribe": topic, where: FUTURE_MS}
    if where == "startingTimestamp":
        options["startingOffsetsByTimestampStrategy"] = "latest"
    reader = batch(cluster, **options)

    def lookup(client: Client, source: Any) -> Lookup:
        return Arriving(client, source, lambda: send(cluster, topic, 2, first=3))

    monkeypatch.setattr("pyspark_tinymq.read.batch.Lookup", lookup)
    found = numbers(read(reader, planned(reader)))
    assert found == ([] if where == "startingTimestamp" else [0, 1, 2, 3, 4])


def test_a_stream_from_a_time_in_the_future_begins_behind_what_comes_meanwhile(
    cluster: Cluster, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq.admin.create_topic("busy")
    send(cluster, "busy", 3)
    options = {"startingTimestamp": FUTURE_MS, "startingOffsetsByTimestampStrategy": "latest"}
    query = Query(stream(cluster, subscribe="busy", **options))

    def lookup(client: Client, source: Any) -> Lookup:
        return Arriving(client, source, lambda: send(cluster, "busy", 2, first=3))

    monkeypatch.setattr("pyspark_tinymq.read.stream.Lookup", lookup)
    assert query.batch() == []
    send(cluster, "busy", 1, first=5)
    assert query.batch() == [5]


@pytest.mark.parametrize("place", ['{"begun":{"0":1}}', "times"])
def test_a_restart_in_the_first_batch_does_not_look_again_where_to_begin(
    cluster: Cluster, mq: Client, place: str
) -> None:
    """The checkpoint has the end from then; since then a partition without an offset was added."""
    topic = f"begun-{place}" if place == "times" else "begun"
    mq.admin.create_topic(topic)
    send(cluster, topic, 3)
    start = (
        {"startingOffsets": place} if place != "times" else {"startingOffsetsByTimestamp": f'{{"{topic}":{{"0":0}}}}'}
    )
    options: dict[str, object] = {"subscribe": topic, **start}
    first = Query(stream(cluster, **options))
    assert first.begins()
    mq.admin.add_partition(topic)  # and here the driver dies
    send(cluster, topic, 2, partition=1, first=10)
    again = Query(stream(cluster, **options), first.log)
    assert again.runs() == ([0, 1, 2] if place == "times" else [1, 2])
    assert again.batch() == [10, 11]


def test_a_pattern_that_matches_nothing_yet(cluster: Cluster, mq: Client) -> None:
    """The first micro-batch is empty and names no partition. The query continues from it, also after a restart."""
    options: dict[str, object] = {"subscribePattern": "unborn-.*"}
    query = Query(stream(cluster, **options))
    assert query.batch() == []
    assert query.batch() is None
    mq.admin.create_topic("unborn-a")
    assert query.batch() is None
    again = Query(stream(cluster, **options), query.log)
    assert again.runs() == []
    assert again.batch() is None
    send(cluster, "unborn-a", 2)
    assert again.batch() == [0, 1]


@pytest.mark.parametrize("remade", [False, True])
def test_when_all_is_gone_a_stream_that_may_lose_goes_on(cluster: Cluster, mq: Client, remade: bool) -> None:
    """The only topic was deleted, or recreated and is empty. The query waits for records, also after a restart."""
    topic = f"mortal-{remade}"
    mq.admin.create_topic(topic)
    send(cluster, topic, 3)
    options: dict[str, object] = {"subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    query = Query(stream(cluster, **options))
    assert query.batch() == [0, 1, 2]
    mq.admin.delete_topic(topic)
    if remade:
        mq.admin.create_topic(topic)
    assert query.batch() == []
    assert query.batch() is None
    again = Query(stream(cluster, **options), query.log)
    assert again.runs() == []
    assert again.batch() is None
    if not remade:
        mq.admin.create_topic(topic)
    send(cluster, topic, 2, first=100)
    assert again.batch() == [100, 101]


def test_another_subscription_on_an_old_checkpoint_is_said(cluster: Cluster, mq: Client) -> None:
    """A partition in the checkpoint that is no longer subscribed is not lost."""
    for topic in ("kept-a", "kept-b"):
        mq.admin.create_topic(topic)
        send(cluster, topic, 2)
    first = Query(stream(cluster, subscribe="kept-a,kept-b", startingOffsets="earliest"))
    assert first.batch() == [0, 1, 0, 1]
    for options in ({"subscribe": "kept-a"}, {"assign": '{"kept-a":[0]}'}, {"subscribePattern": ".*-a"}):
        with pytest.raises(UnknownPartition, match="kept-b/0 is not subscribed to any more") as refused:
            Query(stream(cluster, **options), list(first.log)).begins()
        assert "checkpoint" in refused.value.hint
    with pytest.raises(OffsetOutOfRange) as beyond:
        batch(cluster, subscribe="kept-a", startingOffsets='{"kept-a":{"0":9}}').partitions()
    assert "checkpoint" not in beyond.value.hint, "a batch has none"


def test_an_end_below_the_checkpoint_is_said_once(
    cluster: Cluster, mq: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The answering replica may only lag: the stream keeps its position, and continues from there."""
    mq.admin.create_topic("low")
    send(cluster, "low", 5)
    first = Query(stream(cluster, subscribe="low", startingOffsets="earliest"))
    assert first.batch() == [0, 1, 2, 3, 4]
    further = json.loads(first.log[-1])
    further["low"]["0"] = 7  # as if it had read more records than exist
    again = Query(stream(cluster, subscribe="low"), [json.dumps(further)])
    logging.getLogger("pyspark_tinymq").addHandler(caplog.handler)
    try:
        assert again.batch() is None
        assert again.batch() is None
    finally:
        logging.getLogger("pyspark_tinymq").removeHandler(caplog.handler)
    assert len({id(each) for each in caplog.records if "low/0 ends at 5, and 7 comes next" in each.getMessage()}) == 1
    send(cluster, "low", 3, first=5)
    assert again.batch() == [7]
