"""Topics that are made when they are first used, on real brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tinymq.base.errors import InvalidName, UnknownTopic
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as rpc
from tinymq.testing.cluster import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, auto_create_topics=True) as running:
        yield running


def test_the_first_send_makes_a_topic_with_the_defaults(cluster: Cluster) -> None:
    with cluster.client(request_timeout_ms=20_000) as mq, mq.producer() as producer:
        producer.send("orders", b"v").result(20.0)
        topic = mq.admin.describe_topic("orders")
        assert (len(topic.partitions), topic.replication_factor) == (6, 3)
        assert Counter(at.leader for at in topic.partitions) == {1: 2, 2: 2, 3: 2}
        with pytest.raises(InvalidName):
            producer.send("no name", b"v")


def test_the_first_reader_makes_it_and_a_look_does_not(cluster: Cluster) -> None:
    with cluster.client(request_timeout_ms=20_000) as mq:
        for look in (mq.admin.describe_topic, mq.admin.offsets):
            with pytest.raises(UnknownTopic):
                look("events")
        with mq.queue("events", partition=5, channel="c") as queue:
            assert queue.poll() == []
        assert len(mq.admin.describe_topic("events").partitions) == 6


def test_clients_that_make_it_at_the_same_time_use_the_same_one(cluster: Cluster) -> None:
    def send(n: int) -> bytes:
        with cluster.client(request_timeout_ms=20_000) as mq, mq.producer() as producer:
            producer.send("shared", b"%d" % n, partition=0).result(20.0)
            return mq.admin.describe_topic("shared").topic_id

    with ThreadPoolExecutor(3) as pool:
        ids = set(pool.map(send, range(3)))
    assert len(ids) == 1


def test_a_message_of_a_foreign_client_makes_it(cluster: Cluster) -> None:
    with grpc.insecure_channel(cluster.address(2)) as channel:
        request = pb.ProduceMessageRequest(topic="foreign", value=b"v")
        reply = rpc.QueueServiceStub(channel).ProduceMessage(request, timeout=20.0)
        assert reply.offset == 0


def test_it_is_off_unless_brokers_say_otherwise() -> None:
    with Cluster(nodes=1) as plain, plain.client() as mq, mq.producer(block_ms_max=500) as producer:
        with pytest.raises(UnknownTopic) as refused:
            producer.send("orders", b"v")
        assert "orders" in str(refused.value)
