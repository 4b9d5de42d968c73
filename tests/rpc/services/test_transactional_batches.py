"""Batches of transactions over the wire, on three brokers: two partitions show all of them, or none."""

from __future__ import annotations

import asyncio

from tests.fakes.batches import payload
from tests.fakes.transactional_programs import Writer, made, pair, read, refused
from tinymq.base.errors import InvalidRequest, OutOfOrderSequence, TransactionAborted
from tinymq.broker.groups.groups import COORDINATOR_TOPIC, COORDINATORS
from tinymq.format.entry import crc32c
from tinymq.proto import tinymq_pb2 as pb
from tinymq.testing.cluster import Cluster

pytest_plugins = ["tinymq.testing.fixture"]


def test_two_partitions_show_what_was_committed_and_nothing_before(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        topic_id = await made(tinymq_cluster, "both")
        writer = Writer(tinymq_cluster, "both")
        await writer.register()
        await writer.begin()
        await writer.add(topic_id, 0, 1)
        for partition, value in ((0, b"a"), (0, b"b"), (1, b"c")):
            await writer.send("both", topic_id, partition, value)
        for partition in (0, 1):
            assert await read(tinymq_cluster, "both", topic_id, partition, 0) == []
        assert await writer.commit_sent()
        assert await read(tinymq_cluster, "both", topic_id, 0, 4) == pair(b"a") + pair(b"b")
        assert await read(tinymq_cluster, "both", topic_id, 1, 2) == pair(b"c")
        assert await writer.commit_sent(), "a repeated commit changes nothing"
        await writer.begin()
        await writer.add(topic_id, 0)
        await writer.send("both", topic_id, 0, b"d")
        await writer.abort()
        with refused(TransactionAborted):
            await writer.commit_sent()
        await writer.begin()
        await writer.add(topic_id, 0)
        await writer.send("both", topic_id, 0, b"e")
        assert await writer.commit_sent()
        assert await read(tinymq_cluster, "both", topic_id, 0, 6) == pair(b"a") + pair(b"b") + pair(b"e")

    asyncio.run(main())


def test_many_batches_travel_together_and_twice(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        topic_id = await made(tinymq_cluster, "pipelined", 1)
        writer = Writer(tinymq_cluster, "pipelined")
        await writer.register()
        await writer.begin()
        await writer.add(topic_id, 0)
        batches = [writer.batch(topic_id, 0, b"%d-" % n, n) for n in range(20)]
        for number, each in enumerate(batches):
            each.request_id = number
        await writer.store("pipelined", *batches)
        await writer.store("pipelined", *batches)
        assert await writer.commit({(topic_id, 0): 20})
        expected = [value for n in range(20) for value in pair(b"%d-" % n)]
        assert await read(tinymq_cluster, "pipelined", topic_id, 0, 40) == expected

    asyncio.run(main())


def test_a_commit_with_another_count_is_rolled_back(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        topic_id = await made(tinymq_cluster, "counted", 1)
        writer = Writer(tinymq_cluster, "counted")
        await writer.register()
        for claimed in (0, 2):
            await writer.begin()
            await writer.add(topic_id, 0)
            await writer.send("counted", topic_id, 0, b"a")
            with refused(TransactionAborted):
                await writer.commit({(topic_id, 0): claimed})
        assert await read(tinymq_cluster, "counted", topic_id, 0, 0) == []

    asyncio.run(main())


def test_batches_that_belong_to_no_open_transaction_are_refused(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        topic_id = await made(tinymq_cluster, "strict")
        writer = Writer(tinymq_cluster, "strict")
        await writer.register()
        await writer.begin()
        with refused(TransactionAborted):  # the partition is not in it yet
            await writer.send("strict", topic_id, 0, b"a")
        await writer.add(topic_id, 0)
        await writer.send("strict", topic_id, 0, b"a")
        with refused(TransactionAborted):
            await writer.send("strict", topic_id, 1, b"b")
        with refused(OutOfOrderSequence):
            await writer.store("strict", writer.batch(topic_id, 0, b"c", 2))
        for fields in ({"acks": pb.ACKS_LEADER}, {"delay_us": 1_000_000}, {"message_id": b"m"}):
            with refused(InvalidRequest):
                await writer.store("strict", writer.batch(topic_id, 0, b"x", 1, **fields))
        numbered = writer.batch(topic_id, 0, b"x", 1)
        data = payload(2, producer=7, sequence=0)
        numbered.payload, numbered.payload_crc = data, crc32c(data)
        unsaid = writer.batch(topic_id, 0, b"x", 1)
        unsaid.transaction.ClearField("number")
        elsewhere = writer.batch(topic_id, 0, b"x", 1)
        elsewhere.transaction.coordinator = COORDINATORS
        for odd in (numbered, unsaid, elsewhere):
            with refused(InvalidRequest):
                await writer.store("strict", odd)
        assert await writer.commit_sent()
        assert await read(tinymq_cluster, "strict", topic_id, 0, 2) == pair(b"a")

    asyncio.run(main())


def test_a_fenced_owner_stages_nothing(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        topic_id = await made(tinymq_cluster, "fenced", 1)
        first, second = Writer(tinymq_cluster, "fenced"), Writer(tinymq_cluster, "fenced")
        await first.register()
        await first.begin()
        await first.add(topic_id, 0)
        await first.send("fenced", topic_id, 0, b"old")
        await second.register()
        await second.begin()
        await second.add(topic_id, 0)
        await second.send("fenced", topic_id, 0, b"new")
        with refused(TransactionAborted):
            while True:  # until the end of the first owner's transaction has come to the partition
                await first.send("fenced", topic_id, 0, b"late")
        with refused(TransactionAborted):
            await first.commit_sent()
        assert await second.commit_sent()
        assert await read(tinymq_cluster, "fenced", topic_id, 0, 2) == pair(b"new")

    asyncio.run(main())


def test_what_was_staged_goes_when_the_time_is_up(tinymq_cluster: Cluster) -> None:
    async def main() -> None:
        topic_id = await made(tinymq_cluster, "expired", 1)
        writer = Writer(tinymq_cluster, "expired")
        await writer.register()
        await writer.begin(timeout_ms=60_000)
        await writer.add(topic_id, 0)
        await writer.send("expired", topic_id, 0, b"a")
        await asyncio.to_thread(tinymq_cluster.clock.advance, seconds=61)

        def staged() -> int:
            brokers = [app.serving.running() for app in tinymq_cluster.brokers.values()]
            return sum(len(broker.find(topic_id, 0).state.staged) for broker in brokers)

        await asyncio.to_thread(tinymq_cluster.wait_until, lambda: not staged())
        with refused(TransactionAborted):
            await writer.commit_sent()
        assert await read(tinymq_cluster, "expired", topic_id, 0, 0) == []

    asyncio.run(main())


def test_leaders_and_coordinators_fail_between_the_steps(tinymq_cluster: Cluster) -> None:
    """At each step one of the two is killed, and started again; nothing that was committed is lost or doubled."""

    async def main() -> None:
        topic_id = await made(tinymq_cluster, "killed")
        writer = Writer(tinymq_cluster, "killed")
        owner = await writer.register()

        async def fail(topic: str, partition: int) -> None:
            leader = await asyncio.to_thread(tinymq_cluster.wait_leader, topic, partition)
            await asyncio.to_thread(tinymq_cluster.restart, leader)

        expected: dict[int, list[bytes]] = {0: [], 1: []}
        coordinator = (COORDINATOR_TOPIC, owner.coordinator)
        for step, (topic, number) in enumerate((("killed", 0), coordinator, ("killed", 1), coordinator)):
            await writer.begin()
            await writer.add(topic_id, 0, 1)
            for partition in (0, 1):
                value = b"%d-%d-" % (step, partition)
                await writer.send("killed", topic_id, partition, value)
                expected[partition] += pair(value)
            if step < 3:
                await fail(topic, number)
            visible = await writer.commit_sent(visible=step < 3)
            assert visible == (step < 3)
            if step == 3:
                await fail(topic, number)
        for partition, found in expected.items():
            assert await read(tinymq_cluster, "killed", topic_id, partition, len(found)) == found

    asyncio.run(main())
