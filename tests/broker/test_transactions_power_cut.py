"""Transactions on whole brokers whose power is cut: coordinators, partitions and logs together, under load.

Owners write transactions over two partitions, commit or roll back, and repeat each call until it is answered. Whatever
happens, a committed transaction is there whole and once, in both partitions, and nothing else is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

import pytest

from tests.fakes.batches import payload
from tinymq.base.config import Limits
from tinymq.base.errors import Fenced, OutOfOrderSequence, TinymqError, TransactionAborted
from tinymq.base.types import PartitionId
from tinymq.broker.coordinator.coordinator import coordinator_of
from tinymq.broker.coordinator.transaction_coordinator import RegisteredOwner, TransactionCoordinator
from tinymq.broker.groups.groups import COORDINATORS
from tinymq.broker.partition.partition import Partition
from tinymq.broker.state.staged import StagedBatch
from tinymq.format.batch import check_batch, decode_batch
from tinymq.format.entry import crc32c, iter_entries
from tinymq.registry.state.values import TopicRecord
from tinymq_chaos.sim.virtual.event_loop import ProcessKilled
from tinymq_chaos.sim.virtual.virtual_cluster import LIMITS, VirtualBroker, VirtualCluster, simulate

pytestmark = pytest.mark.long

PARTITIONS = 2
CUTS = 3
SEEDS = range(12)
T = TypeVar("T")
Value = tuple[int, bytes]  # partition, value of a record


class Written(NamedTuple):
    """What an owner knows of a transaction that it wrote."""

    values: frozenset[Value]
    committed: bool | None  # None: the owner does not know


class Writer:
    """The owner of one transactional id."""

    def __init__(self, cluster: VirtualCluster, topic: TopicRecord, name: str) -> None:
        self.written: list[Written] = []
        self._cluster = cluster
        self._topic = topic
        self._name = name
        self._count = 0  # of transactions

    async def work(self) -> None:
        while True:
            owner = await self._coordinate(lambda coordinator: coordinator.register(self._name))
            try:
                while True:
                    await self._transaction(owner)
            except TransactionAborted:
                self.written[-1] = self.written[-1]._replace(committed=False)
            except (Fenced, OutOfOrderSequence):
                pass  # it registers again

    async def _transaction(self, owner: RegisteredOwner) -> None:
        """Write one transaction, and end it."""
        name, rng = self._name, self._cluster.rng
        self._count += 1
        transaction = await self._coordinate(lambda coordinator: coordinator.begin(name, owner, 5_000_000))
        counts = [rng.randint(1, 4) for _ in range(PARTITIONS)]
        places = {self._place(number): count for number, count in enumerate(counts)}
        values = {
            (number, b"%s-%d-%d-%d-" % (name.encode(), self._count, number, batch) + bytes(rng.choice([0, 900])))
            for number, count in enumerate(counts)
            for batch in range(count)
        }
        self.written.append(Written(frozenset((number, value + b"0") for number, value in values), committed=None))
        await self._coordinate(lambda coordinator: coordinator.add(name, transaction, places.keys()))
        for number, value in sorted(values):
            batch = int(value.split(b"-")[3])
            await self._stage(number, StagedBatch(transaction, 0, batch), value)
        commits = rng.random() < 0.8
        if commits:
            await self._coordinate(lambda coordinator: coordinator.commit(name, transaction, places, 1.0))
        else:
            await self._coordinate(lambda coordinator: coordinator.abort(name, transaction))
        self.written[-1] = self.written[-1]._replace(committed=commits)

    def _place(self, number: int) -> PartitionId:
        return PartitionId(self._topic.topic_id, number)

    async def _stage(self, number: int, batch: StagedBatch, value: bytes) -> None:
        data = payload(1, value=value)
        checked, crc = check_batch(data, LIMITS), crc32c(data)
        coordinator = coordinator_of(self._name, COORDINATORS)

        async def stage(partition: Partition) -> int:
            return await partition.transactions.stage(batch, coordinator, checked, data, crc)

        while True:
            leader = self._cluster.leader(self._topic, number)
            if leader is not None and await self._answer(leader[0], stage(leader[1])) is not None:
                return
            await self._cluster.clock.sleep(0.01)

    async def _coordinate(self, call: Callable[[TransactionCoordinator], Coroutine[Any, Any, T]]) -> T:
        """Ask one broker after another, until the coordinator answers."""
        while True:
            for broker in self._cluster.brokers.values():
                if broker.runs:
                    answer = await self._answer(broker, call(broker.member.transactions))
                    if answer is not None:
                        return answer[0]
            await self._cluster.clock.sleep(0.01)

    async def _answer(self, broker: VirtualBroker, call: Coroutine[Any, Any, T]) -> tuple[T] | None:
        """The broker's answer; None: ask again. Raises what no repetition changes."""
        try:
            return (await asyncio.wait_for(broker.process.run(call), 3.0),)
        except (Fenced, TransactionAborted, OutOfOrderSequence):
            raise
        except (TimeoutError, TinymqError, ProcessKilled):
            return None


