"""The effects of clock faults on a world (test_sim_faults.py)."""

from __future__ import annotations

import random

import pytest

from tests.chaos.worlds import begun, numbers
from tinymq_chaos.sim.faults.clocks import HOUR_US
from tinymq_chaos.sim.virtual.event_loop import WALL_START_US
from tinymq_chaos.sim.world.world import World


async def starts_wrong(world: World) -> None:
    """Another process starts with another clock, and leads its single replica before it hears any other broker."""
    client = world.client(random.Random(3))
    for topic in ("alone", "later"):  # the second topic tells the holder of the first that its creation is committed
        await client.admin.create_topic(topic, 1, 1, timeout=10.0)
    await world.clock.sleep(0.5)
    starts = {n: broker.starts for n, broker in world.brokers.items()}
    words, fault = begun(world, "wrong_start")
    broker = world.brokers[int(words.split()[1])]
    assert not broker.up
    leads_alone = lambda: any(len(g.membership.replicas) == 1 and g.is_leader for g in broker.groups())  # noqa: E731
    await world.until(leads_alone, 4.0, "it leads")
    assert broker.app.host.count_alive() == 1
    assert broker.clock.wall_us() - world.clock.wall_us() == int(words.split()[3]) * HOUR_US
    next(fault, None)
    assert broker.skew_us == 0
    assert {n: b.starts - starts[n] for n, b in world.brokers.items()} == {n: int(n == broker.id) for n in starts}
    assert await world.healthy(10.0) == ""


async def wall_jumps(world: World) -> None:
    def skews_us() -> dict[int, int]:
        now_us = WALL_START_US + int(world.loop.time() * 1e6)
        return {b.id: b.clock.wall_us() - now_us for b in world.brokers.values()}

    assert {*skews_us().values()} == {0}
    for hours in (1, -1, 192, -192):
        words, fault = begun(world, "wall_jump", f"by {hours:+d} h")
        moved = skews_us()
        assert moved.pop(numbers(words)[0]) == hours * HOUR_US
        assert {*moved.values()} == {0}
        next(fault, None)
        assert {*skews_us().values()} == {0}


async def drifts(world: World) -> None:
    """A second of the broker is shorter or longer, and its timers end accordingly."""

    async def seconds() -> list[float]:
        before = [b.clock.monotonic() for b in world.brokers.values()]
        await world.clock.sleep(1.0)
        return [round(b.clock.monotonic() - s, 6) for b, s in zip(world.brokers.values(), before, strict=True)]

    assert await seconds() == [1.0, 1.0, 1.0]
    _, fault = begun(world, "drift", "[0.95, 1.05,")
    assert (await seconds())[:2] == [0.95, 1.05]
    began_s = world.loop.time()
    await world.brokers[2].clock.sleep(1.05)
    assert world.loop.time() - began_s == pytest.approx(1.0)
    next(fault, None)
    assert await seconds() == [1.0, 1.0, 1.0]
