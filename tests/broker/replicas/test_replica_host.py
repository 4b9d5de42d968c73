"""The replicas of a broker follow the registry, and data is removed only after the registry recorded the deletion."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.fakes.fake_groups import FakeGroups
from tests.fakes.manual_clock import ManualClock
from tests.registry.records import broker
from tinymq.base.config import Timing
from tinymq.base.errors import (
    DiskFull,
    NotReady,
    OutOfDescriptors,
    StorageError,
    TinymqError,
    UnknownPartition,
    UnknownTopic,
)
from tinymq.base.topic_config import make
from tinymq.base.types import GroupId, TopicId
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.partition import Partition
from tinymq.broker.replicas.replica_host import BACKOFF, ReplicaHost
from tinymq.proto import registry_pb2 as pb
from tinymq.registry.memory import MemoryRegistry
from tinymq.registry.state.effects import Reloaded
from tinymq.registry.state.state import RegistryState
from tinymq.registry.state.values import QueueRecord


class Bench:
    """Brokers 1 to 3 are registered; the tests check broker 2's replicas."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.registry = MemoryRegistry(self.clock, random.Random(1), Timing())
        self.groups = FakeGroups()
        self.replica_host = self.make()

    def make(self, broker_id: int = 2, *, up_to_date: bool = True) -> ReplicaHost:
        hosting = ReplicaHost(broker_id, self.registry, self.groups, self.partition, clock=self.clock)
        if up_to_date:
            hosting.up_to_date()
        return hosting

    def partition(self, queue: QueueRecord) -> Partition:
        soon = asyncio.get_running_loop().call_soon
        return Partition(f"{queue.topic}/{queue.partition}", Deadlines(self.clock), soon, lambda _: None)

    async def restart(self) -> None:
        await self.replica_host.stop()
        self.groups.open.clear()
        self.replica_host = self.make()
        self.replica_host.start(list(self.groups.on_disk))


def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench()
        for number in (1, 2, 3):
            await bench.registry.register_broker(broker(number))
        bench.replica_host.start([])
        await scenario(bench)
        await bench.replica_host.stop()
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
        assert list(b.replica_host.partitions) == [(topic.topic_id, mine[0].partition)]
        assert b.replica_host.get(topic.topic_id, mine[0].partition) is not None

    run(scenario)


def test_every_replica_begins_with_the_same_bytes() -> None:
    async def scenario(b: Bench) -> None:
        others = [ReplicaHost(n, b.registry, FakeGroups(), b.partition) for n in (1, 3)]
        for other in others:
            other.up_to_date()
            other.start([])
        topic = await b.registry.register_topic("t", 1, 3)
        await settle()
        firsts = [h._groups.on_disk[topic.queues[0].group] for h in (b.replica_host, *others)]  # type: ignore[attr-defined]
        assert firsts[0] == firsts[1] == firsts[2]
        for other in others:
            await other.stop()

    run(scenario)


def test_a_deleted_topic_is_removed_with_its_data_and_calls_get_an_error() -> None:
    async def scenario(b: Bench) -> None:
        topic = await b.registry.register_topic("t", 2, 3)
        await settle()
        partition = b.replica_host.get(topic.topic_id, 0)
        assert partition is not None
        await b.registry.unregister_topic("t")
        assert isinstance(partition.closed, UnknownTopic)
        assert not b.replica_host.partitions
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
        assert not b.replica_host.partitions
        assert not b.groups.on_disk

    run(scenario)


def test_a_restart_opens_present_replicas_and_removes_deleted_ones() -> None:
    async def scenario(b: Bench) -> None:
        kept = await b.registry.register_topic("kept", 2, 3)
        gone = await b.registry.register_topic("gone", 1, 3)
        await settle()
        await b.replica_host.stop()
        b.groups.open.clear()
        stranger = GroupId(TopicId(b"s" * 16), 0)
        b.groups.on_disk[stranger] = b.groups.on_disk[gone.queues[0].group]
        await b.registry.unregister_topic("gone")
        b.replica_host = b.make()
        b.replica_host.start(list(b.groups.on_disk))
        await settle()
        assert {topic_id for topic_id, _ in b.replica_host.partitions} == {kept.topic_id}
        assert set(b.groups.on_disk) == {q.group for q in kept.queues} | {stranger}, "never without a recorded deletion"

    run(scenario)


