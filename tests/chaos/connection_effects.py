"""The effects of faults of single connections between brokers."""

from __future__ import annotations

import re
from collections import Counter

from tests.chaos.worlds import begun, every_pair, write
from tinymq.raft.net.transport import Channel
from tinymq_chaos.sim.world.world import World

SEEN_S = 1.0
Sent = Counter[tuple[int, int, Channel]]


async def delivered(world: World, seconds: float = SEEN_S) -> Sent:
    """Return the messages between brokers, by direction and channel, for so long, under load."""
    count: Sent = Counter()

    def note(source: int, target: int, channel: Channel, *rest: object) -> None:
        count[source, target, channel] += 1

    world.network.on_delivered = note
    await world.clock.sleep(seconds)
    world.network.on_delivered = None
    return count


async def cuts_a_channel(world: World) -> None:
    words, fault = begun(world, "cut_channel", saying="CONTROL of broker")
    (broker,) = map(int, re.findall(r"\d+", words))
    seen = await delivered(world)
    cut = {pair for pair in every_pair(world) if broker in pair}
    assert not any(seen[a, b, Channel.CONTROL] for a, b in cut), words
    assert all(seen[a, b, Channel.CONTROL] for a, b in every_pair(world) - cut), words
    for a, b in cut:
        assert world.network.connected(a, b, Channel.BULK), "the other kind is well"
    next(fault, None)
    await world.clock.sleep(1.0)
    seen = await delivered(world)
    assert all(seen[a, b, Channel.CONTROL] for a, b in every_pair(world))


async def kills_a_connection(world: World) -> None:
    words, fault = begun(world, "dead_connection", saying="CONTROL")
    a, b = map(int, re.findall(r"\d+", words))
    seen = await delivered(world)
    assert not seen[a, b, Channel.CONTROL], words
    assert all(seen[x, y, Channel.CONTROL] for x, y in every_pair(world) - {(a, b)}), words
    next(fault, None)
    await world.clock.sleep(1.0)
    assert (await delivered(world))[a, b, Channel.CONTROL]
    assert await world.healthy(20.0) == ""
    await write(world._opened[0], 6)
