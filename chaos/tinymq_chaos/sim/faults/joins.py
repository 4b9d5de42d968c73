"""Brokers that join a running cluster under load, together with other faults. Some of them end while they join.

Topics created afterwards are placed on the new broker, too, and so show its state.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from functools import partial

from tinymq.base.errors import TinymqError
from tinymq_chaos.history import topic_key
from tinymq_chaos.sim.faults.action import action
from tinymq_chaos.sim.faults.load import CALL_S, BackgroundLoad
from tinymq_chaos.sim.world.brokers import SimBroker
from tinymq_chaos.sim.world.world import World
from tinymq_chaos.workloads.producers import NumberedProducer, lone

BROKERS_MAX = 7
ENDS = 0.5  # how often the broker ends while it joins, within so many seconds; it restarts
WITHIN_S = (0.02, 0.1, 0.5)
LOOK_S = 0.1


@action
def join(world: World, rng: random.Random) -> Iterator[str | None]:
    """A new machine joins: its broker starts with --join."""
    if len(world.brokers) >= BROKERS_MAX:
        yield None
        return
    broker, stop, words = world.add_broker(), asyncio.Event(), ""
    broker.start()
    process = broker.process
    if rng.random() < ENDS:
        after_s = rng.uniform(0, rng.choice(WITHIN_S))
        end = rng.choice((broker.kill, broker.power_cut))
        world.clock.call_later(after_s, partial(_end, broker, process, end))
        words = f", and ends after {after_s:.3f} s"
    beside = BackgroundLoad(world, random.Random(rng.random()), stop)
    asyncio.ensure_future(_use(beside, broker))  # noqa: RUF006
    yield f"broker {broker.id}{words}"
    stop.set()


def _end(broker: SimBroker, process: object, end: object) -> None:
    assert callable(end)
    if broker.up and broker.process is process:
        end()


async def _use(beside: BackgroundLoad, broker: SimBroker) -> None:
    """Wait until the broker serves; then create a topic and write to it."""
    while not beside.stop.is_set() and not broker.serves:
        await beside.clock.sleep(LOOK_S)
    if beside.stop.is_set():
        return
    client, name = beside.client(), await beside.topic()
    try:
        found = await client.admin.describe_topic(name, timeout=CALL_S)
    except TinymqError:
        return
    brokers = sorted({replica for partition in found.partitions for replica in partition.replicas})
    beside.world.say(f"topic {name} is on {brokers}")
    await lone(beside, NumberedProducer(beside, name, name, topic_key(name, found.topic_id), 1), client)
