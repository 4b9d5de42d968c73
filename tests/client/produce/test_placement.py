"""Records without a key go to partitions with a reachable leader, also those that wait and are certainly unwritten."""

from __future__ import annotations

import asyncio

import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.running import client_of
from tinymq.base.errors import DeadlineExceeded, OutcomeUnknown
from tinymq.client.cluster.routing import Partition, Reach, Topic, spread
from tinymq.client.facade.core.client_core import ClientCore
from tinymq_chaos.sim.virtual.event_loop import VirtualClock, VirtualLoop, run_virtually

DEADLINE_MS = 5000


def one_replica_each() -> FakeCluster:
    """Add a topic of three partitions, each with one replica."""
    cluster = FakeCluster()
    for at in cluster.add_topic("t", 3):
        at.replicas = [at.leader]
    return cluster


def values(cluster: FakeCluster) -> list[list[bytes]]:
    return [cluster.values("t", partition) for partition in range(3)]


def client(cluster: FakeCluster, loop: VirtualLoop) -> ClientCore:
    return client_of(cluster, clock=VirtualClock(loop), request_timeout_ms=DEADLINE_MS)


def reaches(*each: Reach) -> tuple[list[int], frozenset[int]]:
    topic = Topic("t", b"t" * 16, tuple(Partition(number, 1, 1, (1,)) for number in range(len(each))))
    return spread(topic, lambda at: each[at.partition])


def test_the_best_partitions_are_used_and_those_without_a_leader_are_left() -> None:
    good, slow, lost, nobody = Reach
    assert reaches(good, slow, lost, nobody) == ([0], frozenset({2, 3}))
    assert reaches(slow, lost, slow) == ([0, 2], frozenset({1}))
    assert reaches(lost, nobody, lost) == ([0, 2], frozenset()), "there is none that is better"
    assert reaches(nobody, nobody) == ([0, 1], frozenset())


def test_sends_without_a_key_go_on_beside_a_dead_broker() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        cluster = one_replica_each()
        async with client(cluster, loop) as mq:
            for i in range(10):
                await mq.send("t", b"%d" % i)
            cluster.kill(2, elect=False)
            before = len(cluster.values("t", 1))
            started_s = loop.time()
            for i in range(10, 60):
                await mq.send("t", b"%d" % i)
            assert loop.time() - started_s < 1.0
            assert len(cluster.values("t", 1)) == before
            with pytest.raises(DeadlineExceeded):
                await mq.send("t", b"bound", partition=1)
            cluster.start(2)
            # The client finds that the broker is back, although no record has to go there.
            while len(cluster.values("t", 1)) == before:
                await mq.send("t", b"again")
                await asyncio.sleep(0.1)
            assert loop.time() - started_s < 20
        every = [value for part in values(cluster) for value in part if value != b"again"]
        assert sorted(every, key=int) == [b"%d" % i for i in range(60)]

    run_virtually(scenario)


def test_free_records_leave_a_dead_broker_and_bound_ones_stay() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        cluster = one_replica_each()
        cluster.down.add(2)
        async with client(cluster, loop) as mq, mq.producer(linger_ms=1, batch_bytes_max=300) as producer:
            free = [await producer.send("t", b"%d" % i) for i in range(300)]
            bound = await producer.send("t", b"bound", partition=1)
            metas = [await delivery for delivery in free]
            assert {meta.partition for meta in metas} == {0, 2}
            assert not bound.done()
            cluster.start(2)
            assert (await bound).partition == 1
            for i, meta in enumerate(metas):
                assert values(cluster)[meta.partition][meta.offset] == b"%d" % i, "a Delivery knows where it went"
        assert sum(map(len, values(cluster))) == 301

    run_virtually(scenario)


def test_a_batch_that_may_be_written_stays_with_its_partition() -> None:
    """The answer is lost, then the broker. The batch is not sent to another partition, which would write it twice."""

    async def scenario(loop: VirtualLoop) -> None:
        cluster = one_replica_each()
        async with client(cluster, loop) as mq:
            cluster.lose_replies = 1
            sending = asyncio.create_task(mq.send("t", b"once"))
            while cluster.lose_replies:
                await asyncio.sleep(0)
            at = next(number for number in range(3) if cluster.values("t", number))
            cluster.kill(at + 1, elect=False)
            others = [await mq.send("t", b"other") for _ in range(10)]
            assert at not in {meta.partition for meta in others}
            with pytest.raises(OutcomeUnknown):
                await sending
        assert [value for part in values(cluster) for value in part].count(b"once") == 1

    run_virtually(scenario)


def test_numbers_go_on_in_a_partition_that_batches_have_left() -> None:
    async def scenario(loop: VirtualLoop) -> None:
        cluster = one_replica_each()
        async with client(cluster, loop) as mq, mq.producer(linger_ms=0) as producer:
            for number in range(3):
                await (await producer.send("t", b"first", partition=number))
            cluster.kill(2, elect=False)
            free = [await producer.send("t", b"%d" % i) for i in range(50)]
            for delivery in free:  # a bound record would bind the whole batch
                await delivery
            bound = [await producer.send("t", b"bound", partition=1) for _ in range(3)]
            cluster.start(2)
            assert [(await delivery).offset for delivery in bound] == [1, 2, 3]
        (known,) = cluster.topics["t"][1][1].producers.values()
        assert (known.epoch, known.next_sequence) == (0, 4), "no number was skipped or given twice"

    run_virtually(scenario)
