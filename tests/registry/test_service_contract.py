"""One suite for every RegistryService."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.fakes.manual_clock import ManualClock
from tests.fakes.raft_group import FakeGroup
from tests.fakes.raft_host import FakeHosts
from tests.registry.records import broker
from tinymq.config import Timing
from tinymq.errors import (
    DeadlineExceeded,
    InvalidName,
    InvalidRequest,
    TopicExists,
    UnknownTopic,
)
from tinymq.registry.machine import RegistryMachine
from tinymq.registry.memory import MemoryRegistry
from tinymq.registry.replicated import ReplicatedRegistry
from tinymq.registry.service import RegistryService
from tinymq.registry.state import BrokersChanged, Effect, TopicCreated, TopicDeleted
from tinymq.types import METADATA_GROUP


def memory(clock: ManualClock) -> RegistryService:
    return MemoryRegistry(clock, random.Random(1), Timing())


def replicated(clock: ManualClock) -> RegistryService:
    """One broker that leads, over a group that commits in the loop's next turn."""
    machine = RegistryMachine()
    group = FakeGroup(machine, METADATA_GROUP, lambda: asyncio.get_running_loop().call_soon(group.commit) and None)
    machine.attach(group)
    hosts = FakeHosts()
    return ReplicatedRegistry(1, machine, hosts.host(1), clock, random.Random(1), Timing())


class Bench:
    def __init__(self, make: Callable[[ManualClock], RegistryService]) -> None:
        self.clock = ManualClock()
        self.registry = make(self.clock)
        self.effects: list[Effect] = []
        self.registry.watch(self._changed)

    def _changed(self, effects: Sequence[Effect]) -> None:
        self.effects.extend(effects)

    async def register(self, *numbers: int) -> None:
        for number in numbers:
            await self.registry.register_broker(broker(number))


Scenario = Callable[[Callable[[Bench], Awaitable[None]]], None]


@pytest.fixture(params=[memory, replicated])
def run(request: pytest.FixtureRequest) -> Scenario:
    async def main(scenario: Callable[[Bench], Awaitable[None]]) -> None:
        await scenario(Bench(request.param))

    return lambda scenario: asyncio.run(main(scenario))


def test_brokers_register_and_leave(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        assert await b.registry.register_broker(broker(2)) == Timing().registration_lease_s
        await b.register(1)
        assert b.registry.get_all_brokers() == [broker(1), broker(2)]
        assert b.registry.get_broker(2) == broker(2)
        assert b.registry.get_broker(9) is None
        await b.registry.register_broker(broker(2, session=5))
        await b.registry.unregister_broker(2, session=1)
        assert b.registry.get_broker(2) == broker(2, session=5)
        await b.registry.unregister_broker(2)
        await b.registry.unregister_broker(2)
        assert b.registry.get_all_brokers() == [broker(1)]
        assert b.effects == [BrokersChanged()] * 4

    run(scenario)


def test_a_broker_that_is_gone_is_unregistered_by_itself(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1, 2)
        for _ in range(8):
            b.clock.advance(Timing().registration_renew_s)
            await asyncio.sleep(0)
            await b.register(1)
        assert b.registry.get_all_brokers() == [broker(1)]
        await b.register(2)
        assert b.registry.get_all_brokers() == [broker(1), broker(2)]

    run(scenario)


def test_a_renewal_changes_nothing(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1)
        version = b.registry.version
        await b.register(1, 1, 1)
        assert b.registry.version == version

    run(scenario)


def test_topics_and_queues(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1, 2, 3)
        topic = await b.registry.register_topic("flights", 6, 3)
        assert b.registry.get_topic("flights") == topic
        assert b.registry.get_topic_by_id(topic.topic_id) == topic
        assert b.registry.get_all_topics() == [topic]
        queues = b.registry.get_queues_by_topic("flights")
        assert [q.partition for q in queues] == list(range(6))
        assert sorted(q.replicas[0].broker_id for q in queues) == [1, 1, 2, 2, 3, 3]
        other = await b.registry.register_topic("a", 1, 1)
        assert [t.name for t in b.registry.get_all_topics()] == ["a", "flights"]
        await b.registry.unregister_topic("flights")
        assert b.registry.get_topic("flights") is None
        assert b.registry.is_deleted(topic.topic_id)
        assert not b.registry.is_deleted(other.topic_id)
        assert b.effects[3:] == [TopicCreated(topic), TopicCreated(other), TopicDeleted(topic)]
        again = await b.registry.register_topic("flights", 1, 1)
        assert again.topic_id != topic.topic_id

    run(scenario)


def test_a_change_under_the_same_id_is_made_once(run: Scenario) -> None:
    """Whatever has happened to the topic in between."""

    async def scenario(b: Bench) -> None:
        await b.register(1)
        topic = await b.registry.register_topic("t", 2, 1, command_id=b"c" * 16)
        assert await b.registry.register_topic("t", 2, 1, command_id=b"c" * 16) == topic
        await b.registry.unregister_topic("t", command_id=b"d" * 16)
        with pytest.raises(UnknownTopic, match="as soon as it was made"):
            await b.registry.register_topic("t", 2, 1, command_id=b"c" * 16)
        again = await b.registry.register_topic("t", 1, 1, command_id=b"e" * 16)
        await b.registry.unregister_topic("t", command_id=b"d" * 16)
        assert b.registry.get_topic("t") == again
        with pytest.raises(InvalidRequest):
            await b.registry.unregister_topic("t", command_id=b"short")

    run(scenario)


def test_what_is_refused(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1, 2, 3)
        await b.registry.register_topic("t", 1, 1)
        topics = b.registry.get_all_topics()
        for name in ("", "x" * 250, "..", ".", "a/b", "a\0b", "ä"):
            with pytest.raises(InvalidName):
                await b.registry.register_topic(name, 1, 1)
        with pytest.raises(TopicExists):
            await b.registry.register_topic("t", 1, 1)
        for partitions, factor in ((0, 1), (1, 0), (1, 4), (100_000, 1)):
            with pytest.raises(InvalidRequest) as refused:
                await b.registry.register_topic("u", partitions, factor)
            assert not refused.value.retriable
        with pytest.raises(UnknownTopic):
            await b.registry.unregister_topic("nope")
        with pytest.raises(UnknownTopic):
            b.registry.get_queues_by_topic("nope")
        assert b.registry.get_all_topics() == topics

    run(scenario)


def test_producer_ids(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        first = await b.registry.take_producer_ids(5)
        second = await b.registry.take_producer_ids(5)
        assert (list(first), list(second)) == ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])

    run(scenario)


def test_versions(run: Scenario) -> None:
    async def scenario(b: Bench) -> None:
        version = b.registry.version
        waiting = asyncio.ensure_future(b.registry.wait_version(version + 1, 5.0))
        too_far = asyncio.ensure_future(b.registry.wait_version(version + 100, 5.0))
        await b.register(1)
        await waiting
        assert await b.registry.refresh(1.0) == b.registry.version == version + 1
        b.clock.advance(5.1)
        with pytest.raises(DeadlineExceeded):
            await too_far

    run(scenario)
