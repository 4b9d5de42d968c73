"""A partition as a queue, on real brokers: handing out, committing, fencing."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.client.losing import Losing
from tests.client.running import run
from tinymq import AsyncClient, AsyncQueue, Client, Message, Offset, Queue
from tinymq.base.errors import (
    Closed,
    Fenced,
    InvalidName,
    InvalidRequest,
    OffsetOutOfRange,
    UnknownChannel,
    UnknownPartition,
    UnknownTopic,
)
from tinymq.client.facade.core.client_core import ClientCore
from tinymq.proto import tinymq_pb2 as pb
from tinymq.testing.cluster import Cluster

NAMES = (f"t{i}" for i in itertools.count())
TIMESTAMP = pa.timestamp("us", "UTC")
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        yield running


@pytest.fixture
def mq(cluster: Cluster) -> Iterator[Client]:
    with cluster.client(request_timeout_ms=10_000) as client:
        yield client


@pytest.fixture
def topic(mq: Client) -> str:
    return mq.admin.create_topic(next(NAMES), partitions=1, replication_factor=3).name


def filled(mq: Client, topic: str, count: int) -> None:
    """Write the values 0, 1, ..., a second apart, as one batch. A fetch brings all of them at once."""
    times = [FIRST + timedelta(seconds=i) for i in range(count)]
    table = pa.table({"value": [b"%d" % i for i in range(count)], "timestamp": pa.array(times, TIMESTAMP)})
    with mq.producer() as producer:
        producer.send_batch(topic, table)


def drained(queue: Queue) -> list[Message]:
    found: list[Message] = []
    while some := queue.poll(100):
        found += some
    return found


def offsets(messages: list[Message]) -> list[int]:
    return [m.offset for m in messages]


def position(mq: Client, topic: str, channel: str = "c") -> int:
    (found,) = [c for c in mq.admin.list_channels(topic) if c.channel == channel]
    return found.position


def wait_for_consumer(cluster: Cluster, mq: Client, topic: str, consumer: str) -> None:
    """Return once the leader knows the consumer on record from the registry."""

    def known() -> bool:
        found = cluster.registry(cluster.leader_of(topic) or 1).get_queue_consumer(topic, 0, "c")
        return (found.consumer if found is not None else "") == consumer

    cluster.wait_until(known)
    assert [c.consumer for c in mq.admin.list_channels(topic)] == [consumer]


def test_messages_are_polled_in_the_order_of_their_pushes(mq: Client, topic: str) -> None:
    with mq.queue(topic, channel="c") as queue:
        assert queue.poll() == []
        assert queue.is_empty()
        assert queue.peek() is None
        metas = [queue.push(b"%d" % i, b"k", {"n": "x"}, FIRST) for i in range(5)]
        assert [m.offset for m in metas] == list(range(5))
        peeked = queue.peek()
        (first,) = queue.poll()
        assert first == peeked
        assert (first.value, first.key, first.header("n"), first.timestamp) == (b"0", b"k", b"x", FIRST)
        while queue.position() < 4:
            assert 0 < len(queue.poll(4 - queue.position())) <= 3
        assert (queue.size(), queue.position(), queue.is_empty()) == (1, 4, False)
        assert offsets(queue.poll(100, timeout=5.0)) == [4]
        assert queue.poll(100) == []
        assert queue.get(Offset(2)).value == queue.get(2).value == b"2"
        for beyond in (5, 100):
            with pytest.raises(OffsetOutOfRange, match="up to 5"):
                queue.get(Offset(beyond))
            with pytest.raises(OffsetOutOfRange, match="up to 5"):
                queue.get(beyond)
        with pytest.raises(OffsetOutOfRange, match="-1 is negative"):
            queue.get(-1)


def test_a_poll_right_after_a_push_returns_the_message(mq: Client, topic: str) -> None:
    """[] means that the partition has no more messages, not that none was fetched yet."""
    with mq.queue(topic, channel="c") as ours, mq.queue(topic) as theirs:
        for i in range(50):
            theirs.push(b"")
            assert offsets(ours.poll()) == [i]
            assert ours.poll() == []


def test_pushes_without_a_wait_keep_their_order_and_are_flushed(mq: Client, topic: str) -> None:
    with mq.queue(topic, channel="c") as queue:
        queue.push(b"0")
        sent = [queue.push_nowait(b"%d" % i) for i in range(1, 5000)]
        queue.push(b"5000")
        queue.flush()
        assert all(delivery.done() for delivery in sent)
        assert [m.value for m in drained(queue)] == [b"%d" % i for i in range(5001)]


def test_async_pushes_without_a_wait_keep_their_order(cluster: Cluster, mq: Client, topic: str) -> None:
    async def scenario() -> None:
        async with AsyncClient(cluster.servers) as client, client.queue(topic) as queue:
            for i in range(5000):
                await queue.push_nowait(b"%d" % i)
            await queue.push(b"5000")

    run(scenario())
    with mq.queue(topic, channel="c") as queue:
        assert [m.value for m in drained(queue)] == [b"%d" % i for i in range(5001)]


def test_the_examples_of_the_channels_page_work(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("orders", partitions=1, replication_factor=3)
    page = (Path(__file__).resolve().parents[2] / "docs" / "channels.md").read_text()
    for example in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        exec(example.replace("127.0.0.1:7070", cluster.servers), {"mq": mq})
    for topic, channel in (("orders", "billing"), ("jobs", "workers")):
        (found,) = mq.admin.list_channels(topic)
        assert (found.channel, found.position) == (channel, 1)


def test_channels_are_independent(mq: Client, topic: str) -> None:
    filled(mq, topic, 20)
    with mq.queue(topic, channel="a") as a, mq.queue(topic, channel="b") as b:
        seen: dict[str, list[int]] = {"a": [], "b": []}
        for i in range(20):
            seen["a"] += offsets(a.poll(1))
            if i % 3 == 0:
                seen["b"] += offsets(b.poll(2))
        a.commit()
        assert seen == {"a": list(range(20)), "b": list(range(14))}
        assert (position(mq, topic, "a"), position(mq, topic, "b") <= 14) == (20, True)
        b.seek("earliest")
    assert (position(mq, topic, "a"), position(mq, topic, "b")) == (20, 0)


def test_a_clean_exit_commits_and_an_exception_does_not(mq: Client, topic: str) -> None:
    filled(mq, topic, 10)
    with mq.queue(topic, channel="c") as queue:
        for message in queue:
            if message.offset == 3:
                break
    assert position(mq, topic) == 4

    def fails_at_the_seventh() -> None:
        with mq.queue(topic, channel="c") as queue:
            for message in queue:
                assert message.offset < 6, "this one"

    with pytest.raises(AssertionError, match="this one"):
        fails_at_the_seventh()
    assert position(mq, topic) == 6, "the messages before the one that failed are done with"
    with mq.queue(topic, channel="c") as queue:
        assert offsets(queue.poll(2)) == [6, 7]


def test_concurrent_first_calls_take_the_channel_over_once(cluster: Cluster, mq: Client, topic: str) -> None:
    filled(mq, topic, 10)

    async def scenario() -> None:
        losing = Losing()
        client = ClientCore(cluster.servers, connector=losing)
        async with client, client.queue(topic, channel="c") as queue:
            await asyncio.gather(queue.open(), queue.open(), queue.seek(Offset(3)))
            assert losing.answered[pb.SetConsumerRequest] == 1
            assert [m.offset for m in await queue.poll()] == [3]
            await queue.commit()

    run(scenario())


def test_a_clean_async_exit_commits_and_an_exception_does_not(cluster: Cluster, mq: Client, topic: str) -> None:
    filled(mq, topic, 10)

    async def fails_at_the_second(queue: AsyncQueue) -> None:
        async with queue:
            assert [(await queue.poll())[0].offset for _ in range(2)] == [4, 5]
            raise ZeroDivisionError

    async def scenario() -> None:
        async with AsyncClient(cluster.servers) as client:
            async with client.queue(topic, channel="c") as queue:
                async for message in queue:
                    if message.offset == 3:
                        break
            with pytest.raises(ZeroDivisionError):
                await fails_at_the_second(client.queue(topic, channel="c"))
            async with client.queue(topic, channel="c") as queue:
                assert await queue.position() == 5

    run(scenario())


def test_a_loop_without_a_with_block_leaves_the_last_message_uncommitted(
    cluster: Cluster, mq: Client, topic: str
) -> None:
    filled(mq, topic, 10)
    with cluster.client() as other:
        for message in other.queue(topic, channel="c"):
            if message.offset == 3:
                break
    assert position(mq, topic) == 3


def test_messages_before_the_last_poll_are_committed_automatically(cluster: Cluster, mq: Client, topic: str) -> None:
    filled(mq, topic, 10)
    queue = mq.queue(topic, channel="c", commit_interval_ms=20)
    queue.poll(4)
    queue.poll(1)
    at = cluster.registry(1).get_topic(topic)
    assert at is not None

    def committed() -> bool:
        leader = cluster.brokers[cluster.leader_of(topic) or 1].serving.broker
        assert leader is not None
        return bool(leader.find(at.topic_id, 0).state.cursors["c"].position == 4)

    cluster.wait_until(committed)


def test_manual_commits(mq: Client, topic: str) -> None:
    filled(mq, topic, 10)
    with mq.queue(topic, channel="c", auto_commit=False, commit_interval_ms=1) as queue:
        queue.commit()
        found = queue.poll(6)
        queue.commit(1)
        assert position(mq, topic) == 1, "an int is an offset"
        queue.commit(Offset(2))
        assert position(mq, topic) == 2
        queue.commit(found[3])
        assert position(mq, topic) == 4
        queue.commit(3)
        assert position(mq, topic) == 4, "forward only"
        with pytest.raises(InvalidRequest, match="beyond"):
            queue.commit(Offset(7))
        queue.poll(1)
        for _ in range(20):
            assert position(mq, topic) == 4, "nothing is committed automatically"
    assert position(mq, topic) == 4
    with mq.queue(topic, channel="c", auto_commit=False) as queue:
        assert offsets(queue.poll(1)) == [4]
        queue.commit()
    assert position(mq, topic) == 5


def test_a_second_consumer_fences_the_first(cluster: Cluster, mq: Client, topic: str) -> None:
    filled(mq, topic, 10)
    first, second = mq.queue(topic, channel="c"), mq.queue(topic, channel="c", consumer="heir")
    first.poll(3)
    assert offsets(second.poll(1)) == [0], "nothing was committed"
    wait_for_consumer(cluster, mq, topic, "heir")
    with pytest.raises(Fenced):
        first.commit()
    for call in (first.poll, first.commit, first.peek, first.size, lambda: next(first)):
        with pytest.raises(Fenced):
            call()
    first.close()  # the error was raised already
    second.commit()
    second.close()
    wait_for_consumer(cluster, mq, topic, "")
    assert position(mq, topic) == 1


def test_close_raises_fenced_once_another_consumer_took_over(mq: Client, topic: str) -> None:
    filled(mq, topic, 3)
    first = mq.queue(topic, channel="c")
    first.poll()
    mq.queue(topic, channel="c").open()
    with pytest.raises(Fenced):
        first.close()
    first.close()


def test_a_waiting_poll_raises_fenced_when_another_consumer_takes_over(mq: Client, topic: str) -> None:
    filled(mq, topic, 1)
    first = mq.queue(topic, channel="c", commit_interval_ms=5)
    first.poll()
    mq.queue(topic, channel="c").open()
    raised: list[Exception] = []

    def wait() -> None:
        try:
            first.poll(timeout=None)
        except Fenced as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(20)
    assert raised


def test_peek_size_and_push_fence_no_consumer(mq: Client, topic: str) -> None:
    filled(mq, topic, 3)
    with mq.queue(topic, channel="c") as reading:
        reading.poll(2)
        reading.commit()
        with mq.queue(topic, channel="c") as looking:
            peeked = looking.peek()
            assert peeked is not None
            assert (peeked.offset, looking.size(), looking.position(), looking.get(Offset(0)).offset) == (2, 1, 2, 0)
            looking.push(b"")
            looking.flush()
        assert offsets(drained(reading)) == [2, 3]
        reading.commit()
    assert [c.channel for c in mq.admin.list_channels(topic)] == ["c"]


@pytest.mark.parametrize(
    ("start", "at"), [("earliest", 0), ("latest", 10), (Offset(4), 4), (FIRST + timedelta(seconds=7), 7)]
)
def test_a_new_channel_begins_at_start_and_seek_moves_it(mq: Client, topic: str, start: Offset, at: int) -> None:
    filled(mq, topic, 10)
    with mq.queue(topic, channel="c", start=start) as queue:
        assert (queue.position(), queue.size()) == (at, 10 - at), "the channel does not exist yet"
        assert offsets(queue.poll(100)) == list(range(at, 10))
    with mq.queue(topic, channel="c", start="earliest") as queue:
        assert queue.poll() == [], "an existing channel ignores start"
        assert queue.seek(start) == at
        assert offsets(queue.poll(100)) == list(range(at, 10))


def test_a_seek_discards_uncommitted_messages(mq: Client, topic: str) -> None:
    filled(mq, topic, 10)
    with mq.queue(topic, channel="c") as queue:
        queue.poll(8)
        queue.seek(Offset(2))
        with pytest.raises(InvalidRequest, match="beyond"):
            queue.commit(Offset(8))
    assert position(mq, topic) == 2
    with mq.queue(topic, channel="c") as queue:
        for beyond in (Offset(11), Offset(1000)):
            with pytest.raises(OffsetOutOfRange):
                queue.seek(beyond)
        assert offsets(queue.poll(2)) == [2, 3], "nothing moved"
    assert position(mq, topic) == 4


def test_a_seek_by_an_admin_fences_later_commits_of_the_consumer(mq: Client, topic: str) -> None:
    filled(mq, topic, 10)
    queue = mq.queue(topic, channel="c")
    queue.poll(5)
    assert mq.admin.seek_channel(topic, 0, "c", Offset(1)) == 1
    with pytest.raises(Fenced):
        queue.commit()
    assert offsets(mq.queue(topic, channel="c").poll(1)) == [1]


def test_a_deleted_channel_raises_and_is_not_recreated(mq: Client, topic: str) -> None:
    filled(mq, topic, 10)
    queue = mq.queue(topic, channel="c")
    queue.poll(5)
    mq.admin.delete_channel(topic, 0, "c")
    with pytest.raises(UnknownChannel):
        queue.commit()
    with pytest.raises(UnknownChannel):
        queue.poll()
    assert mq.admin.list_channels(topic) == []
    for call in (
        lambda: mq.admin.delete_channel(topic, 0, "c"),
        lambda: mq.admin.seek_channel(topic, 0, "c", "latest"),
    ):
        with pytest.raises(UnknownChannel):
            call()


def test_delete_removes_the_whole_partition(mq: Client) -> None:
    topic = mq.admin.create_topic(next(NAMES), partitions=2, replication_factor=3).name
    queue = mq.queue(topic, 1, "c")
    queue.push(b"")
    queue.poll()
    other = mq.queue(topic, 1, "d")
    other.poll()
    queue.delete()
    queue.close()
    with pytest.raises(Closed):
        queue.poll()
    with pytest.raises(UnknownPartition):
        other.commit()
    with pytest.raises(UnknownPartition):
        mq.queue(topic, 1).poll()
    with pytest.raises(InvalidRequest, match="last"):
        mq.queue(topic, 0).delete()


def test_unknown_topics_and_invalid_arguments_are_refused(mq: Client, topic: str) -> None:
    with pytest.raises(UnknownTopic):
        mq.queue("nowhere").poll()
    for call in (mq.queue(topic, 7).poll, mq.queue(topic, 7).peek, lambda: mq.queue(topic, 7).push(b"")):
        with pytest.raises(UnknownPartition):
            call()
    with pytest.raises(InvalidName):
        mq.queue(topic, channel="no spaces")
    for arguments in ({"consumer": 5}, {"channel": 5}, {"partition": "0"}, {"start": 5}, {"topic": None}):
        with pytest.raises(InvalidRequest):
            mq.queue(**{"topic": topic, **arguments})  # type: ignore[arg-type]
    for settings in ({"auto_commit": 1}, {"commit_interval_ms": 0}, {"on_trimmed": "ignore"}, {"comit": 1}):
        with pytest.raises(InvalidRequest):
            mq.queue(topic, **settings)  # type: ignore[arg-type]
    queue: Queue = mq.queue(topic)
    for bad in (
        lambda: queue.poll(0),
        lambda: queue.poll(timeout=-1),
        lambda: queue.get("5"),  # type: ignore[arg-type]
        lambda: queue.commit("5"),  # type: ignore[arg-type]
        lambda: queue.seek(5),  # type: ignore[arg-type]
        lambda: queue.remove_before(5),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidRequest):
            bad()
    with pytest.raises(InvalidRequest) as nowhere:
        queue.get("earliest")  # type: ignore[arg-type]
    assert nowhere.value.hint == "pass an int, or tinymq.Offset(5)", "only an offset names one message"
    queue.close()
    queue.close()
    for call in (queue.poll, queue.commit, queue.flush, queue.size, lambda: queue.push(b""), lambda: next(queue)):
        with pytest.raises(Closed):
            call()
