"""QueueService on a real cluster: each call at each broker, its replies, and the statuses of refusals."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import grpc
import pytest
from grpc import StatusCode

from tests.fakes.patience import QUICK_CHECKS
from tests.fakes.queue_client import AGAIN, WAIT_S, QueueClient
from tinymq.base.partitioning import keyed
from tinymq.gateway.queue_service import PRODUCE_BYTES_MAX
from tinymq.proto import tinymq_pb2 as pb
from tinymq.proto.registry_pb2 import Command, Reply
from tinymq.registry.base_registry import BaseRegistry
from tinymq.testing.cluster import Cluster

BROKERS = (1, 2, 3)


@pytest.fixture(scope="module")
def tinymq_cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, timing=QUICK_CHECKS) as cluster:
        yield cluster


def run(cluster: Cluster, scenario: Callable[[QueueClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with QueueClient([cluster.address(broker_id) for broker_id in BROKERS]) as client:
            await scenario(client)

    asyncio.run(main())


async def until_gone(client: QueueClient, topic: str, queue: int) -> None:
    """Wait until every broker knows of the deletion: until then it may send to that queue, and never learn whether the
    message was stored before the end."""
    size = pb.GetQueueSizeRequest(topic=topic, queue=queue)
    for at in range(len(BROKERS)):
        async with asyncio.timeout(WAIT_S):
            while not await _is_gone(client, size, at):
                await asyncio.sleep(0.005)


async def _is_gone(client: QueueClient, size: pb.GetQueueSizeRequest, at: int) -> bool:
    try:
        await client.call("GetQueueSize", size, at=at)
    except grpc.aio.AioRpcError as failed:
        return failed.code() is StatusCode.NOT_FOUND
    return False


async def make(client: QueueClient, topic: str, queues: int = 1) -> None:
    for _ in range(queues):
        await client.call("CreateQueue", pb.CreateQueueRequest(topic=topic))


def test_every_broker_returns_a_message_unchanged(tinymq_cluster: Cluster) -> None:
    async def scenario(client: QueueClient) -> None:
        await make(client, "whole")
        headers = [pb.Header(key="a", value=b"1"), pb.Header(key="a", value=b""), pb.Header(key="none")]
        sent = pb.ProduceMessageRequest(
            topic="whole", queue=0, key=b"k", value=b"v\0", headers=headers, timestamp_us=1_234_567
        )
        for at in range(3):
            reply = await client.call("ProduceMessage", sent, at=at)
            assert (reply.queue, reply.offset) == (0, at)
            assert reply.append_time_us > 1_234_567
        bare = await client.call("ProduceMessage", pb.ProduceMessageRequest(topic="whole", queue=0))
        for at in range(3):
            reply = await client.call("FetchMessage", pb.FetchMessageRequest(topic="whole", queue=0, offset=at), at=at)
            message = reply.message
            assert (message.topic, message.queue, message.offset, message.timestamp_us) == ("whole", 0, at, 1_234_567)
            assert (message.key, message.value, list(message.headers)) == (b"k", b"v\0", headers)
            assert (reply.log_start, reply.high_watermark) == (0, 4)
        last = (await client.call("FetchMessage", pb.FetchMessageRequest(topic="whole", offset=bare.offset))).message
        assert [last.HasField("key"), last.HasField("value"), len(last.headers)] == [False, False, 0]
        assert abs(last.timestamp_us - bare.append_time_us) < 60_000_000

    run(tinymq_cluster, scenario)


def test_every_broker_takes_a_delayed_message(tinymq_cluster: Cluster) -> None:
    async def scenario(client: QueueClient) -> None:
        await make(client, "delayed")
        replies = []
        for at in range(3):
            sent = pb.ProduceMessageRequest(topic="delayed", queue=0, value=b"later %d" % at, delay_ms=60_000 + at)
            replies.append(await client.call("ProduceMessage", sent, at=at))
        assert [reply.deliver_at_us - reply.append_time_us for reply in replies] == [60_000_000, 60_001_000, 60_002_000]
        assert len({reply.schedule_id for reply in replies} - {0}) == 3
        assert await client.consume("delayed", "c", 0) is None
        await asyncio.to_thread(tinymq_cluster.clock.advance, minutes=2)
        got = [await client.consume("delayed", "c", 0, wait_ms=10_000) for _ in range(3)]
        assert [(message.offset, message.value) for message in got if message] == [
            (0, b"later 0"), (1, b"later 1"), (2, b"later 2"),
        ]  # fmt: skip

    run(tinymq_cluster, scenario)


def test_each_channel_has_every_message_once_and_in_order(tinymq_cluster: Cluster) -> None:
    async def scenario(client: QueueClient) -> None:
        await make(client, "channels")
        for number in range(6):
            await client.produce("channels", b"%d" % number, 0)
        for channel in ("one", "two"):
            got = [await client.consume("channels", channel, 0) for _ in range(7)]
            assert [message.value for message in got[:6] if message] == [b"%d" % n for n in range(6)]
            assert got[6] is None
        size = pb.GetQueueSizeRequest(topic="channels", queue=0, channel="one")
        assert (await client.call("GetQueueSize", size)).messages == 0
        await client.produce("channels", b"more", 0)
        assert (await client.call("GetQueueSize", size)).messages == 1
        assert (await client.call("GetQueueSize", pb.GetQueueSizeRequest(topic="channels"))).messages == 7
        new = pb.GetQueueSizeRequest(topic="channels", channel="not-made-yet")
        assert (await client.call("GetQueueSize", new)).messages == 7

    run(tinymq_cluster, scenario)


def test_the_same_request_gets_the_same_message_over_any_broker(tinymq_cluster: Cluster) -> None:
    async def scenario(client: QueueClient) -> None:
        await make(client, "repeats")
        for number in range(5):
            await client.produce("repeats", b"%d" % number, 0)
        for request_id in (b"a", b"a\0", b"0123456789abcdef", b"b"):
            offsets = set()
            for at in range(3):
                request = pb.ConsumeMessageRequest(topic="repeats", queue=0, channel="c", request_id=request_id)
                offsets.add((await client.call("ConsumeMessage", request, at=at)).message.offset)
            assert len(offsets) == 1, request_id
        left = await client.consume("repeats", "c", 0)
        assert left is not None
        assert left.offset == 4, "ids with a common prefix are different ids"

    run(tinymq_cluster, scenario)


def test_a_consumer_waits_for_a_message(tinymq_cluster: Cluster) -> None:
    async def scenario(client: QueueClient) -> None:
        for queue in (0, 2, None):
            topic = f"waiting-{queue}"
            await make(client, topic, queues=3)
            waiting = [asyncio.ensure_future(client.consume(topic, "c", queue, wait_ms=15_000)) for _ in range(6)]
            looking = pb.FetchMessageRequest(topic=topic, queue=queue or 0, wait_ms=15_000)
            looked = asyncio.ensure_future(client.call("FetchMessage", looking))
            nothing = pb.FetchMessageRequest(topic=topic, queue=queue or 0, offset=1 << 40, wait_ms=10)
            assert not (await client.call("FetchMessage", nothing)).HasField("message")
            for number in range(6):
                await client.produce(topic, b"%d" % number, queue or 0)
            got = [await each for each in waiting]
            assert len({(m.queue, m.offset) for m in got if m}) == 6, "each gets another message"
            assert (await looked).message.value == b"0"
            assert await client.consume(topic, "c", queue, wait_ms=30) is None

    run(tinymq_cluster, scenario)


def test_keys_have_their_queue_and_others_take_turns(tinymq_cluster: Cluster) -> None:
    async def scenario(client: QueueClient) -> None:
        await make(client, "spread", queues=4)
        await client.call("DeleteQueue", pb.DeleteQueueRequest(topic="spread", queue=1))
        await until_gone(client, "spread", 1)
        left = [0, 2, 3]
        for number in range(12):
            key = b"key %d" % number
            for at in range(3):
                request = pb.ProduceMessageRequest(topic="spread", key=key, value=b"x")
                reply = await client.call("ProduceMessage", request, at=at)
                assert reply.queue == left[keyed(key, 3)], "as the client received it"
        turns = [
            (await client.call("ProduceMessage", pb.ProduceMessageRequest(topic="spread", value=b"x"), at=0)).queue
            for _ in range(9)
        ]
        assert Counter(turns) == {0: 3, 2: 3, 3: 3}
        got = [await client.consume("spread", "all") for _ in range(45)]
        assert len({(m.queue, m.offset) for m in got if m}) == 45
        assert await client.consume("spread", "all") is None

    run(tinymq_cluster, scenario)


def test_queues_come_and_go_and_a_topic_with_them(tinymq_cluster: Cluster) -> None:
    async def scenario(client: QueueClient) -> None:
        settings = [pb.Setting(name="max_records", value="3")]
        create = pb.CreateQueueRequest(topic="grown", settings=settings, replication_factor=3)
        assert (await client.call("CreateQueue", create)).queue == 0
        status, error = await client.refused("CreateQueue", create)
        assert (status, error.code) == (StatusCode.ALREADY_EXISTS, "TopicExists")
        numbers = [(await client.call("CreateQueue", pb.CreateQueueRequest(topic="grown"))).queue for _ in range(2)]
        assert numbers == [1, 2]
        for number in (0, 2):
            await client.call("DeleteQueue", pb.DeleteQueueRequest(topic="grown", queue=number))
        assert (await client.call("CreateQueue", pb.CreateQueueRequest(topic="grown"))).queue == 3
        for _ in range(3):
            await client.produce("grown", b"x", 1)
        status, error = await client.refused("ProduceMessage", pb.ProduceMessageRequest(topic="grown", queue=1))
        assert (status, error.code) == (StatusCode.RESOURCE_EXHAUSTED, "QuotaExceeded")
        for number in (1, 3):
            await client.call("DeleteQueue", pb.DeleteQueueRequest(topic="grown", queue=number))
        status, error = await client.refused("DeleteQueue", pb.DeleteQueueRequest(topic="grown", queue=3))
        assert (status, error.code) == (StatusCode.NOT_FOUND, "UnknownTopic"), (
            "deleting the last queue deleted the topic"
        )

    run(tinymq_cluster, scenario)


def test_the_last_queue_is_deleted_and_one_is_made_meanwhile(
    tinymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion that races with a new queue keeps the messages that the new queue acknowledged."""
    real, made = BaseRegistry._change, list[int]()

    async def overtaken(self: BaseRegistry, command: Command, timeout_s: float | None = None) -> Reply:
        if not made and (command.HasField("delete_topic") or command.delete_queue.with_topic):
            made.append((await self.register_queue("overtaken")).partition)
        return await real(self, command, timeout_s)

    monkeypatch.setattr(BaseRegistry, "_change", overtaken)

    async def scenario(client: QueueClient) -> None:
        await make(client, "overtaken")
        await client.call("DeleteQueue", pb.DeleteQueueRequest(topic="overtaken", queue=0))
        assert made == [1]
        await until_gone(client, "overtaken", 0)
        status, error = await client.refused("FetchMessage", pb.FetchMessageRequest(topic="overtaken", queue=0))
        assert (status, error.code) == (StatusCode.NOT_FOUND, "UnknownPartition")
        kept = (await client.call("ProduceMessage", pb.ProduceMessageRequest(topic="overtaken", value=b"x"))).queue
        assert kept == 1
        assert (await client.call("CreateQueue", pb.CreateQueueRequest(topic="overtaken"))).queue == 2

    run(tinymq_cluster, scenario)


