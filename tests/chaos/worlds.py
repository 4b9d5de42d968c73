"""Worlds for tests of single faults: formed, with a topic on all brokers and some records."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

from tinymq.client import AsyncClient
from tinymq_chaos.sim.campaign.run import no_collection
from tinymq_chaos.sim.faults import FAULTS
from tinymq_chaos.sim.network.wires import MessageStream
from tinymq_chaos.sim.virtual.event_loop import VirtualLoop, run_virtually
from tinymq_chaos.sim.virtual.transcript import Transcript
from tinymq_chaos.sim.world.brokers import SimBroker
from tinymq_chaos.sim.world.world import World, WorldOptions

Pair = tuple[int, int]
TRIES = 60  # seeds of a fault, until it is the one that a test needs
PARTITIONS = 6  # each broker leads some, so every broker sends to every other one
RECORDS = 80
SEEN_S = 1.0  # after so long every broker has sent something, whichever leads

Fault = Iterator[str | None]


def in_world(check: Callable[[World], Awaitable[None]], nodes: int = 3) -> World:
    """Run `check` in a world of its own, and return what is left of the world."""
    transcript = Transcript()
    kept: list[World] = []

    async def main(loop: VirtualLoop) -> None:
        transcript.begin(loop)
        world = World(loop, 1, WorldOptions(nodes, 4096), transcript)
        kept.append(world)
        try:
            await world.form()
            await world.clock.sleep(1.0)  # all have registered
            client = world.client(random.Random(1))
            await client.admin.create_topic("t", PARTITIONS, 3, timeout=10.0)
            await write(client)
            assert await world.healthy(10.0) == ""
            await check(world)
            await world.close_clients()
            world.over = True
        finally:
            transcript.end()

    with transcript.listening(), no_collection():
        run_virtually(main)
    return kept[0]


async def write(client: AsyncClient, records: int = RECORDS) -> None:
    for n in range(records):
        await client.send("t", b"v" * 700, partition=n % PARTITIONS)


def begun(world: World, kind: str, saying: str = "") -> tuple[str, Fault]:
    """Begin a fault of this kind; return (its description, which has `saying` in it, the generator that ends it)."""
    for seed in range(TRIES):
        fault = FAULTS[kind].begin(world, random.Random(seed))
        words = next(fault)
        assert words is not None, f"{kind} cannot happen"
        if saying in words:
            return words, fault
        next(fault, None)
    raise AssertionError(f"{kind} never says {saying!r}")


def others(world: World, *named: int) -> list[SimBroker]:
    return [broker for broker in world.brokers.values() if broker.id not in named]


async def travel_s(world: World, direction: Pair) -> float:
    """Return how long a message of a client's call takes."""
    wire = MessageStream(world.conditions, direction)
    sent_s = world.loop.time()
    wire.send(b"x")
    assert await wire.receive() == b"x"
    return world.loop.time() - sent_s


async def delivered(world: World, seconds: float) -> Counter[Pair]:
    """Return the messages between brokers, by direction, for so long."""
    count: Counter[Pair] = Counter()

    def note(source: int, target: int, *rest: object) -> None:
        count[source, target] += 1

    world.network.on_delivered = note
    await world.clock.sleep(seconds)
    world.network.on_delivered = None
    return count


async def turns(world: World, broker: SimBroker, seconds: float) -> int:
    """Return how many turns a task of the broker's process gets in so many seconds, at 100 a second."""
    count = 0

    async def turn() -> None:
        nonlocal count
        while True:
            await asyncio.sleep(0.01)
            count += 1

    task = broker.process.spawn(turn()) if broker.process.alive else None
    await world.clock.sleep(seconds)
    if task is not None:
        task.cancel()
    return count


def numbers(words: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", words)]


def every_pair(world: World) -> set[Pair]:
    return {(a, b) for a in world.brokers for b in world.brokers if a != b}


def crossing(few: list[int], many: list[int]) -> set[Pair]:
    """Return both directions of each pair."""
    return {pair for a in few for b in many for pair in ((a, b), (b, a))}


async def silent(world: World, kind: str, cut: Callable[[str], set[Pair]], saying: str = "") -> None:
    """Nothing passes the cut directions, everything else talks, and afterwards every broker does."""
    assert (await delivered(world, SEEN_S)).keys() == every_pair(world)
    words, fault = begun(world, kind, saying)
    wanted = cut(words)
    assert wanted
    assert (await delivered(world, SEEN_S)).keys() == every_pair(world) - wanted, words
    next(fault, None)
    await world.clock.sleep(1.0)
    assert (await delivered(world, SEEN_S)).keys() == every_pair(world)
