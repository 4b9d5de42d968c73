"""`grpc.health.v1` of a broker: SERVING only while the broker serves."""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.testing.test_disks import Disks
from tinymq.rpc.operator_calls.cluster_formation import form_cluster
from tinymq.testing.cluster import SECRET, Cluster

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
NAMES = ("", *(f"tinymq.v1.{name}" for name in ("Broker", "Admin", "Channels", "Groups", "QueueService")))


def health(cluster: Cluster, broker_id: int) -> set[int]:
    """Return the health of the process and of each service."""

    async def ask() -> set[int]:
        async with grpc.aio.insecure_channel(cluster.address(broker_id)) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            asked = [stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10) for name in NAMES]
            return {reply.status for reply in await asyncio.gather(*asked)}

    return asyncio.run(ask())


def test_unformed_formed_and_failed() -> None:
    disks = Disks(5)
    with Cluster(nodes=1, form=False, files_factory=disks) as cluster:
        assert health(cluster, 1) == {NOT_SERVING}
        cluster.run(form_cluster([cluster.address(1)], SECRET, 1_000_000))
        cluster.wait_until(lambda: cluster._knows(1, {1}))
        while health(cluster, 1) != {SERVING}:  # one turn of the broker's loop later
            pass
        disks.of[1].fail_sync("ballots*", once=False)
        host = cluster.brokers[1].host
        cluster.call(lambda: next(iter(host.groups.values())).replica.state.enter_term(99, None))
        cluster.wait_until(lambda: cluster.brokers[1].state.value == "failed")
        while health(cluster, 1) != {NOT_SERVING}:
            pass


def test_an_unregistered_broker_serves_no_client() -> None:
    with Cluster(nodes=3) as cluster:
        for broker_id in (1, 2, 3):
            cluster.kill(broker_id)
        cluster.run(cluster._start(1))
        assert cluster.brokers[1].state.value == "running"
        assert health(cluster, 1) == {NOT_SERVING}, "without a majority no registry can register the broker"