def test_a_lagging_registry_starts_no_replica() -> None:
    """All brokers restart shortly after a deletion: each replays the creation of the topic, and learns of the deletion
    later.
    """

    async def scenario(b: Bench) -> None:
        kept = await b.registry.register_topic("kept", 1, 3)
        gone = await b.registry.register_topic("gone", 1, 3)
        await settle()
        await b.replica_host.stop()
        b.groups.open.clear()
        del b.groups.on_disk[gone.queues[0].group]
        b.replica_host = b.make(up_to_date=False)
        b.replica_host.start(list(b.groups.on_disk))
        await settle()
        assert set(b.groups.open) == {kept.queues[0].group}, "partitions with data open at once"
        assert not b.replica_host.opened.is_set()
        await b.registry.unregister_topic("gone")
        late = await b.registry.register_topic("late", 1, 3)
        await settle()
        assert set(b.groups.open) == {kept.queues[0].group}
        b.replica_host.up_to_date()
        await settle()
        assert set(b.groups.open) == {kept.queues[0].group, late.queues[0].group}
        assert b.replica_host.opened.is_set()

    run(scenario)


def test_a_replica_that_cannot_be_opened_names_the_reason() -> None:
    async def scenario(b: Bench) -> None:
        b.groups.refuse = DiskFull("no room")
        topic = await b.registry.register_topic("t", 1, 3)
        await settle()
        assert not b.replica_host.partitions
        assert isinstance(b.replica_host.failure(topic.queues[0].group), DiskFull)
        b.groups.refuse = None
        await b.restart()
        await settle()
        assert len(b.replica_host.partitions) == 1

    run(scenario)


@pytest.mark.parametrize("error", [OutOfDescriptors, DiskFull])
def test_a_temporary_failure_is_retried_until_the_replica_opens(error: type[TinymqError]) -> None:
    async def scenario(b: Bench) -> None:
        b.groups.refuse = error("not now")
        topic = await b.registry.register_topic("t", 3, 3)
        await settle()
        for _ in range(4):
            assert isinstance(b.replica_host.failure(topic.queues[0].group), error)
            b.clock.advance(BACKOFF.pause_s_max)
            await settle()
        b.groups.refuse = None
        assert not b.replica_host.partitions
        b.clock.advance(BACKOFF.pause_s_max)
        await settle()
        assert {p for _, p in b.replica_host.partitions} == {0, 1, 2}
        assert b.replica_host.failure(topic.queues[0].group) is None

    run(scenario)


def test_a_retry_does_not_open_a_deleted_replica() -> None:
    async def scenario(b: Bench) -> None:
        b.groups.refuse = OutOfDescriptors("not now")
        await b.registry.register_topic("t", 1, 3)
        await settle()
        b.groups.refuse = None
        await b.registry.unregister_topic("t")
        b.clock.advance(BACKOFF.pause_s_max)
        await settle()
        assert not b.replica_host.partitions

    run(scenario)


def test_a_damaged_replica_is_not_retried() -> None:
    async def scenario(b: Bench) -> None:
        b.groups.refuse = StorageError("cannot read")
        await b.registry.register_topic("t", 1, 3)
        await settle()
        b.groups.refuse = None
        b.clock.advance(100 * BACKOFF.pause_s_max)
        await settle()
        assert not b.replica_host.partitions

    run(scenario)