def test_queues_made_at_once_are_different_ones(tinymq_cluster: Cluster) -> None:
    async def scenario(client: QueueClient) -> None:
        request = pb.CreateQueueRequest(topic="at-once")
        made = await asyncio.gather(*(client.call("CreateQueue", request) for _ in range(8)))
        assert sorted(reply.queue for reply in made) == list(range(8))

    run(tinymq_cluster, scenario)


REFUSED = [
    ("ProduceMessage", pb.ProduceMessageRequest(topic="nowhere"), StatusCode.NOT_FOUND, "UnknownTopic"),
    ("ProduceMessage", pb.ProduceMessageRequest(topic="a/b"), StatusCode.INVALID_ARGUMENT, "InvalidName"),
    ("ProduceMessage", pb.ProduceMessageRequest(topic="t", queue=9), StatusCode.NOT_FOUND, "UnknownPartition"),
    ("ProduceMessage", pb.ProduceMessageRequest(topic="t", timestamp_us=1 << 62), StatusCode.INVALID_ARGUMENT,
     "InvalidBatch"),
    ("ProduceMessage", pb.ProduceMessageRequest(topic="t", headers=[pb.Header(key="a")] * 10_001),
     StatusCode.INVALID_ARGUMENT, "InvalidRequest"),
    ("ProduceMessage", pb.ProduceMessageRequest(topic="t", delay_ms=999), StatusCode.INVALID_ARGUMENT,
     "InvalidRequest"),
    ("ProduceMessage", pb.ProduceMessageRequest(topic="t", delay_ms=(1 << 64) - 1), StatusCode.INVALID_ARGUMENT,
     "InvalidRequest"),
    ("AsyncProduceMessage", pb.ProduceMessageRequest(topic="t", delay_ms=1000), StatusCode.INVALID_ARGUMENT,
     "InvalidRequest"),
    ("AsyncProduceMessage", pb.ProduceMessageRequest(topic="nowhere"), StatusCode.NOT_FOUND, "UnknownTopic"),
    ("ConsumeMessage", pb.ConsumeMessageRequest(topic="t"), StatusCode.INVALID_ARGUMENT, "InvalidName"),
    ("ConsumeMessage", pb.ConsumeMessageRequest(topic="t", channel="c", request_id=b"x"),
     StatusCode.INVALID_ARGUMENT, "InvalidRequest"),
    ("ConsumeMessage", pb.ConsumeMessageRequest(topic="t", queue=0, channel="c", request_id=b"x" * 17),
     StatusCode.INVALID_ARGUMENT, "InvalidRequest"),
    ("ConsumeMessage", pb.ConsumeMessageRequest(topic="t", queue=7, channel="c"), StatusCode.NOT_FOUND,
     "UnknownPartition"),
    ("FetchMessage", pb.FetchMessageRequest(topic="t", queue=7), StatusCode.NOT_FOUND, "UnknownPartition"),
    ("GetQueueSize", pb.GetQueueSizeRequest(topic="nowhere"), StatusCode.NOT_FOUND, "UnknownTopic"),
    ("GetQueueSize", pb.GetQueueSizeRequest(topic="t", channel="?"), StatusCode.INVALID_ARGUMENT, "InvalidName"),
    ("DeleteQueue", pb.DeleteQueueRequest(topic="t", queue=7), StatusCode.NOT_FOUND, "UnknownPartition"),
    ("CreateQueue", pb.CreateQueueRequest(topic=""), StatusCode.INVALID_ARGUMENT, "InvalidName"),
    ("CreateQueue", pb.CreateQueueRequest(topic="x", settings=[pb.Setting(name="color")]),
     StatusCode.INVALID_ARGUMENT, "InvalidConfig"),
    ("CreateQueue", pb.CreateQueueRequest(topic="x", replication_factor=4), StatusCode.INVALID_ARGUMENT,
     "InvalidRequest"),
]  # fmt: skip


