"""Which brokers count for the feature level, when it rises, how an operator holds it, and which brokers are refused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.fakes.levels import FakePeers, FakeStore
from tests.fakes.manual_clock import ManualClock
from tests.registry.records import broker
from tinymq.base.config import Timing
from tinymq.base.errors import InvalidRequest, UnsupportedVersion
from tinymq.broker.cluster.feature_level import (
    FeatureLevelControl,
    MemberLevel,
    announced_level,
    members_of,
    next_level,
)
from tinymq.format.feature_level import KNOWN_LEVEL
from tinymq.log.broker_files.broker_identity import BrokerIdentity
from tinymq.registry.memory import MemoryRegistry
from tinymq.registry.state.values import BrokerRecord

EVERY_S = 2.0


def member(broker_id: int, announced: int) -> MemberLevel:
    return MemberLevel(broker_id, announced, registered=True, voter=True, replicas=0)


@pytest.mark.parametrize(
    ("level", "announced", "heard", "wanted"),
    [
        (1, [2, 2, 2], {}, 2),
        (1, [2, 1, 2], {}, 1),
        (1, [2, 2, 2], {3: 1}, 1),  # it was started again as an older build, and has not registered yet
        (1, [2, 2], {7: 1}, 1),  # one that joins
        (1, [2, 2], {7: 2}, 2),
        (1, [9, 9], {1: 9}, KNOWN_LEVEL),  # no higher than this build knows
        (2, [1, 2], {1: 1}, 2),  # it never falls
    ],
)
def test_the_level_is_the_lowest_of_all_members(
    level: int, announced: list[int], heard: dict[int, int], wanted: int
) -> None:
    members = [member(number, each) for number, each in enumerate(announced, 1)]
    assert next_level(level, members, heard) == wanted


def test_what_a_broker_announces() -> None:
    identity = BrokerIdentity(1, b"i" * 16)
    assert announced_level(identity) == KNOWN_LEVEL
    assert announced_level(replace(identity, held_level=1)) == 1
    assert announced_level(replace(identity, feature_level=2, held_level=1)) == 2, "a hold that comes too late"
    assert announced_level(replace(identity, held_level=9)) == KNOWN_LEVEL, "as a newer build was told"


class Bench:
    """Broker 1 with a registry; voters 1, 2 and 3."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.registry = MemoryRegistry(self.clock, random.Random(1), Timing())
        self.peers = FakePeers()
        self.store = FakeStore(1)
        self.announced: list[int] = []
        self.upgrade = FeatureLevelControl(
            1,
            registry=self.registry,
            peers=self.peers,
            store=self.store,
            voters=lambda: [1, 2, 3],
            announce=self.announced.append,
            clock=self.clock,
            every_s=EVERY_S,
        )

    def record(self, number: int, level: int, session: int = 1) -> BrokerRecord:
        return replace(broker(number, session), feature_level=level)

    async def register(self, level: int, *numbers: int) -> None:
        for number in numbers:
            await self.registry.register_broker(self.record(number, level))
        await self.settle()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def level(self) -> int:
        return self.registry.feature_level


def run(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench()
        bench.upgrade.start()
        await bench.settle()
        await scenario(bench)
        await bench.upgrade.stop()
        bench.registry.close()

    asyncio.run(main())


def test_it_rises_once_the_last_voter_announces_it() -> None:
    async def scenario(b: Bench) -> None:
        await b.register(2, 1, 2)
        assert b.level == 1, "broker 3 has never registered, so its feature level is unknown"
        await b.register(2, 3)
        assert b.level == b.peers.feature_level == 2
        assert b.peers.entered == [2]

    run(scenario)


def test_a_broker_that_is_down_counts_with_its_announced_level() -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1, 3)
        await b.registry.unregister_broker(3)
        await b.register(2, 1, 2)
        assert b.level == 1
        await b.register(2, 3)
        assert b.level == 2

    run(scenario)


def test_the_level_does_not_wait_for_a_down_broker_that_announced_it() -> None:
    async def scenario(b: Bench) -> None:
        await b.register(2, 3)
        await b.registry.unregister_broker(3)
        await b.register(2, 1, 2)
        assert b.level == 2

    run(scenario)


def test_a_down_broker_with_a_replica_counts_even_if_it_is_not_a_voter() -> None:
    async def scenario(b: Bench) -> None:
        await b.register(1, 7)
        await b.registry.register_topic("t", 1, 1)
        await b.registry.unregister_broker(7)
        await b.register(2, 1, 2, 3)
        assert b.level == 1
        assert members_of(b.registry, [1, 2, 3])[-1] == MemberLevel(7, 1, registered=False, voter=False, replicas=1)
        await b.registry.unregister_topic("t")
        b.clock.advance(EVERY_S)
        await b.settle()
        assert b.level == 2

    run(scenario)


def test_the_level_waits_for_a_connected_broker_older_than_announced() -> None:
    async def scenario(b: Bench) -> None:
        b.peers.known = {3: 1}
        await b.register(2, 1, 2, 3)
        assert b.level == 1
        b.peers.known = {3: 2}
        b.clock.advance(EVERY_S)
        await b.settle()
        assert b.level == 2

    run(scenario)


def test_an_operator_holds_the_level_and_releases_it() -> None:
    async def scenario(b: Bench) -> None:
        await b.upgrade.hold()
        assert (b.upgrade.held, b.announced) == (1, [1])
        await b.register(2, 2, 3)
        await b.register(1, 1)
        assert b.level == 1
        for level in (KNOWN_LEVEL + 1, 9):
            with pytest.raises(InvalidRequest, match="cannot be held"):
                await b.upgrade.hold(level)
        await b.upgrade.release()
        assert (b.upgrade.held, b.announced) == (0, [1, KNOWN_LEVEL])
        await b.register(2, 1)
        assert b.level == 2
        with pytest.raises(InvalidRequest, match="the cluster is at feature level 2"):
            await b.upgrade.hold(1)

    run(scenario)


def test_a_broker_registered_below_the_level_is_unregistered() -> None:
    """Its registration entered the log behind the command that raised the level."""

    async def scenario(b: Bench) -> None:
        await b.register(2, 1, 2, 3)
        assert b.level == 2
        b.registry._state.brokers[4] = b.record(4, 1)
        b.clock.advance(EVERY_S)
        await b.settle()
        assert [record.broker_id for record in b.registry.get_all_brokers()] == [1, 2, 3]

    run(scenario)


def test_a_build_does_not_start_on_a_registry_above_its_level() -> None:
    async def main() -> None:
        bench = Bench()
        bench.registry._state.feature_level = KNOWN_LEVEL + 1
        with pytest.raises(UnsupportedVersion, match=f"broker 1 knows feature level {KNOWN_LEVEL}, and this cluster"):
            bench.upgrade.start()

    asyncio.run(main())
