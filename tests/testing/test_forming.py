"""Creating a topic while the cluster is incomplete waits for the missing brokers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tinymq.base.errors import InvalidRequest, NotReady
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.testing import Cluster

TIMEOUT_S = 30.0


def test_the_default_factor_waits_for_voters_that_are_not_registered() -> None:
    """Both the client and CreateQueue wait. Without the wait, the topic silently got one or two replicas."""
    with Cluster(nodes=3) as cluster, ThreadPoolExecutor(2) as pool:
        admin = cluster.client().admin
        cluster.stop(3)
        cluster.wait_until(lambda: len(cluster.registry(1).get_all_brokers()) == 2)
        with pytest.raises(NotReady, match="broker 3 missing"):
            admin.create_topic("early", timeout=0.5)
        with pytest.raises(InvalidRequest, match="replication factor 3 with 2 live brokers"):
            admin.create_topic("wide", replication_factor=3)
        assert admin.create_topic("named", replication_factor=2).replication_factor == 2, (
            "an explicit factor does not wait"
        )
        with grpc.insecure_channel(cluster.address(1)) as channel:
            queues = pb_grpc.QueueServiceStub(channel)
            request = pb.CreateQueueRequest(topic="queue")
            by_default = pool.submit(admin.create_topic, "late", timeout=TIMEOUT_S)
            first_queue = pool.submit(queues.CreateQueue, request, timeout=TIMEOUT_S)
            cluster.start(3)
            assert by_default.result().replication_factor == 3
            first_queue.result()
        described = {topic.name: topic.replication_factor for topic in admin.list_topics()}
        assert described == {"late": 3, "named": 2, "queue": 3}