def test_what_is_refused(tinymq_cluster: Cluster) -> None:
    async def scenario(client: QueueClient) -> None:
        await make(client, "t")
        for name, request, status, code in REFUSED:
            for at in range(3):
                seen, error = await client.refused(name, request, at=at)
                assert (seen, error.code) == (status, code), (name, request)

    run(tinymq_cluster, scenario)


def test_a_broker_without_a_cluster_says_so() -> None:
    with Cluster(nodes=1, form=False) as cluster:

        async def main() -> None:
            async with QueueClient([cluster.address(1)]) as client:
                for name, request in (
                    ("ConsumeMessage", pb.ConsumeMessageRequest(topic="t", channel="c")),
                    ("CreateQueue", pb.CreateQueueRequest(topic="t")),
                ):
                    status, error = await client.refused(name, request)
                    assert (status, error.code) == (StatusCode.UNAVAILABLE, "NotReady")
                    assert "belongs to no cluster" in error.message

        asyncio.run(main())


def test_takers_of_any_queue_share_what_is_there() -> None:
    """Three brokers lead the queues, and one of them dies: no message is delivered twice. A message that the dead
    broker took without answering its client is lost, because these calls name no request id.
    """
    with Cluster(nodes=3) as cluster:

        async def scenario(client: QueueClient) -> None:
            await make(client, "any", queues=4)
            await asyncio.gather(*(client.produce("any", b"%d" % n) for n in range(100)))
            taken: list[tuple[int, int]] = []

            async def take() -> None:
                while True:
                    try:
                        message = await client.consume("any", "c")
                    except grpc.aio.AioRpcError as failed:
                        if failed.code() not in AGAIN:
                            raise
                        continue
                    if message is None:
                        return
                    taken.append((message.queue, message.offset))

            async def kill() -> None:
                while len(taken) < 25:
                    await asyncio.sleep(0.001)
                await asyncio.to_thread(cluster.kill, 2)

            await asyncio.gather(kill(), *(take() for _ in range(12)))
            assert len(taken) == len(set(taken))
            assert 100 - 12 <= len(taken) <= 100
            left = pb.GetQueueSizeRequest(topic="any", channel="c")
            assert (await client.call("GetQueueSize", left, at=0)).messages == 0, "no message was skipped"

        run(cluster, scenario)


