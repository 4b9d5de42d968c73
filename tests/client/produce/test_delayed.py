"""Delayed records: batches of their own, sent again without being scheduled twice, listed and canceled."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.client.fake_cluster import NOW_US, FakeCluster
from tests.client.produce.test_appending_threads import producer_of
from tests.client.produce.test_batcher import KEYED, Bench, rows
from tests.client.running import client_of, run
from tinymq import Scheduled
from tinymq.base.errors import InvalidRequest, NotDelivered, OutcomeUnknown, UnknownPartition, UnknownTopic
from tinymq.client.common.values import as_datetime
from tinymq.client.facade.core.client_core import ClientCore

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


# ---- in the buffer


def test_a_delayed_record_is_a_batch_beside_the_open_one() -> None:
    bench = Bench(partitions=1)
    before = bench.append(b"before")
    stored = producer_of(bench).send("t", b"later", key=b"k", headers={"a": b"b"}, delay=60)
    after = bench.append(b"after")
    (queue,) = bench.sealed()
    (batch,) = queue.sealed
    assert [row[:3] for row in rows(batch)] == [(b"k", b"later", (("a", b"b"),))]
    assert stored._batch is batch
    assert after is before, "the open batch goes on"
    assert bench.batcher.pool.taken_bytes == before.bytes + batch.bytes


def test_a_delayed_record_goes_where_an_undelayed_one_would() -> None:
    bench = Bench(partitions=8)
    producer = producer_of(bench)
    keyed, plain = [producer.send("t", b"v", key=KEYED, delay=60) for _ in range(20)], bench.append(key=KEYED)
    assert {stored._batch.queue for stored in keyed} == {plain.queue}
    assert all(stored._batch.bound for stored in keyed)
    assert producer.send("t", b"v", partition=3, delay=60)._batch.queue.partition == 3
    free = [producer.send("t", b"v", delay=60)._batch for _ in range(100)]
    assert len({batch.queue for batch in free}) == 8, "without a key they are spread"
    assert not any(batch.bound for batch in free), "and may go to a partition whose leader is reachable"
    same = {producer.send("t", b"v", message_id="m", delay=60)._batch.queue for _ in range(20)}
    assert len(same) == 1, "another attempt of another program finds the first one"


def test_a_partitioner_chooses_for_delayed_records_too() -> None:
    bench = Bench(partitions=4, partitioner="round_robin")
    producer = producer_of(bench)
    numbers = [producer.send("t", b"v", key=KEYED, delay=60)._batch.queue.partition for _ in range(8)]
    assert numbers == [0, 1, 2, 3, 0, 1, 2, 3]


# ---- on the way


def test_send_returns_when_and_under_which_id_it_is_scheduled() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        (at,) = cluster.add_topic("t")
        async with client_of(cluster) as mq:
            in_an_hour = await mq.send("t", b"a", key=b"k", delay=timedelta(hours=1))
            at_noon = await mq.send("t", b"b", deliver_at=NOON)
            async with mq.producer() as producer:
                stored = await producer.send("t", b"c", delay=1.5)
                assert repr(stored) == "<ScheduledDelivery t/0 waiting>"
                assert await stored == stored.result()
                assert "schedule id 3, due at 2023-11-14T22:13:21Z" in repr(stored)
            assert (await mq.send("t", b"now")).offset == 0
        assert in_an_hour == Scheduled("t", 0, 1, as_datetime(NOW_US + 3_600_000_000))
        assert at_noon == Scheduled("t", 0, 2, NOON)
        assert [due_us for due_us, _ in at.delayed.values()] == [
            NOW_US + 3_600_000_000, int(NOON.timestamp()) * 1_000_000, NOW_US + 1_500_000,
        ]  # fmt: skip
        assert cluster.values("t") == [b"now"]

    run(test())


def test_a_lost_answer_schedules_nothing_twice() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        (at,) = cluster.add_topic("t")
        async with client_of(cluster) as mq:
            assert not (await mq.send("t", b"first", delay=60)).duplicate
            cluster.lose_replies = 1
            again = await mq.send("t", b"second", delay=60)
            assert again == Scheduled("t", 0, 2, as_datetime(NOW_US + 60_000_000), duplicate=True)
            assert (await mq.send("t", b"third")).offset == 0, "the numbers of its producer go on"
        assert len(at.delayed) == 2

    run(test())


def test_what_cannot_be_delayed_is_refused_before_it_is_sent() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t")
        async with client_of(cluster) as mq:
            with pytest.raises(InvalidRequest, match="exclude"):
                await mq.send("t", b"v", delay=5, deliver_at=NOON)  # type: ignore[call-overload]
            with pytest.raises(InvalidRequest, match="delay=0"):
                await mq.send("t", b"v", delay=0)
            async with mq.producer(acks="leader") as producer:
                with pytest.raises(InvalidRequest, match="quorum"):
                    await producer.send("t", b"v", delay=5)
        assert cluster.produce_messages == []

    run(test())


def test_an_undelivered_record_says_when_it_was_due() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        cluster.add_topic("t")
        async with client_of(cluster) as mq, mq.producer() as producer:
            cluster.refusals.extend([InvalidRequest("no"), InvalidRequest("no"), InvalidRequest("no")])
            await producer.send("t", b"a", delay=90)
            await producer.send("t", b"b", deliver_at=NOON)
            await producer.send("t", b"c")
            with pytest.raises(NotDelivered) as raised:
                await producer.flush()
        due = {record.value: (record.delay, record.deliver_at) for record in raised.value.records}
        assert due == {b"a": (timedelta(seconds=90), None), b"b": (None, NOON), b"c": (None, None)}

    run(test())


# ---- until it is due


def test_a_scheduled_record_is_canceled_once() -> None:
    async def test() -> None:
        cluster = FakeCluster()
        (at,) = cluster.add_topic("t")
        async with client_of(cluster) as mq:
            scheduled = await mq.send("t", b"v", delay=60)
            place = (scheduled.topic, scheduled.partition, scheduled.schedule_id)
            cluster.move("t", 0, 2)  # another leader is asked
            assert [await mq.cancel(*place), await mq.cancel(*place), await mq.cancel("t", 0, 99)] == [
                True,
                False,
                False,
            ]
            assert at.delayed == {}
            with pytest.raises(UnknownTopic):
                await mq.cancel("missing", 0, 1)
            with pytest.raises(UnknownPartition):
                await mq.cancel("t", 7, 1)
            for wrong in (0, -1, 1 << 63, "1", True):
                with pytest.raises(InvalidRequest, match="schedule_id"):
                    await mq.cancel("t", 0, wrong)  # type: ignore[arg-type]

    run(test())


def test_a_cancel_whose_answer_was_lost_is_not_taken_for_a_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        cluster = FakeCluster()
        (at,) = cluster.add_topic("t")
        async with client_of(cluster) as mq:
            await mq.send("t", b"v", delay=60)
            answer, lost = cluster.answer, [True]

            def losing(broker: int, request: object) -> object:
                reply = answer(broker, request)
                if "CancelScheduled" in type(request).__name__ and lost.pop():
                    lost.append(False)
                    raise OutcomeUnknown("the answer was lost")
                return reply

            monkeypatch.setattr(cluster, "answer", losing)
            with pytest.raises(OutcomeUnknown, match="has canceled it, or it was delivered"):
                await mq.cancel("t", 0, 1)
        assert at.delayed == {}

    run(test())


def test_the_schedule_is_asked_page_by_page() -> None:
    async def ids(mq: ClientCore, partition: int | None = None) -> list[tuple[int, int]]:
        return [(s.partition, s.schedule_id) async for s in mq.admin.scheduled("t", partition)]

    async def test() -> None:
        cluster = FakeCluster()
        first, empty, last = cluster.add_topic("t", 3)
        first.delayed = {number: (NOW_US + number, b"batch") for number in range(1, 2502)}
        last.delayed = {7: (NOW_US, b"batch")}
        async with client_of(cluster) as mq:
            assert await ids(mq) == [*((0, number) for number in range(1, 2502)), (2, 7)]
            asked = [request for request in cluster.requests if request.startswith("ListScheduled")]
            assert len(asked) == 3 + 1 + 1
            assert await ids(mq, 2) == [(2, 7)]
            assert await ids(mq, 1) == []
            assert not empty.delayed

            schedule = mq.admin.scheduled("t")
            assert len(await schedule.page()) == 1000, "asked for when the iteration gets there"
            cluster.remove_partition("t", 2)
            assert [len(await schedule.page()) for _ in range(3)] == [1000, 501, 0], "it is gone with its records"
            with pytest.raises(UnknownPartition):
                await ids(mq, 2)

    run(test())