def test_partitions_come_and_go_by_number() -> None:
    async def scenario(b: Bench) -> None:
        topic = await b.registry.register_topic("t", 2, 3)
        await settle()
        more = await b.registry.register_queue("t")
        await settle()
        assert {p for _, p in b.replica_host.partitions} == {0, 1, 2}
        assert b.groups.on_disk[more.group].header.append_time_us == more.created_us
        partition = b.replica_host.get(topic.topic_id, 1)
        assert partition is not None
        await b.registry.unregister_queue("t", 1)
        assert isinstance(partition.closed, UnknownPartition)
        await settle()
        assert {group.partition for group in b.groups.on_disk} == {0, 2}
        assert (await b.registry.register_queue("t")).partition == 3

    run(scenario)


def test_a_partition_deleted_while_it_is_opened_or_while_the_broker_is_down() -> None:
    async def scenario(b: Bench) -> None:
        topic = await b.registry.register_topic("t", 3, 3)
        await settle()
        b.groups.gate.clear()
        opening = await b.registry.register_queue("t")
        await settle()
        await b.registry.unregister_queue("t", opening.partition)
        b.groups.gate.set()
        await settle()
        assert {group.partition for group in b.groups.on_disk} == {0, 1, 2}
        await b.replica_host.stop()
        b.groups.open.clear()
        await b.registry.unregister_queue("t", 0)
        b.groups.on_disk[GroupId(topic.topic_id, 9)] = b.groups.on_disk[GroupId(topic.topic_id, 1)]
        b.replica_host = b.make()
        b.replica_host.start(list(b.groups.on_disk))
        await settle()
        assert {p for _, p in b.replica_host.partitions} == {1, 2}
        assert {group.partition for group in b.groups.on_disk} == {1, 2, 9}, "9 is not known to be deleted"

    run(scenario)


def test_a_topic_is_altered_live() -> None:
    async def scenario(b: Bench) -> None:
        topic = await b.registry.register_topic("t", 2, 3, make([("retention_ms", "5000")]))
        await settle()
        (first, second) = b.replica_host.partitions.values()
        assert first.config.retention_ms == second.config.retention_ms == 5000
        await b.registry.alter_topic("t", [("retention_ms", "none"), ("segment_bytes", "70000")])
        assert first.config.retention_ms is second.config.retention_ms is None
        assert {b.groups.configs[q.group].segment_bytes for q in topic.queues} == {70_000}
        b.groups.gate.clear()
        late = await b.registry.register_queue("t")
        await settle()
        await b.registry.alter_topic("t", [("retention_ms", "9000"), ("segment_bytes", "80000")])
        b.groups.gate.set()
        await settle()
        opened = b.replica_host.get(topic.topic_id, late.partition)
        assert opened is not None
        assert opened.config.retention_ms == first.config.retention_ms == 9000
        assert b.groups.configs[late.group].segment_bytes == 80_000, "altered while it was opened"

    run(scenario)


def test_settings_from_a_snapshot_take_effect() -> None:
    async def scenario(b: Bench) -> None:
        await b.registry.register_topic("t", 1, 3)
        await settle()
        (partition,) = b.replica_host.partitions.values()
        other = RegistryState()
        other.load(b.registry._state.dump())
        altered = pb.AlterTopic(name="t", settings=[pb.Setting(name="retention_ms", value="7000")])
        other.apply(pb.Command(alter_topic=altered))
        b.registry._state.load(other.dump())
        b.registry._advanced([Reloaded()])
        assert partition.config.retention_ms == 7000

    run(scenario)


@pytest.mark.parametrize("count", [1, 100])
def test_many_at_once(count: int) -> None:
    async def scenario(b: Bench) -> None:
        await b.registry.register_topic("t", count, 3)
        await settle()
        assert len(b.replica_host.partitions) == count

    run(scenario)


def test_a_call_at_a_stopping_broker_is_retriable() -> None:
    async def scenario(b: Bench) -> None:
        await b.registry.register_topic("t", 1, 3)
        await settle()
        (partition,) = b.replica_host.partitions.values()
        await b.replica_host.stop()
        assert isinstance(partition.closed, NotReady)
        assert partition.closed.retriable

    run(scenario)