def test_without_a_key_queues_of_a_dead_broker_are_passed_over() -> None:
    """One replica each: no other broker can lead the dead broker's queue."""
    with Cluster(nodes=3) as cluster:

        async def scenario(client: QueueClient) -> None:
            for queue in range(3):
                made = pb.CreateQueueRequest(topic="single", replication_factor=0 if queue else 1)
                await client.call("CreateQueue", made)
            leaders = [await asyncio.to_thread(cluster.wait_leader, "single", queue) for queue in range(3)]
            assert sorted(leaders) == [1, 2, 3]
            dead = leaders.index(3)
            await asyncio.to_thread(cluster.kill, 3)
            sent = pb.ProduceMessageRequest(topic="single", value=b"v")
            taken = Counter([(await client.call("ProduceMessage", sent, at=at % 2)).queue for at in range(12)])
            assert set(taken) == {0, 1, 2} - {dead}
            bound = pb.ProduceMessageRequest(topic="single", queue=dead, value=b"v", timeout_ms=300)
            status, _ = await client.refused("ProduceMessage", bound, at=0)
            assert status is StatusCode.DEADLINE_EXCEEDED, "the call waits for a named queue"

        run(cluster, scenario)


def test_a_call_without_an_answer_ends_in_time_with_a_certain_outcome() -> None:
    with Cluster(nodes=3) as cluster:

        async def scenario(client: QueueClient) -> None:
            await make(client, "alone")
            for broker_id in (2, 3):
                await asyncio.to_thread(cluster.kill, broker_id)
            produce = pb.ProduceMessageRequest(topic="alone", queue=0, timeout_ms=1500)
            consume = pb.ConsumeMessageRequest(topic="alone", queue=0, channel="c")
            (produced, error), (consumed, _) = await asyncio.gather(
                client.refused("ProduceMessage", produce, at=0),
                client.refused("ConsumeMessage", consume, at=0, timeout_s=2.0),
            )
            assert (produced, error.code) in {
                (StatusCode.UNKNOWN, "OutcomeUnknown"),  # it leads and has appended
                (StatusCode.DEADLINE_EXCEEDED, "DeadlineExceeded"),
            }
            assert consumed in (StatusCode.UNKNOWN, StatusCode.DEADLINE_EXCEEDED)

        run(cluster, scenario)


