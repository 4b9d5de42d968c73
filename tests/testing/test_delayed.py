"""Delayed records and the clock of a test: the Python of docs/delayed-messages.md, and a jump over a failover."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tinymq import Client, Message
from tinymq.testing.cluster import Cluster

pytest_plugins = ["tinymq.testing.fixture"]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "delayed-messages.md").read_text()
WAIT_S = 30.0


def test_the_page_works(tinymq_cluster: Cluster, tinymq_client: Client, tinymq_topic: str) -> None:
    tinymq_client.admin.create_topic("orders", partitions=3)
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        code = block.replace("127.0.0.1:7070", tinymq_cluster.servers)
        exec(compile(code, "docs/delayed-messages.md", "exec"), names)
    with names["mq"] as mq:
        assert len({scheduled.schedule_id for scheduled in mq.admin.scheduled("orders")}) > 1
        assert not mq.cancel("orders", names["scheduled"].partition, names["scheduled"].schedule_id), "it was canceled"
    assert len(names["ids"]) == 100
    names["test_the_reminder_comes_after_a_day"](tinymq_cluster, tinymq_client, tinymq_topic)


def test_what_is_due_after_a_jump_is_delivered_by_another_leader(
    tinymq_cluster: Cluster, tinymq_client: Client, tinymq_topic: str
) -> None:
    mq, topic = tinymq_client, tinymq_topic
    later = mq.send(topic, b"later", partition=0, delay=timedelta(days=3))
    sooner = mq.send(topic, b"sooner", partition=0, delay=3600)
    never = mq.send(topic, b"never", partition=0, delay=3600)
    assert mq.cancel(topic, 0, never.schedule_id)
    leader = tinymq_cluster.wait_leader(topic, 0)
    tinymq_cluster.kill(leader)
    tinymq_cluster.wait_leader(topic, 0, other_than=leader)
    with mq.reader(topic, partitions=[0]) as reader:
        tinymq_cluster.clock.advance(hours=2)
        (message,) = reader.poll(WAIT_S)
        assert (message.value, message.offset) == (b"sooner", 0)
        assert [scheduled.schedule_id for scheduled in mq.admin.scheduled(topic, 0)] == [later.schedule_id]
        assert later.deliver_at - sooner.deliver_at > timedelta(days=2)
        tinymq_cluster.start(leader)
        tinymq_cluster.clock.advance(days=3)
        (message,) = reader.poll(WAIT_S)
        assert (message.value, message.offset) == (b"later", 1)
    assert not mq.cancel(topic, 0, later.schedule_id), "it is delivered"


def test_a_time_is_counted_by_the_brokers_clock(
    tinymq_cluster: Cluster, tinymq_client: Client, tinymq_topic: str
) -> None:
    """The clock of this module's cluster is days ahead of the client's."""
    tinymq_cluster.clock.advance(days=40)
    today = datetime.now(UTC)
    passed = tinymq_client.send(tinymq_topic, b"at once", partition=0, deliver_at=today + timedelta(days=20))
    with tinymq_client.reader(tinymq_topic) as reader:
        assert [message.value for message in reader.poll(WAIT_S)] == [b"at once"]
    assert passed.schedule_id
    ahead = tinymq_client.send(tinymq_topic, b"v", deliver_at=today + timedelta(days=60))
    assert ahead.deliver_at > passed.deliver_at


def test_groups_and_channels_get_a_delayed_record_as_any_other(
    tinymq_cluster: Cluster, tinymq_client: Client, tinymq_topic: str
) -> None:
    mq, topic = tinymq_client, tinymq_topic
    with (
        mq.worker(topic, group=f"{topic}-workers") as worker,
        mq.consumer(topic, group=f"{topic}-members", start="earliest") as consumer,
        mq.queue(topic, partition=0, channel="c") as queue,
    ):
        sent = {b"one", b"two"}
        for value in sent:
            mq.send(topic, value, partition=0, delay=timedelta(days=20))
        tinymq_cluster.clock.advance(days=21)
        done = set[bytes | None]()
        while len(done) < len(sent):
            for job in worker.poll(timeout=WAIT_S):
                done.add(job.value)
                job.ack(wait=True)
        assert done == sent
        assert {message.value for message in _until(lambda: consumer.poll(timeout=WAIT_S), 2)} == sent
        assert {message.value for message in _until(lambda: queue.poll(max_records=10), 2)} == sent


def _until(poll: Callable[[], Sequence[Message]], count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        found += poll()
    return found
