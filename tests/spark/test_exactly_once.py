"""The exactly-once sink in this process, against real brokers: attempts, commits, aborts, replays and zombies."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest

from pyspark_tinymq.source import DefaultSource
from pyspark_tinymq.write.exactly_once import (
    ExactlyOnceBatchWriter,
    ExactlyOnceStreamWriter,
    Job,
    Staged,
    abort,
    commit,
    stage,
)
from pyspark_tinymq.write.sink import Sink, read_sink
from tests.spark.test_writer_rows import VALUE
from tinymq import Client
from tinymq.base.errors import BatchTooLarge, InvalidConfig, TransactionAborted, UnknownTopic, VersionReused
from tinymq.testing.cluster import Cluster


def sink(cluster: Cluster, **options: str) -> Sink:
    return read_sink({"servers": cluster.servers, "exactlyOnce": "true", "deliveryTimeoutMs": "60000"} | options)


def job(application: str, version: int, query: str = "q", *, temporary: bool = False) -> Job:
    return Job(application, version, query, temporary)


def rows(*numbers: int) -> Iterator[pa.RecordBatch]:
    for number in numbers:
        yield pa.RecordBatch.from_pydict({"value": [b"%d" % number]})


def values(mq: Client, topic: str) -> list[int]:
    with mq.reader(topic, end="latest") as reader:
        return sorted(int(message.value or b"-1") for message in reader)


def test_a_commit_shows_the_attempts_that_it_names_and_a_replay_changes_nothing(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("committed", partitions=2)
    at = sink(cluster, topic="committed")
    lost = stage(at, rows(1, 2), job("app", 0), "run", 0, 0)
    taken = [stage(at, rows(1, 2), job("app", 0), "run", 0, 1), stage(at, rows(3), job("app", 0), "run", 1, 0)]
    zombie = stage(at, rows(1, 2, 3), job("app", 0), "another run", 0, 0)
    assert values(mq, "committed") == []
    commit(at, pickle.loads(pickle.dumps(taken)))
    assert values(mq, "committed") == [1, 2, 3]
    commit(at, [zombie])
    commit(at, [lost])
    abort(at, taken)
    abort(at, [zombie, None])
    passed = list[int]()

    def counted() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(rows(1, 2, 3)):
            passed.append(number)
            yield batch

    again = stage(at, counted(), job("app", 0), "run 3", 0, 0)
    assert (again.staged, passed) == (None, [0, 1, 2]), "it takes all rows, and writes none"
    commit(at, [again])
    later = stage(at, rows(4), job("app", 1), "run 3", 0, 0)
    commit(at, [later])
    assert values(mq, "committed") == [1, 2, 3, 4]
    with pytest.raises(VersionReused, match="txnAppId"):
        stage(at, rows(5), job("app", 0, "another"), "run", 0, 0)


def test_an_abort_leaves_nothing_and_the_version_is_open_again(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("aborted")
    at = sink(cluster, topic="aborted")
    first = stage(at, rows(1), job("aborting", 0), "run", 0, 0)
    abort(at, [first, None])
    with pytest.raises(TransactionAborted):
        commit(at, [first])
    late = stage(at, rows(2), job("aborting", 0), "run", 0, 1)
    mixed = stage(at, rows(2), job("aborting", 0), "other", 1, 0)
    with pytest.raises(TransactionAborted, match="dropped before"):
        commit(at, [late, mixed])
    commit(at, [late])
    assert values(mq, "aborted") == [2]


@pytest.mark.long
def test_rows_that_nobody_commits_are_dropped_in_time_and_a_slow_task_keeps_its_own(
    cluster: Cluster, mq: Client
) -> None:
    mq.admin.create_topic("late")
    at = sink(cluster, topic="late", sinkTimeoutMs="2000")
    left = stage(at, rows(1), job("late", 0), "run", 0, 0)

    def slowly() -> Iterator[pa.RecordBatch]:
        yield from rows(2)
        with mq.reader("late") as reader:
            assert reader.poll(5.0) == [], "longer than a task may be silent"
        with pytest.raises(TransactionAborted):
            commit(at, [left])
        yield from rows(3)

    slow = stage(at, slowly(), job("late", 0), "slow", 0, 0)
    commit(at, [slow])
    assert values(mq, "late") == [2, 3]


def test_tasks_without_rows_ask_nothing_and_their_version_is_committed_nevertheless(
    cluster: Cluster, mq: Client
) -> None:
    mq.admin.create_topic("empty")
    nowhere = read_sink({"servers": "127.0.0.1:1", "topic": "t", "exactlyOnce": "true"})
    empty = [pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())})]
    for temporary in (False, True):
        task = stage(nowhere, iter(empty), job("empty", 7, temporary=temporary), "run", 0, 0)
        assert (task.staged, task.records) == (None, 0)
    commit(nowhere, [task])
    commit(nowhere, [None])
    at = sink(cluster, topic="empty")
    commit(at, [Staged(job("empty", 7), 0, 0, 0, None)])
    assert stage(at, rows(1), job("empty", 7), "run", 0, 0).staged is None


@pytest.mark.parametrize(
    ("topic", "value", "error"), [("nowhere", b"x", UnknownTopic), ("small", b"y" * (20 << 20), BatchTooLarge)]
)
def test_rows_that_cannot_be_staged_raise_a_typed_error(
    cluster: Cluster, mq: Client, topic: str, value: bytes, error: type[Exception]
) -> None:
    mq.admin.create_topic("small", exist_ok=True)
    batch = pa.RecordBatch.from_pydict({"value": [value]})
    with pytest.raises(error) as caught:
        stage(sink(cluster, topic=topic, deliveryTimeoutMs="3000"), iter([batch]), job("bad", 3), "run", 2, 1)
    assert "of task bad/3/2, attempt 1" in " ".join(caught.value.__notes__)


GIVEN = {"servers": "localhost:7070", "topic": "t", "exactlyOnce": "true"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"acks": "leader"}, "acks=quorum"),
        ({"exactlyOnce": "false", "sinkTimeoutMs": "5000"}, "no meaning without exactlyOnce"),
        ({"txnAppId": "a name", "txnVersion": "1"}, "not a valid name"),
    ],
)
def test_options_that_contradict_exactly_once(options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        read_sink(GIVEN | options)


def test_the_option_chooses_the_writer_and_leaves_places_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_tinymq.write.writer.check_topic", lambda sink: None)
    batch = DefaultSource(GIVEN | {"txnAppId": "a", "txnVersion": "1"}).writer(VALUE, False)
    stream = DefaultSource(GIVEN | {"includePlace": "true"}).streamWriter(VALUE, False)
    assert isinstance(batch, ExactlyOnceBatchWriter)
    assert isinstance(stream, ExactlyOnceStreamWriter)
    assert (batch.sink.places, stream.sink.places) == (False, True)
    assert pickle.loads(pickle.dumps(batch)).run == batch.run, "all tasks are of one run"
    with pytest.raises(InvalidConfig, match="a topic only grows"):
        DefaultSource(GIVEN).streamWriter(VALUE, True)