@pytest.mark.parametrize("kill", [pytest.param(False, marks=pytest.mark.long), True])
def test_fifty_takers_of_one_channel_get_every_message_once(kill: bool) -> None:
    """Over three brokers. With `kill` the leader dies in the middle, and clients without an answer ask
    another broker.
    """
    messages = 150
    with Cluster(nodes=3) as cluster:

        async def scenario(client: QueueClient) -> None:
            await make(client, "shared")
            await asyncio.gather(*(client.produce("shared", b"%d" % n, 0) for n in range(messages)))
            taken: list[int] = []

            async def take(rng: random.Random) -> None:
                while (message := await client.consume_surely("shared", "c", 0, rng.randbytes(16))) is not None:
                    taken.append(message.offset)

            async def end_leader() -> None:
                while kill and len(taken) < messages // 3:
                    await asyncio.sleep(0.001)
                if kill:
                    await asyncio.to_thread(cluster.kill, cluster.leader_of("shared") or 1)

            await asyncio.gather(end_leader(), *(take(random.Random(n)) for n in range(50)))
            assert sorted(taken) == list(range(messages))

        run(cluster, scenario)


def test_a_call_with_a_lost_answer_is_retried_after_the_leader_is_gone() -> None:
    with Cluster(nodes=3) as cluster:

        async def scenario(client: QueueClient) -> None:
            await make(client, "failover")
            for number in range(3):
                await client.produce("failover", b"%d" % number, 0)
            first = await client.consume_surely("failover", "c", 0, b"the same")
            leader = cluster.leader_of("failover")
            assert leader is not None
            await asyncio.to_thread(cluster.kill, leader)
            again = await client.consume_surely("failover", "c", 0, b"the same")
            assert first == again
            second = await client.consume_surely("failover", "c", 0, b"another")
            assert second is not None
            assert second.offset == 1

        run(cluster, scenario)


