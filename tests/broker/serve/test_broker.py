"""Broker as its services use it: replicas by number, and waits for topics."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.fakes.fake_groups import FakeGroups
from tests.fakes.levels import FakePeers, FakeStore
from tests.fakes.manual_clock import ManualClock
from tests.registry.records import broker
from tinymq.base.config import Limits, Timing
from tinymq.base.errors import (
    DeadlineExceeded,
    InvalidName,
    InvalidRequest,
    NotLeader,
    NotReady,
    UnknownPartition,
    UnknownTopic,
)
from tinymq.base.topic_config import make
from tinymq.base.types import GroupId
from tinymq.broker.cluster.feature_level import FeatureLevelControl
from tinymq.broker.partition.deadlines import Deadlines
from tinymq.broker.partition.partition import Partition
from tinymq.broker.replicas.replica_host import ReplicaHost
from tinymq.broker.serve.broker import REGISTERED_S_MAX, Broker, BrokerEnv, LossCounts
from tinymq.log.files.runner import InlineRunner
from tinymq.registry.memory import MemoryRegistry
from tinymq.registry.state.values import QueueRecord


class LaggingRegistry(MemoryRegistry):
    """A registry whose leader cannot be asked for a while."""

    asked = 0
    deaf = False

    async def refresh(self, timeout_s: float) -> int:
        self.asked += 1
        if self.deaf:
            raise DeadlineExceeded("nobody answers")
        return await super().refresh(timeout_s)


class Bench:
    """Broker 2 of three. Broker 1 leads the groups once a test says so."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.registry = LaggingRegistry(self.clock, random.Random(1), Timing())
        self.groups = FakeGroups()
        self.led: set[GroupId] = set()
        self.alive = 3
        self.metadata = [1, 2, 3]
        self.replica_host = ReplicaHost(2, self.registry, self.groups, self.partition)
        self.replica_host.up_to_date()
        env = BrokerEnv(
            broker_id=2,
            cluster_id=b"c" * 16,
            registry=self.registry,
            replica_host=self.replica_host,
            leaders=self,
            deadlines=Deadlines(self.clock),
            clock=self.clock,
            runner=InlineRunner(),
            limits=Limits(),
            timing=Timing(),
            loss_counts=lambda: LossCounts(0, 0, 0),
            upgrade=FeatureLevelControl(
                2,
                registry=self.registry,
                peers=FakePeers(),
                store=FakeStore(2),
                voters=self.voters,
                announce=lambda _: None,
                clock=self.clock,
                every_s=2.0,
            ),
            voters=self.voters,
            auto_create_partitions=0,
            metadata_known=lambda: True,
        )
        self.broker = Broker(env)

    def voters(self) -> list[int]:
        return self.metadata

    def count_alive(self) -> int:
        return self.alive

    def leader_of(self, group_id: GroupId) -> tuple[int, int] | None:
        return (1, 4) if group_id in self.led else None

    def partition(self, queue: QueueRecord) -> Partition:
        soon = asyncio.get_running_loop().call_soon
        return Partition(f"{queue.topic}/{queue.partition}", Deadlines(self.clock), soon, lambda _: None)


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


def test_replicas_are_found_by_number() -> None:
    async def scenario(b: Bench) -> None:
        topic = await b.registry.register_topic("t", 3, 3)
        await b.registry.unregister_queue("t", 1)
        more = await b.registry.register_queue("t")
        await settle()
        assert [str(b.broker.find(topic.topic_id, p)) for p in (0, 2, 3)] == ["t/0", "t/2", "t/3"]
        with pytest.raises(UnknownPartition):
            b.broker.find(topic.topic_id, 1)
        assert more.partition == 3
        assert b.registry.asked == 0, "no request for a topic that is known to be deleted"
        with pytest.raises(InvalidName):
            b.broker.find(b"short", 0)

    run(scenario)


