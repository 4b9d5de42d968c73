"""What a coordinator answers, step by step: deposed, not yet ready, and with changes that are not committed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import pytest

from tests.chaos.group_lives import NAME, TOPIC, Life, World
from tinymq.base.errors import DeadlineExceeded, NotLeader
from tinymq.base.types import PartitionId
from tinymq.broker.coordinator.coordinator import Assignment
from tinymq.broker.coordinator.rules import MemberHeartbeat
from tinymq.broker.members.group_members import Member
from tinymq_chaos.sim.virtual.event_loop import VirtualLoop, run_virtually

SESSIONS = {name: name.encode() * 16 for name in "abc"}


def story(tell: Callable[[World], Awaitable[None]]) -> None:
    """Tell a story to three brokers and no members; broker 1 leads."""

    async def main(loop: VirtualLoop) -> None:
        world = World(Life(1), loop)
        world.begin()
        await world.clock.sleep(1.0)
        await tell(world)
        await world.end_brokers()

    run_virtually(main)


async def beat(
    world: World, broker: int, name: str, owned: Mapping[PartitionId, int], number: int, taken: int = 0
) -> None:
    heard = MemberHeartbeat(name, Member(SESSIONS[name]), number, owned, taken)
    await world.coordinators[broker].heartbeat(NAME, 7, heard)


async def assignment(world: World, broker: int, name: str, wait_s: float = 0.0) -> Assignment | None:
    return await world.coordinators[broker].assignment(NAME, 7, name, SESSIONS[name], 0, wait_s)


def test_a_coordinator_that_was_replaced_answers_no_heartbeat() -> None:
    async def tell(world: World) -> None:
        await beat(world, 1, "a", {}, 1)
        await world.clock.sleep(0.5)
        found = await assignment(world, 1, "a")
        assert found is not None
        owned = {place: at.epoch for place, at in found.owned.items()}
        world.ruler = 2  # a majority follows broker 2, and broker 1 does not know it
        with pytest.raises(DeadlineExceeded):
            await beat(world, 1, "a", owned, 2, max(owned.values()))

    story(tell)


def test_a_coordinator_answers_once_it_has_applied_its_first_entry() -> None:
    async def tell(world: World) -> None:
        await beat(world, 1, "a", {}, 1)
        await world.clock.sleep(0.5)
        world.elect(2)
        with pytest.raises(NotLeader):
            await assignment(world, 2, "a")
        await world.clock.sleep(1.0)
        found = await assignment(world, 2, "a")
        assert found is not None
        assert len(found.owned) == 4

    story(tell)


def test_an_assignment_is_announced_when_it_is_committed() -> None:
    async def tell(world: World) -> None:
        await beat(world, 1, "a", {}, 1)
        await world.clock.sleep(0.05)  # before the next look of the coordinator
        world.ruler = 2
        found = await assignment(world, 1, "a", wait_s=3.0)
        assert found is None or found.owned == {}, "broker 1 has decided, and no majority has stored it"

    story(tell)


def test_a_member_that_is_heard_while_its_end_is_decided_stays() -> None:
    """The decision waits its turn behind the heartbeat."""

    async def tell(world: World) -> None:
        await beat(world, 1, "a", {}, 1)
        replica, group = world.rafts[0].machine, world.group
        known = world.coordinators[1].sessions(replica, NAME)
        async with known.deciding:
            await world.clock.sleep(3.3)  # its time is over, and the coordinator waits to end it
            heard = MemberHeartbeat("a", Member(SESSIONS["a"]), 2, {}, 0)
            known.hear(heard, replica.groups[group.name], world.clock.monotonic())
        await world.clock.sleep(0.3)
        assert "a" in replica.groups[NAME].members

    story(tell)


def test_partitions_are_listed_by_their_topic() -> None:
    async def tell(world: World) -> None:
        await beat(world, 1, "a", {}, 1)
        await world.clock.sleep(0.5)
        found = await assignment(world, 1, "a")
        assert found is not None
        assert sorted(found.owned) == [PartitionId(TOPIC, number) for number in range(4)]

    story(tell)
