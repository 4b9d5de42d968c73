"""Faults of clocks."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tinymq_chaos.sim.faults.chosen import anyone
from tinymq_chaos.sim.world import World

HOUR_US = 3_600_000_000
JUMPS_H = (1, -1, 8 * 24, -8 * 24)


def wall_jump(world: World, rng: random.Random) -> Iterator[str | None]:
    broker, hours = anyone(world, rng), rng.choice(JUMPS_H)
    broker.set_clock(hours * HOUR_US, broker.rate)
    yield f"broker {broker.id} by {hours:+d} h"
    broker.set_clock(0, broker.rate)


def drift(world: World, rng: random.Random) -> Iterator[str | None]:
    rates = {broker: rng.choice((0.95, 1.0, 1.05)) for broker in world.brokers.values()}
    for broker, rate in rates.items():
        broker.set_clock(broker.skew_us, rate)
    yield f"rates {list(rates.values())}"
    for broker in rates:
        broker.set_clock(broker.skew_us, 1.0)