def test_a_message_that_the_client_could_not_be_sent_stays_the_next_one(tinymq_cluster: Cluster) -> None:
    """By default gRPC clients accept 4 MiB: QueueService creates no larger message, and loses none that another client
    wrote.
    """
    large = b"x" * (5 << 20)

    async def scenario(client: QueueClient) -> None:
        await make(client, "large")
        most = pb.ProduceMessageRequest(topic="large", queue=0, value=large[: PRODUCE_BYTES_MAX - 100])
        most.value = large[: len(most.value) + PRODUCE_BYTES_MAX - most.ByteSize()]
        assert most.ByteSize() == PRODUCE_BYTES_MAX
        more = pb.ProduceMessageRequest(topic="large", queue=0, value=most.value + b"x" * 8)
        await client.call("ProduceMessage", most)
        for name in ("ProduceMessage", "AsyncProduceMessage"):
            status, error = await client.refused(name, more)
            assert (status, error.code) == (StatusCode.INVALID_ARGUMENT, "BatchTooLarge")
        with tinymq_cluster.client() as mq:
            await asyncio.to_thread(mq.send, "large", large, partition=0)
        await client.produce("large", b"last", 0)
        first = await client.consume("large", "c", 0)
        assert first is not None
        assert len(first.value) == len(most.value)
        for at in range(3):
            consume = pb.ConsumeMessageRequest(topic="large", queue=0, channel="c", request_id=b"%d" % at)
            status, error = await client.refused("ConsumeMessage", consume, at=at)
            assert (status, error.code, error.detail["offset"]) == (StatusCode.INVALID_ARGUMENT, "BatchTooLarge", "1")
            fetch = pb.FetchMessageRequest(topic="large", queue=0, offset=1)
            status, error = await client.refused("FetchMessage", fetch, at=at)
            assert (status, error.code) == (StatusCode.INVALID_ARGUMENT, "BatchTooLarge")
        addresses = [tinymq_cluster.address(broker_id) for broker_id in BROKERS]
        async with QueueClient(addresses, receives=error.detail["needed_bytes"]) as roomy:
            for at in range(3):
                assert (await roomy.call("FetchMessage", fetch, at=at)).message.value == large
            taken = await roomy.consume("large", "c", 0)
        assert taken is not None
        assert (taken.offset, taken.value) == (1, large), "the consumer keeps its position"
        last = await client.consume("large", "c", 0)
        assert last is not None
        assert last.value == b"last"
        async with QueueClient(addresses, receives="many") as confused:
            status, error = await confused.refused("FetchMessage", fetch)
            assert (status, error.code) == (StatusCode.INVALID_ARGUMENT, "InvalidRequest")

    run(tinymq_cluster, scenario)


def test_many_at_once_do_not_pass_over_a_message_that_is_too_large(tinymq_cluster: Cluster) -> None:
    async def scenario(client: QueueClient) -> None:
        await make(client, "crowd")
        for number in range(10):
            await client.produce("crowd", b"%d" % number, 0)
        with tinymq_cluster.client() as mq:
            await asyncio.to_thread(mq.send, "crowd", b"x" * (5 << 20), partition=0)
        await client.produce("crowd", b"behind", 0)
        asked = (client.consume("crowd", "c", 0) for _ in range(20))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        taken = [answer.offset for answer in answers if isinstance(answer, pb.QueueMessage)]
        refused = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
        assert sorted(taken) == list(range(10))
        assert [each.code() for each in refused] == [StatusCode.INVALID_ARGUMENT] * 10
        left = pb.GetQueueSizeRequest(topic="crowd", queue=0, channel="c")
        assert (await client.call("GetQueueSize", left)).messages == 2

    run(tinymq_cluster, scenario)
