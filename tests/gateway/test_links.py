"""Calls that one broker forwards to another: one hop, bounded, ended with the broker, cancelled with their client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from tests.fakes.queue_client import QueueClient
from tests.fakes.raw_client import until
from tinymq.base.config import Limits
from tinymq.base.errors import BrokerUnreachable, Closed, OutcomeUnknown, QuotaExceeded, TinymqError
from tinymq.client.net.grpc_transport import GrpcConnector
from tinymq.gateway.links import LINKS_MAX, LinkPool
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.errors import TRAILER, from_wire
from tinymq.proto.methods import method_named
from tinymq.rpc.common.call_context import host_of
from tinymq.rpc.common.forward_mark import FORWARDED
from tinymq.testing.cluster import Cluster

ASK = pb.FetchMessageRequest(topic="t")
FETCH = method_named("QueueService", "FetchMessage")
CALLS_MAX = 2  # on one link


class Silent:
    """A broker that answers nothing, and counts the waiting calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self,))  # type: ignore[arg-type]
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._wait)

    async def _wait(self, request: bytes, context: Any) -> bytes:
        self.calls += 1
        await asyncio.get_running_loop().create_future()
        return b""

    async def __aenter__(self) -> Silent:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)


def run(scenario: Callable[[LinkPool, Silent], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Silent() as server:
            pool = LinkPool(GrpcConnector(Limits()), CALLS_MAX)
            try:
                await scenario(pool, server)
            finally:
                await pool.close()

    asyncio.run(main())


def test_calls_that_wait_are_bounded_and_end_with_the_broker() -> None:
    async def scenario(pool: LinkPool, server: Silent) -> None:
        room = LINKS_MAX * CALLS_MAX
        waiting = [asyncio.ensure_future(pool.call(server.address, FETCH, ASK, 60)) for _ in range(room)]
        await until(lambda: server.calls == room)
        with pytest.raises(QuotaExceeded):
            await pool.call(server.address, FETCH, ASK, 60)
        gone = waiting.pop()
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        waiting.append(asyncio.ensure_future(pool.call(server.address, FETCH, ASK, 60)))
        await until(lambda: server.calls == room + 1)
        await pool.close()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(each) for each in ended} == {OutcomeUnknown}, "the broker may have received them"
        with pytest.raises(Closed):
            await pool.call(server.address, FETCH, ASK, 60)

    run(scenario)


def test_requests_that_never_arrived_and_those_that_may_have() -> None:
    async def scenario(pool: LinkPool, server: Silent) -> None:
        with pytest.raises(OutcomeUnknown):
            await pool.call(server.address, FETCH, ASK, 0.2)
        with pytest.raises(BrokerUnreachable):
            await pool.call("127.0.0.1:1", FETCH, ASK, 5)
        asked = asyncio.ensure_future(pool.call(server.address, FETCH, ASK, 60))
        await until(lambda: server.calls == 2)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    run(scenario)


def test_hosts_of_peers() -> None:
    peers = {"ipv4:10.0.0.1:4242": "10.0.0.1", "ipv6:%5B::1%5D:4242": "%5B::1%5D", "unix:/a/b": "unix:/a/b", "": ""}
    assert {peer: host_of(peer) for peer in peers} == peers


# ---- on a cluster -----------------------------------------------------------------------------------------------


async def made(cluster: Cluster, client: QueueClient, topic: str) -> tuple[int, int]:
    """A topic with one queue: (index of its leader among the brokers, index of another broker)."""
    await client.call("CreateQueue", pb.CreateQueueRequest(topic=topic))
    leader = await asyncio.to_thread(cluster.wait_leader, topic)
    return leader - 1, leader % 3


def on_cluster(scenario: Callable[[Cluster, QueueClient], Awaitable[None]], connection_streams_max: int = 256) -> None:
    with Cluster(nodes=3, limits=Limits(connection_streams_max=connection_streams_max)) as cluster:

        async def main() -> None:
            async with QueueClient([cluster.address(n) for n in (1, 2, 3)]) as client:
                await scenario(cluster, client)

        asyncio.run(main())


async def ended(call: Awaitable[Any]) -> tuple[StatusCode, TinymqError]:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    trailers: dict[str, Any] = dict(failed.value.trailing_metadata())
    return failed.value.code(), from_wire(pb.Error.FromString(trailers[TRAILER]))


def test_a_call_is_passed_on_once() -> None:
    """Otherwise two brokers that believe each other to be the leader would forward a call until its deadline."""

    async def scenario(cluster: Cluster, client: QueueClient) -> None:
        leader, other = await made(cluster, client, "once")
        client._metadata = ((FORWARDED, "1"),)
        request = pb.FetchMessageRequest(topic="once")
        status, error = await ended(client.call("FetchMessage", request, at=other))
        assert (status, error.code) == (StatusCode.UNAVAILABLE, "NotLeader")
        assert error.detail["leader_address"] == cluster.address(leader + 1)
        assert (await client.call("FetchMessage", request, at=leader)).high_watermark == 0

    on_cluster(scenario)


@pytest.mark.parametrize("queue", [0, None])
def test_calls_waiting_at_a_stopping_broker_get_an_error(queue: int | None) -> None:
    async def scenario(cluster: Cluster, client: QueueClient) -> None:
        leader, other = await made(cluster, client, "stopping")
        consume = pb.ConsumeMessageRequest(topic="stopping", queue=queue, channel="c", wait_ms=20_000)
        fetch = pb.FetchMessageRequest(topic="stopping", wait_ms=20_000)
        for at in (other, leader):
            waiting = [
                asyncio.ensure_future(client.call("ConsumeMessage", consume, at=at)),
                asyncio.ensure_future(client.call("FetchMessage", fetch, at=at)),
            ]
            await until(lambda: _waiting(cluster, "stopping") >= 2)
            await asyncio.to_thread(cluster.stop, at + 1)
            for each in waiting:
                status, error = await ended(each)
                assert status in (StatusCode.UNAVAILABLE, StatusCode.UNKNOWN), error
            if at == other:
                await asyncio.to_thread(cluster.start, at + 1)
                leader_now = await asyncio.to_thread(cluster.wait_leader, "stopping")
                assert leader_now == leader + 1

    on_cluster(scenario)


def test_a_client_that_disconnects_leaves_no_call_waiting() -> None:
    async def scenario(cluster: Cluster, client: QueueClient) -> None:
        leader, other = await made(cluster, client, "leaving")
        for queue in (0, None):
            for at in (leader, other):
                consume = pb.ConsumeMessageRequest(topic="leaving", queue=queue, channel="c", wait_ms=20_000)
                waiting = asyncio.ensure_future(client.call("ConsumeMessage", consume, at=at))
                await until(lambda: _waiting(cluster, "leaving") == 1)
                waiting.cancel()
                await until(lambda: _waiting(cluster, "leaving") == 0)
        assert (await client.produce("leaving", b"x", 0)).offset == 0
        message = await client.consume("leaving", "c", 0)
        assert message is not None
        assert message.offset == 0, "no cancelled call has taken it"

    on_cluster(scenario)


@pytest.mark.parametrize("queue", [0, None])
def test_waiting_calls_do_not_keep_others_from_being_forwarded(queue: int | None) -> None:
    """More calls wait than one connection carries at a time."""
    streams_max, count = 32, 40

    async def scenario(cluster: Cluster, client: QueueClient) -> None:
        _, other = await made(cluster, client, "crowded")
        consume = pb.ConsumeMessageRequest(topic="crowded", queue=queue, channel="c", wait_ms=25_000)
        crowd = [QueueClient([cluster.address(other + 1)]) for _ in range(2)]
        waiting = [
            asyncio.ensure_future(crowd[n % 2].call("ConsumeMessage", consume, timeout_s=30)) for n in range(count)
        ]
        await until(lambda: _waiting(cluster, "crowded") == count)
        produce = pb.ProduceMessageRequest(topic="crowded", queue=0)
        for _ in range(4):
            await asyncio.gather(*(client.call("ProduceMessage", produce, at=other) for _ in range(count // 4)))
        got = await asyncio.gather(*waiting)
        assert sorted(reply.message.offset for reply in got) == list(range(count))
        await asyncio.gather(*(each.__aexit__(None, None, None) for each in crowd))

    on_cluster(scenario, connection_streams_max=streams_max)


def _waiting(cluster: Cluster, topic: str) -> int:
    """The number of watchers of the topic's queue, over all replicas."""

    def count() -> int:
        watching = 0
        for app in cluster.brokers.values():
            broker = app.serving.broker
            record = broker.registry.get_topic(topic) if broker is not None else None
            replica = broker.replica_host.get(record.topic_id, 0) if broker is not None and record is not None else None
            watching += len(replica._commit_watchers._watchers) if replica is not None else 0
        return watching

    return cluster.call(count)