def test_a_partition_on_other_brokers_is_named_as_such() -> None:
    async def scenario(b: Bench) -> None:
        topic = await b.registry.register_topic("t", 3, 1)
        await settle()
        for queue in topic.queues:
            b.led.add(queue.group)
            if not queue.has_replica(2):
                with pytest.raises(NotLeader) as refused:
                    b.broker.find(topic.topic_id, queue.partition)
                assert refused.value.detail["leader_address"] == broker(1).address

    run(scenario)


@pytest.mark.parametrize("missing", ["topic", "partition"])
def test_an_unknown_topic_is_looked_up_before_it_is_refused(missing: str) -> None:
    async def scenario(b: Bench) -> None:
        topic = await b.registry.register_topic("t", 1, 3)
        await settle()
        at = (b"s" * 16, 0) if missing == "topic" else (topic.topic_id, 1)
        b.registry.deaf = True
        for _ in range(2):
            with pytest.raises(NotReady):
                b.broker.find(*at)
            with pytest.raises(NotReady):
                b.broker.find(*at)
            await settle()
        assert b.registry.asked == 2, "one request at a time, and a retry when none was answered"
        b.registry.deaf = False
        with pytest.raises(NotReady):
            b.broker.find(*at)
        await settle()
        with pytest.raises(UnknownTopic if missing == "topic" else UnknownPartition):
            b.broker.find(*at)
        assert b.registry.asked == 3
        if missing == "partition":
            await b.registry.register_queue("t")
            await settle()
            assert str(b.broker.find(*at)) == "t/1"

    run(scenario)


def test_creation_waits_until_a_new_partition_has_a_leader() -> None:
    async def scenario(b: Bench) -> None:
        topic = await b.registry.register_topic("t", 1, 3)
        adding = asyncio.ensure_future(b.broker.add_partition("t", 5.0))
        await settle()
        assert not adding.done()
        b.led.add(GroupId(topic.topic_id, 1))
        b.clock.advance(1.0)
        await settle()
        assert adding.result().partition == 1
        late = asyncio.ensure_future(b.broker.add_partition("t", 5.0))
        await settle()
        for _ in range(600):
            b.clock.advance(0.01)
            await asyncio.sleep(0)
        assert late.result().partition == 2, "created, with or without a leader"
        gone = asyncio.ensure_future(b.broker.add_partition("t", 5.0))
        await settle()
        await b.broker.delete_partition("t", 3, 5.0)
        b.clock.advance(0.02)
        await settle()
        assert gone.result().partition == 3, "no call waits for the leader of a deleted topic"

    run(scenario)


def test_a_topic_waits_for_brokers_that_are_heard_but_not_registered() -> None:
    async def scenario(b: Bench) -> None:
        await b.registry.unregister_broker(3)
        making = asyncio.ensure_future(b.broker.create_topic("t", 1, 3, 30.0))
        for _ in range(100):
            b.clock.advance(0.01)
            await asyncio.sleep(0)
        assert not making.done()
        await b.registry.register_broker(broker(3))
        b.clock.advance(0.02)
        await settle()
        made = b.registry.get_topic("t")
        assert made is not None
        assert len(made.queues[0].replicas) == 3
        b.led.add(made.queues[0].group)
        b.clock.advance(0.02)
        assert (await making).name == "t"

    run(scenario)


def test_the_default_factor_waits_for_the_voters() -> None:
    """The others are neither heard nor registered: the cluster was formed a moment ago."""

    async def scenario(b: Bench) -> None:
        b.alive = 1
        for number in (2, 3):
            await b.registry.unregister_broker(number)
        making = asyncio.ensure_future(b.broker.create_topic("t", 1, None, 30.0))
        for number in (2, 3):
            for _ in range(100):
                b.clock.advance(0.01)
                await asyncio.sleep(0)
            assert b.registry.get_topic("t") is None
            await b.registry.register_broker(broker(number))
        b.clock.advance(0.02)
        await settle()
        made = b.registry.get_topic("t")
        assert made is not None
        assert made.replication_factor == len(made.queues[0].replicas) == 3
        making.cancel()

    run(scenario)


