"""The effects of `join` and `next_disk` on a world: see test_sim_faults.py."""

from __future__ import annotations

import random

from tests.chaos.worlds import begun, numbers
from tinymq.base.types import METADATA_GROUP
from tinymq.raft import Role
from tinymq_chaos.sim.faults import FAULTS
from tinymq_chaos.sim.faults.joins import BROKERS_MAX, ENDS
from tinymq_chaos.sim.world.world import World

ENDING, STAYING = (
    next(seed for seed in range(100) if (random.Random(seed).random() < ENDS) is ends) for ends in (True, False)
)


async def joins(world: World) -> None:
    """A fourth and a fifth broker take part as learners of the metadata, although the fifth ends on its way.

    No other broker restarts, topics created later are on them, and there are no more than BROKERS_MAX.
    """
    before = {n: broker.starts for n, broker in world.brokers.items()}
    for broker_id, seed, starts in ((4, STAYING, 1), (5, ENDING, 2)):
        fault = FAULTS["join"].begin(world, random.Random(seed))
        words = next(fault)
        assert words is not None
        assert words.startswith(f"broker {broker_id}")
        await _taken_part(world, broker_id)
        assert world.brokers[broker_id].starts == starts, words
        next(fault, None)
    assert {n: world.brokers[n].starts for n in before} == before
    client = world.client(random.Random(2))
    found = await client.admin.create_topic("late", 5, 3, timeout=10.0)
    assert {replica for partition in found.partitions for replica in partition.replicas} == {1, 2, 3, 4, 5}
    while len(world.brokers) < BROKERS_MAX:
        world.add_broker()
    assert next(FAULTS["join"].begin(world, random.Random(1))) is None


async def _taken_part(world: World, broker_id: int) -> None:
    """The broker has joined; then its load creates a topic, which is on it, and writes to it."""
    broker = world.brokers[broker_id]
    await world.until(lambda: broker.serves and broker.groups(), 10.0, "it has joined")
    assert [g.role for g in broker.groups() if g.id == METADATA_GROUP] == [Role.OBSERVER]

    def written() -> bool:
        held = [g for g in broker.groups() if world.seen.log_of(g.id)[0].startswith("beside")]
        return any(g.status().high_watermark for g in held)

    await world.until(written, 10.0, "it holds records")


async def replaced_in_turn(world: World) -> None:
    """The second disk goes when all is well after the first, not before, and the other brokers end with it."""
    disks = {n: broker.files for n, broker in world.brokers.items()}
    starts = {n: broker.starts for n, broker in world.brokers.items()}
    words, fault = begun(world, "next_disk")
    first, following = numbers(words)
    assert world.brokers[first].files.paths() == [] or world.brokers[first].files is not disks[first]
    assert world.brokers[following].files is disks[following]
    await world.until(lambda: world.brokers[following].files is not disks[following], 8.0, "the first one is well")
    assert {n for n, broker in world.brokers.items() if broker.files is disks[n]} == {*disks} - {first, following}
    assert not [n for n, broker in world.brokers.items() if broker.up]
    next(fault, None)
    assert await world.healthy(20.0) == ""
    ends = {n: broker.starts - starts[n] for n, broker in world.brokers.items()}
    assert ends == {n: 2 if n == first else 1 for n in ends}
