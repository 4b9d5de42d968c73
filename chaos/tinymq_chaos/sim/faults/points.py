"""Crashes at named points of disk work, together with load that reaches these points.

A disk passes few of the points at any moment, so a crash alone would hardly ever hit one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial

from tinymq.base.errors import TinymqError
from tinymq.base.types import METADATA_GROUP
from tinymq.raft import Role
from tinymq_chaos.history import topic_key
from tinymq_chaos.sim.faults import damage
from tinymq_chaos.sim.faults.action import action
from tinymq_chaos.sim.faults.disks import kept_from
from tinymq_chaos.sim.faults.load import BackgroundLoad
from tinymq_chaos.sim.faults.victims import both_ways, running
from tinymq_chaos.sim.virtual.disk import POINTS
from tinymq_chaos.sim.world.brokers import SimBroker
from tinymq_chaos.sim.world.world import World
from tinymq_chaos.workloads.producers import NumberedProducer, batches

LATELY = 0.5  # how often the fault takes a point that this disk has passed lately
RARELY_SKIPPED = ("set-aside", "install", "forming", "topic creation", "cut", "head")  # disks pass these seldom
ALONE_S = 1.6  # how long a leader is cut off: others elect another one, and its own tail is cut afterwards
EACH_S = 0.3  # between two removals or changes
CALL_S = 2.0
CUT = "at point"

Company = Callable[[World, random.Random], Iterator[str | None]]


@action
def crash_at_point(world: World, rng: random.Random, points: Sequence[str] = tuple(POINTS)) -> Iterator[str | None]:
    """Crash a broker in the middle of its disk work."""
    broker = running(world, rng)
    if broker is None:
        yield None
        return
    lately = [point for point in broker.files.passed_lately if point in points]
    point = rng.choice(lately) if lately and rng.random() < LATELY else rng.choice(points)
    if point == "cut":
        broker = rng.choice([b for b in world.brokers.values() if b.running and _leads(b)] or [broker])
    if point == "install":
        for other in world.brokers.values():
            _remove_heads_of(other)
    words, stop = "", asyncio.Event()
    damaged = _damaging(world, rng, point)
    if damaged is not None:
        words, broker = damaged
    elif point in BESIDE:
        asyncio.ensure_future(BESIDE[point](BackgroundLoad(world, random.Random(rng.random()), stop), broker))  # noqa: RUF006
    after, skip = rng.randrange(rng.choice((2, 5))), rng.randrange(2 if point in RARELY_SKIPPED else 3)
    broker.files.crash_at(point, skip=skip, operations_after=after, bytes_written=rng.randrange(600))
    broker.wanted = True
    broker.revive()
    yield f"broker {broker.id} at: {point}, and {after} operations{words}"
    broker.files.forget_crash()
    world.mend(CUT)
    stop.set()


def _damaging(world: World, rng: random.Random, point: str) -> tuple[str, SimBroker] | None:
    """Return damage whose repair passes this point, and the damaged broker.

    None if there is no such damage, or if no broker may be damaged now.
    """
    faults = DAMAGE.get(point)
    if faults is None:
        return None
    fault = rng.choice(faults)(world, rng)
    words = next(fault)
    if words is None:
        return None
    (broker,) = (b for b in world.brokers.values() if b.damaged)
    if broker.up:
        broker.kill()
    return f"; it is repaired: {words}", broker


def _leads(broker: SimBroker) -> bool:
    return any(group.is_leader for group in broker.groups())


def _remove_heads_of(broker: SimBroker) -> None:
    for group in broker.groups() if broker.running else ():
        if group.role in (Role.LEADER, Role.FOLLOWER) and group.log.failed is None:
            broker.process.do(partial(group.log.remove_before, kept_from(group)))


async def _remove_heads(beside: BackgroundLoad, broker: SimBroker) -> None:
    """Remove the heads of all its logs, again and again."""
    while not beside.stop.is_set():
        _remove_heads_of(broker)
        await beside.clock.sleep(EACH_S)


async def _cut_off(beside: BackgroundLoad, broker: SimBroker) -> None:
    """Cut the broker off. The entries that it appends while the others elect another leader are cut later."""
    world, others = beside.world, [n for n in beside.world.brokers if n != broker.id]
    while not beside.stop.is_set():
        world.cut(CUT, both_ways([broker.id], others))
        await world.clock.sleep(ALONE_S)
        world.mend(CUT)
        await world.clock.sleep(EACH_S)


async def _cut_off_leader(beside: BackgroundLoad, broker: SimBroker) -> None:
    """Cut off one leader after another, so that brokers vote."""
    await _cut_off(beside, beside.world.leader(METADATA_GROUP) or broker)


async def _make_topics(beside: BackgroundLoad, broker: SimBroker) -> None:
    """Create topics and delete them."""
    client = beside.client()
    while not beside.stop.is_set():
        await beside.topic()
        await beside.clock.sleep(EACH_S)
        with contextlib.suppress(TinymqError):
            await client.admin.delete_topic(beside.name, timeout=CALL_S)
        await beside.clock.sleep(EACH_S)


async def _write_much(beside: BackgroundLoad, broker: SimBroker) -> None:
    """Write into one topic."""
    client, name = beside.client(), await beside.topic()
    with contextlib.suppress(TinymqError):
        key = topic_key(name, (await client.admin.describe_topic(name, timeout=CALL_S)).topic_id)
        await batches(beside, NumberedProducer(beside, name, name, key, 1), client)


DAMAGE: dict[str, tuple[Company, ...]] = {
    "forming": (damage.wipe,),
    "install": (damage.remove_group, partial(damage.flip_bits, kinds=(".state", ".log"))),
    "set-aside": (partial(damage.flip_bits, kinds=(".state", ".log")),),
}
BESIDE: dict[str, Callable[[BackgroundLoad, SimBroker], Coroutine[None, None, None]]] = {
    "head": _remove_heads,
    "cut": _cut_off,
    "ballots": _cut_off_leader,
    "segment roll": _write_much,
    "topic creation": _make_topics,
    "topic deletion": _make_topics,
}
