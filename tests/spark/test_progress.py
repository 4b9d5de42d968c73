"""The progress that `groupId` publishes disturbs no other consumer, and is not delayed by failures."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pyspark_tinymq.options.offsets import Partition
from pyspark_tinymq.read import progress
from pyspark_tinymq.read.progress import Progress
from tests.spark.reading import send, stream
from tests.spark.test_stream import Query
from tinymq import Client
from tinymq.base.errors import Fenced
from tinymq.base.types import Offset
from tinymq.client.admin.admin import AsyncAdmin
from tinymq.testing.cluster import Cluster


def position(mq: Client, topic: str) -> int:
    (channel,) = mq.admin.list_channels(topic)
    return channel.position


def test_a_reader_further_on_in_the_channel_keeps_its_position(
    cluster: Cluster, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream continues without publishing, and publishes again once no consumer reads."""
    monkeypatch.setattr(progress, "GAP_S", 0.0)
    mq.admin.create_topic("late")
    send(cluster, "late", 20)
    query = Query(
        stream(cluster, subscribe="late", startingOffsets="earliest", groupId="workers", maxOffsetsPerTrigger=4)
    )
    assert query.batch() == [0, 1, 2, 3]
    assert query.batch() == [4, 5, 6, 7]
    assert position(mq, "late") == 4
    with mq.queue("late", 0, "workers", consumer="a-worker") as queue:
        (first,) = queue.poll(timeout=10)
        assert first.offset == 4
        assert query.batch() == [8, 9, 10, 11]
        (second,) = queue.poll(timeout=10)
        assert second.offset == 5
        queue.commit()  # not fenced
        assert position(mq, "late") == 6
    assert query.batch() == [12, 13, 14, 15]
    assert position(mq, "late") == 12


def test_a_channel_is_moved_or_created_only_where_it_has_no_reader(cluster: Cluster, mq: Client) -> None:
    mq.admin.create_topic("sought")
    send(cluster, "sought", 5)
    assert mq.admin.seek_channel("sought", 0, "c", Offset(2), unless_read=True, make=True) == 2
    assert mq.admin.seek_channel("sought", 0, "c", Offset(3), unless_read=True, make=True) == 3
    with mq.queue("sought", 0, "c", consumer="a-worker") as queue:
        assert queue.poll(timeout=10)
        with pytest.raises(Fenced, match="a-worker reads sought/0 through channel 'c'") as refused:
            mq.admin.seek_channel("sought", 0, "c", Offset(1), unless_read=True)
        assert "tinymq queue consumer unset sought/0 --channel c" in refused.value.hint
        queue.commit()
    assert position(mq, "sought") == 4


def test_partitions_without_a_leader_hold_up_a_publication_once(
    cluster: Cluster, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come last the next time, with a shorter wait."""
    asked: list[dict[int, float]] = []  # by publication: the partitions in their order, and the time that each got
    left = set(range(6))  # partitions whose position is not published
    seek = AsyncAdmin.seek_channel

    async def recorded(admin: AsyncAdmin, topic: str, partition: int, *args: Any, timeout: float, **named: Any) -> int:
        asked[-1][partition] = timeout
        position = await seek(admin, topic, partition, *args, timeout=timeout, **named)
        left.discard(partition)
        return position

    def publish(offset: int) -> None:
        asked.append({})
        publishing.publish({Partition("sparse", number): offset for number in range(6)}, now=True)

    monkeypatch.setattr(progress, "GAP_S", 0.0)
    monkeypatch.setattr(progress, "AT_ONCE_MAX", 1)
    monkeypatch.setattr(progress, "TIMEOUT_S", 2.0)
    monkeypatch.setattr(progress, "AGAIN_S", 0.1)
    mq.admin.create_topic("sparse", partitions=6, replication_factor=1)
    for partition in range(6):
        send(cluster, "sparse", 2, partition=partition)
    dead = cluster.wait_leader("sparse", 0)
    lost = {number for number in range(6) if cluster.wait_leader("sparse", number) == dead}
    assert 2 <= len(lost) <= 4
    publishing = Progress(mq, "watch")
    publish(1)
    monkeypatch.setattr(AsyncAdmin, "seek_channel", recorded)
    cluster.kill(dead)
    deadline_s = time.monotonic() + 60
    late: set[int] = set()
    while left != lost:  # the registry may need another leader first
        assert time.monotonic() < deadline_s
        again = left.copy()
        publish(2)
        assert all(given <= (0.1 if number in late else 2.0) for number, given in asked[-1].items())
        wanted = sorted(again - late) + sorted(again & late)  # those that failed before come last
        assert list(asked[-1]) == wanted[: len(asked[-1])], "when the time is up, the rest is not asked"
        late = left.copy()
    cluster.start(dead)
