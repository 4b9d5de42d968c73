"""Message ids and work queues on a real broker: duplicates are recognised, and reading makes room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tinymq import Client
from tinymq.base.errors import InvalidRequest, QuotaExceeded
from tinymq.client.common.values import as_datetime
from tinymq.testing.cluster import Cluster


@pytest.fixture(scope="module")
def mq() -> Iterator[Client]:
    with Cluster(nodes=1) as cluster, cluster.client(request_timeout_ms=10_000) as client:
        yield client


def test_a_record_that_is_sent_again_is_stored_once(mq: Client) -> None:
    mq.admin.create_topic("orders", partitions=4, settings={"dedupe_window": "on"})
    placed = []
    for _ in range(2):  # two producers: each has ids and sequences of its own
        with mq.producer() as producer:
            sent = [producer.send("orders", b"%d" % n, message_id=f"order {n}") for n in range(20)]
            sent.append(producer.send("orders", b"another"))
            placed.append([delivery.result(10.0) for delivery in sent])
    first, again = placed
    assert [(p.partition, p.offset) for p in again[:20]] == [(p.partition, p.offset) for p in first[:20]]
    assert [p.duplicate for p in first + again] == [False] * 21 + [True] * 20 + [False]
    assert sum(at.high_watermark for at in mq.admin.offsets("orders").values()) == 22


def test_the_id_of_a_delayed_record_is_used_from_its_send_on(mq: Client) -> None:
    mq.admin.create_topic("reminders", partitions=3, settings={"dedupe_window": "on"})
    with mq.producer() as producer:
        first = producer.send("reminders", b"1", message_id="a", delay=60).result(10.0)
        for _ in range(2):  # while it waits, and after it was canceled
            again = producer.send("reminders", b"2", message_id="a", delay=60).result(10.0)
            assert (again.partition, again.schedule_id, again.duplicate) == (first.partition, first.schedule_id, True)
            now = producer.send("reminders", b"3", message_id="a").result(10.0)
            assert (now.partition, now.offset, now.duplicate) == (first.partition, -1, True)
            mq.cancel("reminders", first.partition, first.schedule_id)
        assert list(mq.admin.scheduled("reminders")) == []

        plain = producer.send("reminders", b"4", message_id="b").result(10.0)
        late = producer.send("reminders", b"5", message_id="b", delay=60).result(10.0)
        assert (late.partition, late.schedule_id, late.duplicate) == (plain.partition, 0, True)
        assert late.deliver_at == as_datetime(plain.append_time_us), "it was delivered at once"
    assert sum(at.high_watermark for at in mq.admin.offsets("reminders").values()) == 1


def test_a_topic_that_remembers_no_ids_refuses_them(mq: Client) -> None:
    mq.admin.create_topic("plain", partitions=1)
    with mq.producer() as producer:
        for message_id in ("", b"x" * 257, 7):
            with pytest.raises(InvalidRequest):
                producer.send("plain", b"v", message_id=message_id)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="no dedupe_window"):
            producer.send("plain", b"v", message_id="a").result(10.0)


def test_reading_makes_room(mq: Client) -> None:
    mq.admin.create_topic("jobs", partitions=1, settings={"retention": "acknowledged", "max_records": 5})
    with mq.queue("jobs", partition=0, channel="workers") as queue:
        assert queue.poll() == []
        for n in range(12):
            queue.push(b"%d" % n)
            if n >= 4:  # from here on the topic is full before each push but the first
                (message,) = queue.poll(timeout=5.0)
                assert message.value == b"%d" % (n - 4)
                queue.commit()
        (at,) = mq.admin.offsets("jobs").values()
        assert (at.log_start >= 7, at.high_watermark) == (True, 12)
    with mq.producer(delivery_timeout_ms=300) as producer:
        sent = [producer.send("jobs", b"more").exception(10.0) for _ in range(6)]
    assert isinstance(sent[-1], QuotaExceeded)
