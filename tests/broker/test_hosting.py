"""Which partitions a broker holds: as the registry says, and data goes only when the registry deleted it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.fakes.fake_groups import FakeGroups
from tests.fakes.manual_clock import ManualClock
from tests.registry.records import broker
from tinymq.broker.deadlines import Deadlines
from tinymq.broker.hosting import Hosting
from tinymq.broker.partition import Partition
from tinymq.config import Timing
from tinymq.errors import DiskFull, NotReady, UnknownTopic
from tinymq.registry.memory import MemoryRegistry
from tinymq.registry.values import QueueRecord
from tinymq.types import GroupId, TopicId


class Bench:
    """Brokers 1 to 3 are registered; broker 2's hosting is looked at."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.registry = MemoryRegistry(self.clock, random.Random(1), Timing())
        self.groups = FakeGroups()
        self.hosting = self.make()

    def make(self, broker_id: int = 2, *, up_to_date: bool = True) -> Hosting:
        hosting = Hosting(broker_id, self.registry, self.groups, self.partition)
        if up_to_date:
            hosting.up_to_date()
        return hosting

    def partition(self, queue: QueueRecord) -> Partition:
        soon = asyncio.get_running_loop().call_soon
        return Partition(f"{queue.topic}/{queue.partition}", Deadlines(self.clock), soon, lambda _: None)

    async def restart(self) -> None:
        await self.hosting.stop()
        self.groups.open.clear()
        self.hosting = self.make()
        self.hosting.start(list(self.groups.on_disk))


def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench()
        for number in (1, 2, 3):
            await bench.registry.register_broker(broker(number))
        bench.hosting.start([])
        await scenario(bench)
        await bench.hosting.stop()
        bench.registry.close()

    asyncio.run(main())


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def test_only_this_brokers_replicas_are_opened() -> None:
    async def scenario(b: Bench) -> None:
        topic = await b.registry.register_topic("t", 3, 1)
        await settle()
        mine = [q for q in topic.queues if q.has_replica(2)]
        assert len(mine) == 1
        assert list(b.hosting.partitions) == [(topic.topic_id, mine[0].partition)]
        assert b.hosting.get(topic.topic_id, mine[0].partition) is not None

    run(scenario)


def test_every_replica_begins_with_the_same_bytes() -> None:
    async def scenario(b: Bench) -> None:
        others = [Hosting(n, b.registry, FakeGroups(), b.partition) for n in (1, 3)]
        for other in others:
            other.up_to_date()
            other.start([])
        topic = await b.registry.register_topic("t", 1, 3)
        await settle()
        firsts = [h._groups.on_disk[topic.queues[0].group] for h in (b.hosting, *others)]  # type: ignore[attr-defined]
        assert firsts[0] == firsts[1] == firsts[2]
        for other in others:
            await other.stop()

    run(scenario)


def test_a_deleted_topic_goes_with_its_data_and_tells_who_asks() -> None:
    async def scenario(b: Bench) -> None:
        topic = await b.registry.register_topic("t", 2, 3)
        await settle()
        partition = b.hosting.get(topic.topic_id, 0)
        assert partition is not None
        await b.registry.unregister_topic("t")
        assert isinstance(partition.closed, UnknownTopic)
        assert not b.hosting.partitions
        await settle()
        assert not b.groups.on_disk

    run(scenario)


def test_a_topic_deleted_while_it_is_opened() -> None:
    async def scenario(b: Bench) -> None:
        b.groups.gate.clear()
        await b.registry.register_topic("t", 2, 3)
        await settle()
        await b.registry.unregister_topic("t")
        b.groups.gate.set()
        await settle()
        assert not b.hosting.partitions
        assert not b.groups.on_disk

    run(scenario)


def test_a_restart_opens_what_there_is_and_deletes_what_was_deleted_meanwhile() -> None:
    async def scenario(b: Bench) -> None:
        kept = await b.registry.register_topic("kept", 2, 3)
        gone = await b.registry.register_topic("gone", 1, 3)
        await settle()
        await b.hosting.stop()
        b.groups.open.clear()
        stranger = GroupId(TopicId(b"s" * 16), 0)
        b.groups.on_disk[stranger] = b.groups.on_disk[gone.queues[0].group]
        await b.registry.unregister_topic("gone")
        b.hosting = b.make()
        b.hosting.start(list(b.groups.on_disk))
        await settle()
        assert {topic_id for topic_id, _ in b.hosting.partitions} == {kept.topic_id}
        assert set(b.groups.on_disk) == {q.group for q in kept.queues} | {stranger}, "never without a recorded deletion"

    run(scenario)


def test_a_registry_that_lags_behind_begins_nothing() -> None:
    """All brokers restart shortly after a deletion: each replays that the topic was made, and hears the rest later."""

    async def scenario(b: Bench) -> None:
        kept = await b.registry.register_topic("kept", 1, 3)
        gone = await b.registry.register_topic("gone", 1, 3)
        await settle()
        await b.hosting.stop()
        b.groups.open.clear()
        del b.groups.on_disk[gone.queues[0].group]
        b.hosting = b.make(up_to_date=False)
        b.hosting.start(list(b.groups.on_disk))
        await settle()
        assert set(b.groups.open) == {kept.queues[0].group}, "what has data is open at once"
        assert not b.hosting.opened.is_set()
        await b.registry.unregister_topic("gone")
        late = await b.registry.register_topic("late", 1, 3)
        await settle()
        assert set(b.groups.open) == {kept.queues[0].group}
        b.hosting.up_to_date()
        await settle()
        assert set(b.groups.open) == {kept.queues[0].group, late.queues[0].group}
        assert b.hosting.opened.is_set()

    run(scenario)


def test_a_replica_that_cannot_be_opened_says_why() -> None:
    async def scenario(b: Bench) -> None:
        b.groups.refuse = DiskFull("no room")
        topic = await b.registry.register_topic("t", 1, 3)
        await settle()
        assert not b.hosting.partitions
        assert isinstance(b.hosting.failure(topic.queues[0].group), DiskFull)
        b.groups.refuse = None
        await b.restart()
        await settle()
        assert len(b.hosting.partitions) == 1

    run(scenario)


@pytest.mark.parametrize("count", [1, 100])
def test_many_at_once(count: int) -> None:
    async def scenario(b: Bench) -> None:
        await b.registry.register_topic("t", count, 3)
        await settle()
        assert len(b.hosting.partitions) == count

    run(scenario)


def test_who_asks_a_stopping_broker_may_ask_again() -> None:
    async def scenario(b: Bench) -> None:
        await b.registry.register_topic("t", 1, 3)
        await settle()
        (partition,) = b.hosting.partitions.values()
        await b.hosting.stop()
        assert isinstance(partition.closed, NotReady)
        assert partition.closed.retriable

    run(scenario)
