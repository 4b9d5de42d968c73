"""Produce to a cluster in memory: an acknowledged record is stored exactly once, whatever fails meanwhile."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of, run, until
from tinymq.base.errors import (
    BatchTooLarge,
    BrokerUnreachable,
    BufferFull,
    Closed,
    DeadlineExceeded,
    DiskFull,
    InvalidName,
    NotDelivered,
    NotLeader,
    OutcomeUnknown,
    QuotaExceeded,
    UnknownProducer,
    UnknownTopic,
)
from tinymq.client import Delivery
from tinymq.client.facade.core.client_core import ClientCore
from tinymq.client.produce.partitioner import keyed


def cluster_of(partitions: int = 1) -> FakeCluster:
    cluster = FakeCluster()
    cluster.add_topic("t", partitions)
    return cluster


def test_send_returns_where_the_record_lies() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            for i in range(3):
                meta = await mq.send("t", b"v%d" % i, key=b"k", headers={"a": b"b"})
                assert (meta.topic, meta.partition, meta.offset, meta.duplicate) == ("t", 0, i, False)
        assert cluster.values("t") == [b"v0", b"v1", b"v2"]

    run(scenario())


def test_sends_at_the_same_time_share_batches_and_messages() -> None:
    async def scenario() -> None:
        cluster = cluster_of(6)
        async with client_of(cluster) as mq:
            await mq.send("t", b"first")
            cluster.produce_messages.clear()
            metas = await asyncio.gather(*(mq.send("t", b"%d" % i, key=b"%d" % i) for i in range(300)))
            assert len({(m.partition, m.offset) for m in metas}) == 300
            assert len(cluster.produce_messages) <= 6, "one message per broker, perhaps a few more"
            assert sum(cluster.produce_messages) <= 24

    run(scenario())


@pytest.mark.parametrize("fault", ["reply", "request"])
def test_a_lost_answer_or_request_is_made_good_once(fault: str) -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq, mq.producer(linger_ms=0) as producer:
            deliveries = []
            for i in range(30):
                if i % 5 == 2:
                    setattr(cluster, "lose_replies" if fault == "reply" else "lose_requests", 1)
                deliveries.append(await producer.send("t", b"%d" % i))
                if i % 3 == 0:
                    await deliveries[-1]
            metas = [await d for d in deliveries]
        assert cluster.values("t") == [b"%d" % i for i in range(30)]
        assert [m.offset for m in metas] == list(range(30))
        if fault == "reply":
            assert any(m.duplicate for m in metas)

    run(scenario())


def test_a_dead_leader_is_left_for_the_next_one() -> None:
    async def scenario() -> None:
        cluster = cluster_of(3)
        async with client_of(cluster) as mq, mq.producer(linger_ms=1) as producer:
            deliveries = []
            for i in range(300):
                deliveries.append(await producer.send("t", b"%d" % i, key=b"%d" % i))
                if i == 100:
                    await producer.flush()
                    cluster.kill(1)
                if i == 200:
                    cluster.start(1)
                    cluster.kill(2)
            await producer.flush()
            assert all(d.done() for d in deliveries)
        written = [v for p in range(3) for v in cluster.values("t", p)]
        assert sorted(written, key=int) == [b"%d" % i for i in range(300)]
        for p in range(3):
            numbers = [int(v) for v in cluster.values("t", p)]
            assert numbers == sorted(numbers), "order is kept within a partition"

    run(scenario())


def test_a_hung_leader_is_left_when_another_is_elected() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster, attempt_timeout_ms=4000) as mq:
            await mq.send("t", b"0")
            started = asyncio.get_running_loop().time()
            cluster.hang(1, elect=False)
            sending = asyncio.create_task(mq.send("t", b"1"))
            await until(lambda: asyncio.get_running_loop().time() - started > 0.1)
            cluster.elect_away_from(1)
            assert (await sending).offset == 1
            took_s = asyncio.get_running_loop().time() - started
            assert took_s < 3.9, "metadata was asked again before the attempt timed out"
        assert cluster.values("t") == [b"0", b"1"]

    run(scenario())


def test_a_recovered_broker_is_asked_at_once_when_it_is_elected() -> None:
    """All brokers restart, so that each has refused connections for a while."""

    async def scenario() -> None:
        cluster = cluster_of()
        cluster.move("t", 0, 0)
        async with client_of(cluster) as mq:
            sending = asyncio.create_task(mq.send("t", b"0"))
            await until(lambda: sum(asked.startswith("Metadata") for asked in cluster.requests) > 2)
            known = mq._connection._cluster
            assert known is not None
            for _ in range(10):
                known.health.failed("fake:1", "connection refused", known.clock.monotonic())
            elected = asyncio.get_running_loop().time()
            cluster.move("t", 0, 1)
            assert (await sending).offset == 0
            assert asyncio.get_running_loop().time() - elected < 1.0, "it was put aside for two seconds"

    run(scenario())


def test_not_leader_sends_to_the_one_named_without_asking_again() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            await mq.send("t", b"0")
            cluster.move("t", 0, 3)
            cluster.requests.clear()
            assert (await mq.send("t", b"1")).offset == 1
            assert not [r for r in cluster.requests if r.startswith("Metadata")]

    run(scenario())


PASSING = [
    NotLeader("no"),
    Closed("the broker stops"),
    QuotaExceeded("slow down", retry_after_ms=30),
    DiskFull("full"),
    OutcomeUnknown("?"),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda e: str(e.code))
def test_temporary_errors_are_retried(error: Exception) -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            await mq.send("t", b"0")
            cluster.refusals.extend([error, error])  # type: ignore[list-item]
            assert (await mq.send("t", b"1")).offset == 1

    run(scenario())


def test_a_forgotten_producer_goes_on_under_a_new_epoch() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            await mq.send("t", b"0")
            cluster.topics["t"][1][0].producers.clear()
            assert (await mq.send("t", b"1")).offset == 1
            (known,) = cluster.topics["t"][1][0].producers.values()
            assert known.epoch == 1

    run(scenario())


def test_a_batch_of_unknown_outcome_is_never_resent_to_a_broker_that_forgot() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            await mq.send("t", b"0")
            cluster.lose_replies = 1
            cluster.refusals.extend([])
            sending = asyncio.create_task(mq.send("t", b"1"))
            await until(lambda: cluster.lose_replies == 0)
            cluster.topics["t"][1][0].producers.clear()
            with pytest.raises(OutcomeUnknown):
                await sending
            assert (await mq.send("t", b"2")).offset == 2
        assert cluster.values("t") == [b"0", b"1", b"2"]

    run(scenario())


def test_definite_refusals_are_final_and_what_follows_is_sent() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            await mq.send("t", b"0")
            cluster.refusals.append(BatchTooLarge("never"))
            with pytest.raises(BatchTooLarge):
                await mq.send("t", b"1")
            assert (await mq.send("t", b"2")).offset == 1

    run(scenario())


def test_unknown_topics_and_bad_names() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            with pytest.raises(UnknownTopic) as raised:
                await mq.send("nope", b"")
            assert (raised.value.code, raised.value.retriable) == ("UnknownTopic", False)
            assert raised.value.hint
            with pytest.raises(InvalidName):
                await mq.send("no/pe", b"")

    run(scenario())


def test_brokers_that_have_not_heard_of_a_new_topic_are_not_believed() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            cluster.ignorant = {1, 2}
            cluster.move("t", 0, 3)
            assert (await mq.send("t", b"0")).offset == 0
            cluster.ignorant = {3}
            sending = asyncio.create_task(mq.send("t", b"1"))
            await until(lambda: len(cluster.produce_messages) > 2)
            cluster.ignorant = set()
            assert (await sending).offset == 1

    run(scenario())


def test_a_recreated_topic_is_another_one() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            await mq.send("t", b"old")
            cluster.remove_topic("t")
            cluster.add_topic("t")
            with pytest.raises(UnknownTopic):
                await mq.send("t", b"lost")
            assert (await mq.send("t", b"new")).offset == 0
            cluster.remove_topic("t")
            with pytest.raises(UnknownTopic):
                await mq.send("t", b"lost")
            with pytest.raises(UnknownTopic):
                await mq.send("t", b"lost")

    run(scenario())


def test_at_the_deadline_an_unwritten_record_gets_a_certain_error() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster, request_timeout_ms=400) as mq:
            await mq.send("t", b"0")
            cluster.kill(1, elect=False)
            with pytest.raises(DeadlineExceeded):
                await mq.send("t", b"1")
            cluster.start(1)
            cluster.hang(1, elect=False)
            with pytest.raises(OutcomeUnknown):
                await mq.send("t", b"2")

    run(scenario())


def test_a_connection_error_lists_every_address_and_why() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        for broker in cluster.nodes:
            cluster.kill(broker, elect=False)
        mq = client_of(cluster, request_timeout_ms=300)
        with pytest.raises(BrokerUnreachable) as raised:
            await mq.admin.list_topics()
        for broker in cluster.nodes:
            assert f"fake:{broker}: connection refused" in str(raised.value)
        await mq.close()

    run(scenario())


def test_a_full_buffer_blocks_then_raises() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        cluster.hold = asyncio.Event()
        async with client_of(cluster) as mq:
            small = mq.producer(buffer_bytes_max=10_000, batch_bytes_max=1000, block_ms_max=50, linger_ms=0)

            async def overfill() -> None:
                for _ in range(100):
                    await small.send("t", b"x" * 500)

            with pytest.raises(BufferFull):
                await overfill()
            patient = mq.producer(buffer_bytes_max=10_000, batch_bytes_max=1000, linger_ms=0)

            async def fill() -> list[Delivery]:
                return [await patient.send("t", b"x" * 500) for _ in range(100)]

            filling = asyncio.create_task(fill())
            assert not filling.done()
            cluster.hold.set()
            assert len(await filling) == 100
            await patient.flush()

    run(scenario())


def test_leaving_with_flushes_and_raises_with_the_records() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            producer = mq.producer(linger_ms=60_000)
            async with producer:
                delivery = await producer.send("t", b"lingers")
            assert delivery.result().offset == 0
            with pytest.raises(Closed):
                await producer.send("t", b"")
            cluster.refusals.append(BatchTooLarge("never"))

            async def leave() -> None:
                async with mq.producer() as failing:
                    await failing.send("t", b"a", key=b"k", headers={"h": "v"}, timestamp=5)
                    await failing.send("t", b"b", key=b"k")

            with pytest.raises(NotDelivered) as raised:
                await leave()
            first, second = raised.value.records
            assert (first.key, first.value, first.headers, first.timestamp_us) == (b"k", b"a", (("h", b"v"),), 5)
            assert isinstance(first.error, BatchTooLarge)
            assert second.value == b"b"

    run(scenario())


def test_a_failure_that_was_asked_for_is_not_raised_twice() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq, mq.producer() as producer:
            cluster.refusals.append(BatchTooLarge("never"))
            delivery = await producer.send("t", b"a")
            with pytest.raises(BatchTooLarge):
                await delivery
            await producer.flush()
            cluster.refusals.append(BatchTooLarge("never"))
            await producer.send("t", b"b")
            with pytest.raises(NotDelivered, match="1 record not delivered"):
                await producer.flush()
            await producer.flush()

    run(scenario())


def test_a_recreated_topic_accepts_writes_at_once() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            await mq.send("t", b"old")
            await mq.admin.delete_topic("t")
            await mq.admin.create_topic("t")
            assert (await mq.send("t", b"new")).offset == 0
        assert cluster.values("t") == [b"new"]

    run(scenario())


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_record_sent_while_others_wait_has_its_own_deadline(idempotent: bool) -> None:
    """The second batch is still open at the deadline of the first one."""

    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            producer = mq.producer(delivery_timeout_ms=1000, idempotent=idempotent)
            await (await producer.send("t", b"there"))
            for broker in cluster.nodes:
                cluster.kill(broker, elect=False)
            first = await producer.send("t", b"1")
            queues = producer.batcher.buffers.queues
            await until(lambda: any(queue.in_flight or queue.sealed for queue in queues.values()))
            second = await producer.send("t", b"2")
            for delivery in (first, second):
                with pytest.raises(DeadlineExceeded):
                    async with asyncio.timeout(10):
                        await delivery

    run(scenario())


def test_closing_ends_what_is_left_at_the_deadline() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            producer = mq.producer(linger_ms=0)
            await (await producer.send("t", b"0"))
            cluster.kill(1, elect=False)
            delivery = await producer.send("t", b"1")
            with pytest.raises(TimeoutError):
                await producer.flush(0.05)
            with pytest.raises(NotDelivered) as raised:
                await producer.close(0.1)
            assert [r.value for r in raised.value.records] == [b"1"]
            assert delivery.done()
            assert delivery.exception() is not None

    run(scenario())


def test_an_exception_in_the_block_is_the_one_that_leaves_it() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            cluster.refusals.append(BatchTooLarge("never"))

            async def leave() -> None:
                async with mq.producer() as producer:
                    await producer.send("t", b"a")
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError) as raised:
                await leave()
            assert "1 record not delivered" in raised.value.__notes__[0]

    run(scenario())


def test_acks_leader_and_none() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq:
            async with mq.producer(acks="leader") as producer:
                assert (await (await producer.send("t", b"0"))).offset == 0
            async with mq.producer(acks="none") as producer:
                assert (await (await producer.send("t", b"1"))).offset == -1
            await until(lambda: len(cluster.values("t")) == 2)

    run(scenario())


def test_without_idempotence_an_unclear_outcome_is_the_end() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq, mq.producer(idempotent=False, linger_ms=0) as producer:
            cluster.lose_replies = 1
            with pytest.raises(OutcomeUnknown):
                await (await producer.send("t", b"0"))
            assert (await (await producer.send("t", b"1"))).offset == 1
        assert not cluster.topics["t"][1][0].producers

    run(scenario())


async def _send_table(mq: ClientCore, table: pa.Table, **settings: object) -> list[tuple[int, int, int]]:
    async with mq.producer(**settings) as producer:  # type: ignore[arg-type]
        metas = await (await producer.send_batch("t", table))
        return [(m.partition, m.base_offset, m.record_count) for m in metas]


def test_tables_go_by_key_or_as_they_are() -> None:
    async def scenario() -> None:
        cluster = cluster_of(4)
        async with client_of(cluster) as mq:
            keys = [b"k%d" % (i % 10) for i in range(100)]
            values = [b"%d" % i for i in range(100)]
            await _send_table(mq, pa.table({"key": keys, "value": values}))
            for p in range(4):
                expected = [v for k, v in zip(keys, values, strict=True) if keyed(k, 4) == p]
                assert cluster.values("t", p) == expected
            (whole,) = await _send_table(mq, pa.table({"value": values}))
            assert whole[2] == 100
            parts = await _send_table(mq, pa.table({"value": [b"x" * 100] * 1000}), batch_bytes_max=20_000)
            assert sum(count for _, _, count in parts) == 1000
            assert 5 <= len(parts) <= 10
            async with mq.producer() as producer:
                (meta,) = await (await producer.send_batch("t", pa.table({"value": values}), partition=2))
                assert meta.partition == 2
                nothing = await producer.send_batch("t", pa.table({"value": pa.array([], pa.binary())}))
                assert await nothing == []
                assert nothing.done()

    run(scenario())


def test_records_and_tables_keep_their_order() -> None:
    async def scenario() -> None:
        cluster = cluster_of(1)
        async with client_of(cluster) as mq, mq.producer(linger_ms=60_000) as producer:
            await producer.send("t", b"0")
            await producer.send_batch("t", pa.table({"value": [b"1", b"2"]}))
            await producer.send("t", b"3")
            await producer.flush()
        assert cluster.values("t") == [b"0", b"1", b"2", b"3"]

    run(scenario())


def test_deliveries_tell_by_callback_from_any_loop() -> None:
    async def scenario() -> None:
        cluster = cluster_of()
        async with client_of(cluster) as mq, mq.producer() as producer:
            told: list[int] = []
            delivery = await producer.send("t", b"0")
            delivery.add_done_callback(lambda d: told.append(d.result().offset))
            delivery.add_done_callback(lambda d: 1 / 0)
            assert not delivery.done()
            with pytest.raises(TimeoutError):
                delivery.result(0)
            elsewhere = await asyncio.to_thread(lambda: asyncio.run(_await(delivery)))
            assert (elsewhere, told) == (0, [0])
            delivery.add_done_callback(lambda d: told.append(1))
            assert told == [0, 1]
            assert "offset 0" in repr(delivery)

    run(scenario())


async def _await(delivery: Delivery) -> int:
    return (await delivery).offset


def test_errors_have_code_retriable_and_hint() -> None:
    for error in (UnknownProducer("x"), BufferFull("x"), NotDelivered("x")):
        assert error.code
        assert error.hint
        assert isinstance(error.retriable, bool)
