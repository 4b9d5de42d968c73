"""Consumers of a stream group on a real cluster: partitions are divided, move, and come back, and no record is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest

from tinymq.base.errors import Closed, InvalidName, UnknownGroup, WrongKind
from tinymq.client import Client, Message
from tinymq.client.group.fetched_records import TopicPartition
from tinymq.testing import Cluster

pytest_plugins = ["tinymq.testing.fixture"]

WAIT_S = 40.0


def until(holds: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Wait for a condition that a client asks about."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come about"
        threading.Event().wait(0.02)


def fill(mq: Client, topic: str, partitions: int, count: int) -> list[bytes]:
    values = [b"%d" % n for n in range(count)]
    for n, value in enumerate(values):
        mq.send(topic, value, partition=n % partitions)
    return values


def read(consumer: Any, count: int) -> list[Message]:
    found: list[Message] = []
    deadline_s = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline_s, f"{len(found)} of {count} came"
        found += consumer.poll(timeout=1.0)
    return found


@pytest.fixture
def mq(tinymq_cluster: Cluster) -> Client:
    return tinymq_cluster.client()


def test_what_was_handled_is_committed_and_the_next_member_goes_on(mq: Client) -> None:
    mq.admin.create_topic("ca", partitions=3)
    values = fill(mq, "ca", 3, 12)
    with mq.consumer("ca", group="ca-g") as first:
        found = [next(first).value for _ in range(12)]
        assert sorted(found) == sorted(values)
        assert len(first.assignment()) == 3
    assert sum(c.lag for c in mq.admin.group_lag("ca-g")) == 0, "leaving cleanly commits the last one, too"
    mq.send("ca", b"new", partition=1)
    with mq.consumer("ca", group="ca-g") as second:
        message = next(second)
        assert (message.value, message.partition) == (b"new", 1)
    assert "__coordinator" not in [topic.name for topic in mq.admin.list_topics()]


def test_a_record_whose_handler_failed_comes_again(mq: Client) -> None:
    mq.admin.create_topic("cb")
    fill(mq, "cb", 1, 3)

    def handled() -> None:
        with mq.consumer("cb", group="cb-g") as consumer:
            for message in consumer:
                if message.value == b"1":
                    raise ValueError("the handler failed")

    with pytest.raises(ValueError, match="handler"):
        handled()
    with mq.consumer("cb", group="cb-g") as consumer:
        assert next(consumer).value == b"1"


def test_partitions_are_divided_and_move_without_a_record_twice(mq: Client, tinymq_cluster: Cluster) -> None:
    mq.admin.create_topic("cc", partitions=4)
    told: list[tuple[str, int]] = []
    with mq.consumer(
        "cc", group="cc-g", on_revoked=lambda some: told.extend(("revoked", p.partition) for p in some)
    ) as one:
        until(lambda: one.poll(timeout=0.05) is not None and len(one.assignment()) == 4)
        with tinymq_cluster.client().consumer("cc", group="cc-g") as two:

            def divided() -> bool:
                one.poll(timeout=0.05)
                two.poll(timeout=0.05)
                return len(one.assignment()) == len(two.assignment()) == 2

            until(divided)
            assert {*one.assignment()}.isdisjoint(two.assignment())
            listed = [{(p.topic, p.partition) for p in m.partitions} for m in mq.admin.group_members("cc-g")]
            assert sorted(map(sorted, listed)) == sorted(map(sorted, ({*one.assignment()}, {*two.assignment()})))
            assert len(told) == 2, "what it keeps was not interrupted"
            values = fill(mq, "cc", 4, 40)
            found: list[bytes | None] = []
            deadline_s = time.monotonic() + WAIT_S
            while len(found) < 40 and time.monotonic() < deadline_s:
                found += [m.value for m in (*one.poll(timeout=0.1), *two.poll(timeout=0.1))]
            assert sorted(v or b"" for v in found) == sorted(values)
        until(lambda: one.poll(timeout=0.05) is not None and len(one.assignment()) == 4)
    assert sum(c.lag for c in mq.admin.group_lag("cc-g")) == 0


def test_the_coordinators_failover_costs_no_rebalance(mq: Client, tinymq_cluster: Cluster) -> None:
    mq.admin.create_topic("cf", partitions=2)
    told: list[str] = []
    with mq.consumer(
        "cf",
        group="cf-g",
        on_lost=lambda some: told.append("lost"),
        on_revoked=lambda some: told.append("revoked"),
    ) as consumer:
        fill(mq, "cf", 2, 4)
        read(consumer, 4)
        number = crc32(b"cf-g") % 16
        leader = tinymq_cluster.wait_leader("__coordinator", number)
        mq.admin.describe_group("cf-g")
        app = tinymq_cluster.brokers[leader]
        group = next(
            r.group.id
            for r in app.serving.broker.replica_host.internal.values()
            if r.name.endswith(f"/{number}")  # type: ignore[union-attr]
        )
        assert tinymq_cluster.call(lambda: app.host.transfer(group))
        tinymq_cluster.wait_leader("__coordinator", number, other_than=leader)
        fill(mq, "cf", 2, 4)
        read(consumer, 4)
        assert len(consumer.assignment()) == 2
        assert told == []
    assert told == ["revoked"], "a consumer that is closed gives its partitions back"


def test_an_added_partition_and_a_matching_topic_are_read(mq: Client) -> None:
    mq.admin.create_topic("cp-a")
    with mq.consumer("cp-*", group="cp-g", start="latest") as consumer:
        until(lambda: consumer.poll(timeout=0.05) is not None and len(consumer.assignment()) == 1)
        mq.admin.add_partition("cp-a")
        mq.admin.create_topic("cp-b")
        mq.send("cp-a", b"1", partition=1)
        mq.send("cp-b", b"2")
        assert sorted(m.value or b"" for m in read(consumer, 2)) == [b"1", b"2"]


def test_without_a_group_all_is_read_and_nothing_is_saved(mq: Client) -> None:
    mq.admin.create_topic("cn", partitions=2)
    values = fill(mq, "cn", 2, 6)
    for _ in range(2):
        with mq.consumer("cn") as consumer:
            assert sorted(m.value or b"" for m in read(consumer, 6)) == values
            mq.admin.add_partition("cn") if len(mq.admin.describe_topic("cn").partitions) == 2 else None
            assert consumer.committed() == {}


def test_a_pause_holds_in_the_middle_of_an_iteration(mq: Client) -> None:
    mq.admin.create_topic("cpause", partitions=2)
    with mq.producer() as producer:  # many records in a batch
        for n in range(200):
            producer.send("cpause", b"%d" % n, partition=0)
    consumer = mq.consumer("cpause", group="cpause-g")
    messages = iter(consumer)
    found = [next(messages)]
    consumer.pause([("cpause", 0)])
    mq.send("cpause", b"other", partition=1)
    assert next(messages).value == b"other"
    assert consumer.position()[TopicPartition("cpause", 0)] == 1, "the one in hand when it paused is done now"
    consumer.resume()
    found += [next(messages) for _ in range(150)]
    assert [int(message.value or b"") for message in found] == list(range(151))
    consumer.close()
    with pytest.raises(Closed):
        next(messages)
    assert sorted(c.position for c in mq.admin.group_lag("cpause-g")) == [1, 151]


def test_a_group_that_is_moved_or_deleted_is_noticed(mq: Client) -> None:
    mq.admin.create_topic("cs")
    fill(mq, "cs", 1, 3)
    with mq.consumer("cs", group="cs-g") as consumer:
        assert len(read(consumer, 3)) == 3
        consumer.commit()
        mq.admin.seek_group("cs-g", "earliest")
        assert [m.value for m in read(consumer, 3)] == [b"0", b"1", b"2"]
    with mq.consumer("cs", group="cs-g") as consumer:
        until(lambda: consumer.poll(timeout=0.05) is not None and len(consumer.assignment()) == 1)
        mq.admin.delete_group("cs-g")
        with pytest.raises(UnknownGroup):
            until(lambda: consumer.poll(timeout=0.1) is None)


def test_at_most_once_commits_before_it_hands_out(mq: Client) -> None:
    mq.admin.create_topic("co")
    fill(mq, "co", 1, 4)

    def handled() -> None:
        with mq.consumer("co", group="co-g", processing="at_most_once") as consumer:
            assert next(consumer).value == b"0"
            raise ValueError("the handler failed")

    with pytest.raises(ValueError, match="handler"):
        handled()
    assert sum(c.lag for c in mq.admin.group_lag("co-g")) == 0


def test_the_clusters_own_topic_is_not_the_users(mq: Client) -> None:
    mq.admin.create_topic("ci")
    mq.admin.create_group("ci-g", "ci")
    for call in (
        lambda: mq.admin.create_topic("__mine"),
        lambda: mq.admin.delete_topic("__coordinator"),
        lambda: mq.admin.alter_topic("__coordinator", {"retention_ms": 1000}),
        lambda: mq.admin.add_partition("__coordinator"),
        lambda: mq.send("__coordinator", b"1"),
    ):
        with pytest.raises(InvalidName):
            call()
    mq.admin.create_group("ci-q", "ci", kind="queue")
    with pytest.raises(WrongKind), mq.consumer("ci", group="ci-q") as consumer:
        consumer.poll(timeout=1.0)
