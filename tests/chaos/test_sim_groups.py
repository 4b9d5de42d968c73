"""Groups in the simulator: what is true at the very moment when a call is answered."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.chaos.worlds import PARTITIONS, in_world
from tinymq.base.errors import OutcomeUnknown, TinymqError
from tinymq.base.types import METADATA_GROUP, Offset
from tinymq.broker.partition.partition import Partition
from tinymq_chaos.sim.world.world import World


def led(world: World) -> list[Partition]:
    """The partitions, on their leaders."""
    brokers = [broker.app.serving.broker for broker in world.brokers.values()]
    return [each for b in brokers if b is not None for each in b.replica_host.partitions.values() if each.leading]


def cursors(world: World) -> list[str]:
    """The partitions whose leader has a cursor of the group."""
    return [partition.name for partition in led(world) if "g" in partition.state.cursors]


def generations(world: World) -> list[int]:
    """The generations of the group's cursors. A seek raises them."""
    return [partition.state.cursors["g"].generation for partition in led(world)]


def test_a_group_is_everywhere_when_made() -> None:
    """One broker is cut off from the others: its partitions get other leaders first."""

    async def check(world: World) -> None:
        client = world.client(random.Random(2))
        registrar = world.leader(METADATA_GROUP)
        alone = next(number for number in world.brokers if registrar is None or number != registrar.id)
        world.cut("test", [pair for other in world.brokers for pair in ((alone, other), (other, alone))])
        await client.admin.create_group("g", "t", kind="queue")
        assert len({*cursors(world)}) == PARTITIONS

    in_world(check)


def test_a_group_is_nowhere_when_deleted() -> None:
    async def check(world: World) -> None:
        client = world.client(random.Random(2))
        await client.admin.create_group("g", "t", kind="queue")
        await client.admin.delete_group("g")
        assert cursors(world) == []

    in_world(check)


def test_coordinators_have_as_many_replicas_as_the_metadata() -> None:
    async def check(world: World) -> None:
        client = world.client(random.Random(2))
        await client.admin.create_group("g", "t")
        broker = world.brokers[1].app.serving.broker
        assert broker is not None
        topic = broker.registry.get_topic("__coordinator")
        assert topic is not None
        assert {len(queue.replicas) for queue in topic.queues} == {3}

    in_world(check)


def test_a_seek_that_is_cut_off_after_it_moved_the_cursors_has_no_known_outcome() -> None:
    async def check(world: World) -> None:
        client = world.client(random.Random(2))
        await client.admin.create_group("g", "t", kind="queue")
        number = max(world.clients.clients)
        pairs = [pair for broker in world.brokers for pair in ((number, broker), (broker, number))]
        for pair in pairs:
            world.conditions.of(pair).seconds = 0.05
        seeking = asyncio.ensure_future(client.admin.seek_group("g", Offset(1), timeout=5.0))
        await world.until(lambda: min(generations(world)) > 1, 5.0, "all cursors have moved")
        await world.clock.sleep(0.06)  # the client has heard of it, and reads the cursors
        world.cut("test", pairs)
        with pytest.raises(OutcomeUnknown):
            await seeking
        world.mend("test")

    in_world(check)


def test_the_first_half_messages_of_a_cluster_are_stored_although_several_come_at_once() -> None:
    """They make the topic of the coordinators: some find it when another one has just made it."""

    async def store(world: World, number: int) -> str:
        client = world.client(random.Random(number))
        await world.clock.sleep(0.002 * number)
        return (await client.half_message("t", b"v", producer_group="checkout", timeout=5.0)).name

    async def check(world: World) -> None:
        names = await asyncio.gather(*(store(world, number) for number in range(16)))
        assert len({*names}) == 16

    in_world(check)


def test_a_half_message_keeps_its_deadline_whenever_its_brokers_fall_silent() -> None:
    """One that was begun and is not stored is rolled back within the call's time, and not after it."""

    async def check(world: World) -> None:
        client = world.client(random.Random(3))
        await client.half_message("t", b"v", producer_group="checkout", timeout=10.0)
        late_s = []
        for tenth_ms in range(0, 40, 4):
            began_s = world.clock.monotonic()
            storing = asyncio.create_task(client.half_message("t", b"v", producer_group="checkout", timeout=4.0))
            await world.clock.sleep(tenth_ms / 10_000)
            for broker in world.brokers.values():
                world.pause(broker)
            await asyncio.wait([storing])
            late_s.append(world.clock.monotonic() - began_s - 4.0)
            for broker in world.brokers.values():
                world.resume(broker.process)
            assert await world.healthy(20.0) == ""
            assert storing.exception() is None or isinstance(storing.exception(), TinymqError)
        assert max(late_s) < 0.1, late_s

    in_world(check)