def test_the_default_factor_names_the_voters_that_are_missing() -> None:
    async def scenario(b: Bench) -> None:
        for number in (2, 3):
            await b.registry.unregister_broker(number)
        making = asyncio.ensure_future(b.broker.create_topic("t", 1, None, 7.0))
        since_s = b.clock.monotonic()
        await settle()
        while not making.done():
            b.clock.advance(0.01)
            await asyncio.sleep(0)
        with pytest.raises(NotReady, match="brokers 2, 3 missing") as missing:
            making.result()
        assert missing.value.detail["missing"] == "2, 3"
        assert 7.0 <= b.clock.monotonic() - since_s < 7.1
        assert b.registry.get_topic("t") is None

    run(scenario)


@pytest.mark.parametrize(("voters", "registered", "factor"), [(1, 1, 1), (1, 2, 2), (3, 5, 3), (5, 3, 3)])
def test_the_default_factor_is_three_or_all_brokers(voters: int, registered: int, factor: int) -> None:
    async def scenario(b: Bench) -> None:
        b.alive, b.metadata = registered, list(range(1, voters + 1))
        for number in (1, 2, 3):
            await b.registry.unregister_broker(number)
        for number in range(1, registered + 1):
            await b.registry.register_broker(broker(number))
        making = asyncio.ensure_future(b.broker.create_topic("t", 1, None, 5.0))
        await settle()
        made = b.registry.get_topic("t")
        assert made is not None
        assert made.replication_factor == factor
        making.cancel()

    run(scenario)


def test_partitions_spread_over_brokers_that_are_heard_but_not_registered() -> None:
    async def scenario(b: Bench) -> None:
        for number in (2, 3):
            await b.registry.unregister_broker(number)
        making = asyncio.ensure_future(b.broker.create_topic("t", 3, 1, 30.0))
        await settle()
        assert b.registry.get_topic("t") is None
        for number in (2, 3):
            await b.registry.register_broker(broker(number))
        b.clock.advance(0.02)
        await settle()
        assert sorted(queue.replicas[0].broker_id for queue in b.registry.get_queues_by_topic("t")) == [1, 2, 3]
        making.cancel()

    run(scenario)


@pytest.mark.parametrize(("wanted", "waits_s"), [(4, 0.0), (3, REGISTERED_S_MAX)])
def test_a_topic_of_more_replicas_than_brokers_is_refused(wanted: int, waits_s: float) -> None:
    """At once if no more brokers are heard; otherwise once a heard broker has not been registered for long."""

    async def scenario(b: Bench) -> None:
        await b.registry.unregister_broker(3)
        since_s = b.clock.monotonic()
        making = asyncio.ensure_future(b.broker.create_topic("t", 1, wanted, 30.0))
        await settle()
        while not making.done():
            b.clock.advance(0.01)
            await asyncio.sleep(0)
        with pytest.raises(InvalidRequest, match="with 2 live brokers"):
            making.result()
        assert waits_s <= b.clock.monotonic() - since_s < waits_s + 1.0

    run(scenario)


def test_creation_waits_for_a_new_topic_with_its_settings() -> None:
    async def scenario(b: Bench) -> None:
        making = asyncio.ensure_future(
            b.broker.create_topic("t", 2, 3, 5.0, config=make([("max_bytes", "1000"), ("on_full", "drop_oldest")]))
        )
        await settle()
        topic = b.registry.get_topic("t")
        assert topic is not None
        b.led.add(topic.queues[0].group)
        b.clock.advance(0.02)
        await settle()
        assert not making.done(), "one of two has a leader"
        b.led.add(topic.queues[1].group)
        b.clock.advance(0.02)
        await settle()
        assert making.result().config.max_bytes == 1000
        altered = await b.broker.alter_topic("t", [("max_bytes", "none")], 5.0)
        assert altered.config.max_bytes is None

    run(scenario)