async def read(cluster: VirtualCluster, topic: TopicRecord, number: int) -> list[Value]:
    """All records of a partition, in order, as its leader shows them."""
    leader = cluster.leader(topic, number)
    assert leader is not None
    broker, partition = leader
    found, offset, end = list[Value](), 0, partition.high_watermark
    while offset < end:
        frames = await broker.process.run(partition.group.log.reader.read_from_offset(offset, end, 1 << 20))
        for entry in iter_entries(frames):
            assert entry.header.base_offset == offset, "a gap, or a record twice"
            offset = entry.header.next_offset
            found += [(number, value) for value in decode_batch(entry.batch, Limits()).column(1).to_pylist()]
    return found


async def settle(cluster: VirtualCluster, topic: TopicRecord) -> None:
    """Wait until no transaction is undecided, and all replicas have applied the same."""

    def settled() -> bool:
        replicas = [[b.partition(topic, number) for b in cluster.brokers.values()] for number in range(PARTITIONS)]
        return all(
            each is not None and len(each.state.staged) == 0 and each.state.dump() == some[0].state.dump()
            for some in replicas
            for each in some
        )  # fmt: skip

    await cluster.until(settled, within_s=40.0, what="nothing is undecided")


async def cut_under_load(cluster: VirtualCluster) -> int:
    """Write while power is cut, and compare. Returns the number of transactions that were committed."""
    topic = await cluster.create_topic("t", PARTITIONS)
    first = cluster.brokers[1]
    await first.process.run(first.member.groups.make_coordinators(5.0))
    writers = [Writer(cluster, topic, name) for name in ("a", "b", "c")]
    tasks = [cluster.loop.create_task(writer.work()) for writer in writers]
    for _ in range(CUTS):
        await cluster.clock.sleep(cluster.rng.uniform(0.5, 2.0))
        some = list(cluster.brokers.values())
        victims = cluster.rng.choice([some, [cluster.rng.choice(some)]])
        for broker in victims:
            broker.power_cut()
        await asyncio.gather(*(broker.start() for broker in victims))
    await cluster.clock.sleep(2.0)
    for task in tasks:
        assert not task.done(), task.exception()
        task.cancel()
    await settle(cluster, topic)
    found = [value for number in range(PARTITIONS) for value in await read(cluster, topic, number)]
    assert len(set(found)) == len(found), "a record is there twice"
    written = [each for writer in writers for each in writer.written]
    for each in written:
        there = each.values & set(found)
        assert there in (frozenset(), each.values), "a part of a transaction is there"
        assert each.committed is None or each.committed == bool(there), f"committed: {each.committed}"
    assert set(found) <= {value for each in written for value in each.values}
    assert [b.failures for b in cluster.brokers.values()] == [[], [], []]
    return sum(each.committed is True for each in written)


@pytest.mark.parametrize("seed", SEEDS)
def test_committed_transactions_survive_whole_and_once(seed: int) -> None:
    committed: list[int] = []

    async def scenario(cluster: VirtualCluster) -> None:
        committed.append(await cut_under_load(cluster))

    simulate(scenario, seed)
    assert committed[0] >= CUTS
