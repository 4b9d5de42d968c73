"""Retention, channels and capacity on real groups: three whole brokers in virtual time, on real logs.

Every replica removes the same head of the log, readers and a lagging follower survive that, and each record of a
channel is taken once, whatever happens to the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.broker.values import commits, consumes, opens, request
from tests.fakes.batches import payload
from tests.seeds import first_of
from tinymq.base.errors import OffsetOutOfRange, TinymqError
from tinymq.base.topic_config import OnFull, TopicConfig
from tinymq.broker.partition.partition import Partition
from tinymq.broker.serve.fetch import Fetch, FetchQuery, FetchResult
from tinymq.broker.state.outcome import CommandOutcome
from tinymq.format.entry import Kind, iter_entries
from tinymq.proto import partition_pb2 as pb
from tinymq.registry.state.values import TopicRecord
from tinymq_chaos.sim.virtual.virtual_cluster import VirtualBroker, VirtualCluster, simulate

VALUE = b"x" * 1000


async def make_topic(cluster: VirtualCluster, **settings: object) -> TopicRecord:
    broker = cluster.brokers[1]
    config = TopicConfig(**settings)  # type: ignore[arg-type]
    topic = await broker.process.run(broker.broker.registry.register_topic("t", 1, 3, config))
    await cluster.until(lambda: cluster.leader(topic, 0), what="somebody leads")
    return topic


async def fill(cluster: VirtualCluster, topic: TopicRecord, batches: int, value: bytes = VALUE) -> None:
    for _ in range(batches):
        while await cluster.produce(topic, 0, payload(1, value=value)) is None:
            pass


def replicas(cluster: VirtualCluster, topic: TopicRecord) -> list[Partition]:
    return [p for b in cluster.brokers.values() if (p := b.partition(topic, 0)) is not None]


async def command(
    cluster: VirtualCluster, topic: TopicRecord, *said: pb.Command
) -> list[CommandOutcome] | TinymqError | None:
    """Try once. Returns None when the process may be gone."""
    leader = cluster.leader(topic, 0)
    if leader is None:
        await cluster.clock.sleep(0.01)
        return None
    answer: asyncio.Future[list[CommandOutcome] | TinymqError | None] = cluster.loop.create_future()

    def done(answered: list[CommandOutcome] | TinymqError | None) -> None:
        if not answer.done():
            answer.set_result(answered)

    cluster.clock.call_later(1.0, lambda: done(None))
    try:
        leader[0].process.do(lambda: leader[1].command(said, 0.8, done))
    except TinymqError as error:
        await cluster.clock.sleep(0.01)
        return error
    return await answer


async def until_it_is_done(cluster: VirtualCluster, topic: TopicRecord, *said: pb.Command) -> list[CommandOutcome]:
    while not isinstance(answered := await command(cluster, topic, *said), list):
        pass
    return answered


def equal_states(cluster: VirtualCluster, topic: TopicRecord) -> Callable[[], bool]:
    return lambda: len({p.dump() for p in replicas(cluster, topic)}) == 1


def first_kept(partition: Partition) -> int:
    return partition.group.log.log_start_offset


async def check_expiry(cluster: VirtualCluster) -> None:
    topic = await make_topic(cluster, retention_ms=20_000)
    await fill(cluster, topic, 60)
    await cluster.clock.sleep(15)
    await fill(cluster, topic, 10)
    held = replicas(cluster, topic)
    assert [p.log_start for p in held] == [0, 0, 0], "no record has expired yet"
    await cluster.clock.sleep(12)
    await cluster.until(equal_states(cluster, topic))
    assert all(60 - 3 <= p.log_start <= 60 for p in held), [p.log_start for p in held]
    await cluster.until(lambda: all(first_kept(p) > 30 for p in held), 6, "every replica removes whole segments")
    assert all(first_kept(p) <= p.state.log_start for p in held)
    await cluster.clock.sleep(20)
    await cluster.until(equal_states(cluster, topic))
    assert [p.log_start for p in held] == [70, 70, 70], "an idle partition becomes empty"
    await cluster.until(
        lambda: [first_kept(p) for p in held] == [70, 70, 70], what="the active segment is removed as well"
    )
    last = [p.group.log.last_index for p in held]  # type: ignore[attr-defined]
    await cluster.clock.sleep(60)
    # type: ignore[attr-defined]
    assert [p.group.log.last_index for p in held] == last, "and afterwards nothing is written"
    await fill(cluster, topic, 1)
    assert held[0].high_watermark == 71


def test_every_replica_removes_expired_records_and_an_idle_partition_becomes_empty() -> None:
    simulate(check_expiry, 1)


async def check_altering(cluster: VirtualCluster) -> None:
    topic = await make_topic(cluster, retention_ms=None)
    await fill(cluster, topic, 60)
    await cluster.clock.sleep(20)
    assert all(p.log_start == 0 for p in replicas(cluster, topic))
    broker = cluster.brokers[2]
    await broker.process.run(broker.broker.registry.alter_topic("t", [("retention_bytes", "20000")]))
    await cluster.until(lambda: all(p.log_start > 30 for p in replicas(cluster, topic)), 15)
    state = replicas(cluster, topic)[0].state
    assert 20_000 <= state.kept_bytes < 24_000


def test_an_altered_topic_keeps_less_after_the_next_check() -> None:
    simulate(check_altering, 2)


async def check_who_was_left_behind(cluster: VirtualCluster) -> None:
    topic = await make_topic(cluster, retention_ms=None, retention_bytes=20_000)
    await fill(cluster, topic, 5)
    await until_it_is_done(cluster, topic, opens("c", epoch=4, start=3))
    leader = cluster.leader(topic, 0)
    assert leader is not None
    behind = next(b for b in cluster.brokers.values() if b is not leader[0])
    behind.power_cut()
    await fill(cluster, topic, 120)
    await until_it_is_done(cluster, topic, commits(110, epoch=4))
    await cluster.until(lambda: first_kept(leader[1]) > 50, 20)
    await behind.start()
    await cluster.until(lambda: behind.partition(topic, 0) is not None)
    late = behind.partition(topic, 0)
    assert late is not None
    await cluster.until(lambda: late.state.applied_index == leader[1].state.applied_index, 20, "it is caught up")
    assert late.log_start >= first_kept(late) > 50
    assert late.dump() == leader[1].dump()
    assert late.state.cursors["c"].position == 110


@pytest.mark.parametrize("seed", first_of(range(3), 1))
def test_a_follower_behind_the_head_gets_a_snapshot(seed: int) -> None:
    simulate(check_who_was_left_behind, seed)


class Follow:
    """A reader of one replica that continues at the log start when its offset was removed."""

    def __init__(self, cluster: VirtualCluster, broker: VirtualBroker, partition: Partition) -> None:
        self.offset = 0
        self.jumps = 0
        self.read = 0
        self._cluster = cluster
        self._broker = broker
        self._partition = partition

    async def run(self) -> None:
        while True:
            answer = await self._fetch()
            if isinstance(answer.error, OffsetOutOfRange):
                start = int(answer.error.detail["log_start"])
                assert start > self.offset
                assert int(answer.error.detail["high_watermark"]) >= start
                self.offset, self.jumps = start, self.jumps + 1
                continue
            assert answer.error is None, answer.error
            assert answer.log_start <= self.offset, "returned, although it is below the start"
            for entry in iter_entries(answer.frames):
                if entry.header.kind == Kind.DATA:
                    assert entry.header.base_offset <= self.offset < entry.header.next_offset
                    self.offset, self.read = entry.header.next_offset, self.read + 1
            await self._cluster.clock.sleep(self._cluster.rng.choice([0.0, 0.0, 0.5]))

    async def _fetch(self) -> FetchResult:
        ready: asyncio.Future[Fetch] = self._cluster.loop.create_future()
        ask = FetchQuery(self.offset, 4000, 1, 0.2)
        fetch = Fetch(self._partition, ask, self._broker.broker.deadlines, ready.set_result)
        self._broker.process.do(fetch.begin)
        await ready
        return fetch.read_now() or await self._broker.process.run(fetch.read())


async def check_reading_while_it_goes(cluster: VirtualCluster) -> None:
    """Slow readers on every replica, which the log start overtakes again and again."""
    topic = await make_topic(cluster, retention_ms=None, max_bytes=40_000, on_full=OnFull.DROP_OLDEST)
    await fill(cluster, topic, 20)
    readers = []
    for broker in cluster.brokers.values():
        partition = broker.partition(topic, 0)
        assert partition is not None
        readers += [Follow(cluster, broker, partition) for _ in range(3)]
    tasks = [cluster.loop.create_task(reader.run()) for reader in readers]
    for _ in range(25):
        await fill(cluster, topic, 12)
        await cluster.clock.sleep(1.0)
        state = replicas(cluster, topic)[0].state
        assert state.kept_bytes <= 40_000
        for task in tasks:
            if task.done():
                task.result()
    for task in tasks:
        task.cancel()
    assert sum(r.jumps for r in readers) > 10
    assert sum(r.read for r in readers) > 100
    assert all(first_kept(p) > 100 for p in replicas(cluster, topic))


@pytest.mark.parametrize("seed", first_of(range(2), 1))
def test_readers_survive_a_head_that_moves_under_them(seed: int) -> None:
    simulate(check_reading_while_it_goes, seed)


async def check_taking_through_failovers(cluster: VirtualCluster) -> None:
    """Workers that retry under the same id until they get an answer."""
    topic = await make_topic(cluster)
    await fill(cluster, topic, 60, b"v")
    await until_it_is_done(cluster, topic, opens("c"))
    taken: list[int] = []

    async def work(worker: int) -> None:
        number = 0
        while True:
            number += 1
            (answered,) = await until_it_is_done(cluster, topic, consumes(worker * 1000 + number))
            assert answered.error is None, answered.error
            if not answered.taken:
                return
            taken.append(answered.offset)

    tasks = [cluster.loop.create_task(work(worker)) for worker in range(1, 6)]
    for _ in range(3):
        before = len(taken)
        await cluster.until(lambda n=before: len(taken) > n + 4 or all(t.done() for t in tasks), 20)
        leader = cluster.leader(topic, 0)
        if leader is not None:
            leader[0].power_cut()
            await cluster.clock.sleep(cluster.rng.uniform(0.0, 1.0))
            await leader[0].start()
    await asyncio.gather(*tasks)
    assert sorted(taken) == list(range(60)), "each once"
    assert len(request(1)) == 16


@pytest.mark.parametrize("seed", first_of(range(5), 2))
def test_each_record_is_taken_once_whatever_happens_to_the_leader(seed: int) -> None:
    simulate(check_taking_through_failovers, seed)
