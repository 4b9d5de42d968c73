"""Faults of clocks. Only one broker's clock is wrong at a time: the guarantees need a majority of right clocks."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tinymq.base.types import METADATA_GROUP
from tinymq_chaos.sim.faults.action import action
from tinymq_chaos.sim.faults.victims import anyone, both_ways, running
from tinymq_chaos.sim.world.brokers import SimBroker
from tinymq_chaos.sim.world.world import World

HOUR_US = 3_600_000_000
JUMPS_H = (1, -1, 8 * 24, -8 * 24)
UNHEARD_S = (1.5, 5.0)  # how long a restarted broker with a wrong clock hears no other broker


def _one_is_wrong(world: World) -> bool:
    return any(broker.skew_us for broker in world.brokers.values())


@action
def wall_jump(world: World, rng: random.Random) -> Iterator[str | None]:
    broker, hours = anyone(world, rng), rng.choice(JUMPS_H)
    if _one_is_wrong(world):
        yield None
        return
    broker.set_clock(hours * HOUR_US, broker.rate)
    yield f"broker {broker.id} by {hours:+d} h"
    broker.set_clock(0, broker.rate)


@action
def wrong_start(world: World, rng: random.Random) -> Iterator[str | None]:
    """A broker restarts with a wrong clock and hears no other broker for a while.

    The fault prefers a broker that leads a partition of which it holds the only replica. Clients still reach the
    broker.
    """
    alone = [b for b in world.brokers.values() if _leads_alone(b)]
    broker, hours = rng.choice(alone) if alone else running(world, rng), rng.choice(JUMPS_H)
    if broker is None or _one_is_wrong(world):
        yield None
        return
    world.cut("wrong start", both_ways([broker.id], [n for n in world.brokers if n != broker.id]))
    broker.set_clock(hours * HOUR_US, broker.rate)
    rng.choice((broker.kill, broker.power_cut))()
    world.clock.call_later(rng.uniform(*UNHEARD_S), lambda: world.mend("wrong start"))
    yield f"broker {broker.id} by {hours:+d} h"
    world.mend("wrong start")
    broker.set_clock(0, broker.rate)


def _leads_alone(broker: SimBroker) -> bool:
    if not broker.running:
        return False
    return any(g.is_leader and len(g.membership.replicas) == 1 and g.id != METADATA_GROUP for g in broker.groups())


@action
def drift(world: World, rng: random.Random) -> Iterator[str | None]:
    rates = {broker: rng.choice((0.95, 1.0, 1.05)) for broker in world.brokers.values()}
    for broker, rate in rates.items():
        broker.set_clock(broker.skew_us, rate)
    yield f"rates {list(rates.values())}"
    for broker in rates:
        broker.set_clock(broker.skew_us, 1.0)
