"""Workers without a stream: messages that a group leases by ConsumeMessage, and Settle, at any broker of three."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator

import grpc
import pytest
from grpc import StatusCode

from tests.fakes.queue_client import QueueClient
from tinymq.base.errors import LeaseLost
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto import tinymq_pb2_grpc as pb_grpc
from tinymq.testing.cluster import Cluster

WAIT_MS = 20_000
S = pb.SettleRequest


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as running:
        yield running


class Bench:
    """A topic with a queue group of its name."""

    def __init__(self, cluster: Cluster, client: QueueClient, name: str) -> None:
        self.cluster, self.client, self.name = cluster, client, name

    async def make(self, messages: int, queues: int = 1, **settings: str) -> None:
        for _ in range(queues):
            await self.client.call("CreateQueue", pb.CreateQueueRequest(topic=self.name))
        request = pb.CreateGroupRequest(
            name=self.name, kind="queue", topics=[self.name], timeout_ms=20_000, command_id=os.urandom(16),
            settings=[pb.Setting(name=name, value=value) for name, value in settings.items()],
        )  # fmt: skip
        async with grpc.aio.insecure_channel(self.cluster.address(1)) as channel:
            reply = await pb_grpc.GroupsStub(channel).CreateGroup(request, timeout=20)
        assert not reply.HasField("error"), reply.error
        for n in range(messages):
            await self.send(b"%d" % n, n % queues)

    async def send(self, value: bytes, queue: int = 0) -> None:
        await self.client.call("ProduceMessage", pb.ProduceMessageRequest(topic=self.name, queue=queue, value=value))

    async def lease(self, *, wait_ms: int = WAIT_MS, at: int | None = None, **fields: object) -> pb.ConsumeMessageReply:
        fields = {"queue": 0} | fields
        asked = pb.ConsumeMessageRequest(topic=self.name, group=self.name, wait_ms=wait_ms, **fields)  # type: ignore[arg-type]
        return await self.client.call("ConsumeMessage", asked, at=at)

    def settlement(self, leased: pb.ConsumeMessageReply, verb: int, **fields: object) -> pb.SettleRequest:
        return S(
            topic=self.name, queue=leased.message.queue, group=self.name, lease=leased.lease,
            verb=S.Verb.ValueType(verb), **fields,  # type: ignore[arg-type]
        )  # fmt: skip

    async def settle(self, leased: pb.ConsumeMessageReply, verb: int, **fields: object) -> pb.SettleReply:
        return await self.client.call("Settle", self.settlement(leased, verb, **fields))

    async def lost(self, leased: pb.ConsumeMessageReply, verb: int) -> None:
        status, error = await self.client.refused("Settle", self.settlement(leased, verb))
        assert (status, type(error)) == (StatusCode.FAILED_PRECONDITION, LeaseLost)

    async def lag(self) -> int:
        asked = pb.GetQueueSizeRequest(topic=self.name, channel=self.name)
        return (await self.client.call("GetQueueSize", asked)).messages


def on(cluster: Cluster, name: str, test: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        async with QueueClient([cluster.address(broker) for broker in (1, 2, 3)]) as client:
            await test(Bench(cluster, client, name))

    asyncio.run(main())


def test_each_message_goes_to_one_caller_and_is_settled_once(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(messages=6)
        leased = await asyncio.gather(*(b.lease(at=n % 3) for n in range(6)))
        assert sorted(each.message.value for each in leased) == [b"%d" % n for n in range(6)]
        assert {each.delivery for each in leased} == {1}
        assert 0 < leased[0].lease_ms <= 30_000
        assert not (await b.lease(wait_ms=0)).HasField("message")
        for each in leased:
            await b.settle(each, S.ACK)
        assert await b.lag() == 0
        await b.settle(leased[0], S.ACK)
        await b.settle(leased[0], S.NACK)
        assert await b.lag() == 0, "what is settled stays so"

    on(cluster, "once", test)


def test_a_nack_counts_once_although_it_is_repeated(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(messages=1, retry_ms="0,0,0")
        first = await b.lease()
        for _ in range(3):
            await b.settle(first, S.NACK, delay_ms=0, error="busy")
        again = await b.lease()
        assert (again.message.offset, again.delivery) == (0, 2)
        await b.settle(first, S.NACK)
        await b.lost(first, S.EXTEND)
        await b.lost(first, S.ACK)
        await b.settle(again, S.ACK)

    on(cluster, "nack", test)


def test_a_lease_ends_by_its_time_and_counts_as_failed(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(messages=1, lease_ms="1000", retry_ms="0,0")
        first = await b.lease()
        again = await b.lease()
        assert (again.message.offset, again.delivery) == (0, 2)
        await b.lost(first, S.ACK)
        assert (await b.settle(again, S.EXTEND)).lease_ms > 500
        await b.settle(again, S.ACK)

    on(cluster, "ends", test)


def test_a_rejected_message_becomes_a_dead_letter_once(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(messages=1)
        leased = await b.lease()
        for _ in range(2):
            await b.settle(leased, S.REJECT, error="no such address")
        while await b.lag():
            await asyncio.sleep(0)
        await b.settle(leased, S.REJECT)
        size = pb.GetQueueSizeRequest(topic=f"{b.name}.dlq")
        assert (await b.client.call("GetQueueSize", size)).messages == 1

    on(cluster, "reject", test)


def test_a_message_of_any_queue(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(messages=4, queues=2)

        async def any_queue() -> pb.ConsumeMessageReply:
            asked = pb.ConsumeMessageRequest(topic=b.name, group=b.name, wait_ms=WAIT_MS)
            return await b.client.call("ConsumeMessage", asked)

        leased = [await any_queue() for _ in range(4)]
        assert sorted((each.message.queue, each.message.offset) for each in leased) == [(0, 0), (0, 1), (1, 0), (1, 1)]
        waiting = asyncio.ensure_future(any_queue())
        await b.send(b"later", 1)
        assert (await waiting).message.value == b"later"

    on(cluster, "any", test)


def test_a_lease_is_settled_at_the_next_leader(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(messages=2)
        kept, given = await b.lease(), await b.lease()
        leader = cluster.wait_leader(b.name)
        await asyncio.to_thread(cluster.restart, leader)
        await b.settle(kept, S.ACK)
        assert (await b.lease()).message.offset == 1, "the lease ended with the leader: its worker cannot attach"
        await b.lost(given, S.ACK)

    on(cluster, "failover", test)


def test_a_seek_ends_leases(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(messages=2)
        leased = await b.lease()
        with cluster.client() as mq:
            await asyncio.to_thread(mq.admin.purge_group, b.name)
        await b.lost(leased, S.NACK)
        await b.send(b"new")
        assert (await b.lease()).message.value == b"new"

    on(cluster, "seek", test)


def test_what_is_refused(cluster: Cluster) -> None:
    async def test(b: Bench) -> None:
        await b.make(messages=1)

        async def consume(**fields: object) -> StatusCode:
            return (await b.client.refused("ConsumeMessage", pb.ConsumeMessageRequest(**fields)))[0]  # type: ignore[arg-type]

        async def settle(**fields: object) -> StatusCode:
            asked = {"topic": b.name, "queue": 0, "group": b.name, "lease": leased.lease, "verb": S.ACK} | fields
            return (await b.client.refused("Settle", S(**asked)))[0]  # type: ignore[arg-type]

        whole = {"topic": b.name, "queue": 0, "group": b.name}
        assert await consume(**whole, channel="c") is StatusCode.INVALID_ARGUMENT
        assert await consume(**whole, request_id=b"x") is StatusCode.INVALID_ARGUMENT
        assert await consume(topic=b.name, queue=0, group="nobody") is StatusCode.NOT_FOUND
        leased = await b.lease()
        assert await settle(queue=None) is StatusCode.INVALID_ARGUMENT
        assert await settle(lease=b"") is StatusCode.INVALID_ARGUMENT
        assert await settle(lease=b"\xff" * 20) is StatusCode.INVALID_ARGUMENT
        assert await settle(lease=b"x" * 300) is StatusCode.INVALID_ARGUMENT
        assert await settle(verb=S.NONE) is StatusCode.INVALID_ARGUMENT
        assert await settle(verb=77) is StatusCode.INVALID_ARGUMENT
        assert await settle(verb=S.NACK, delay_ms=4_000_000_000) is StatusCode.INVALID_ARGUMENT
        assert await settle(queue=7) is StatusCode.NOT_FOUND
        assert await settle(group="other") is StatusCode.NOT_FOUND
        await b.settle(leased, S.ACK)

    on(cluster, "refused", test)
