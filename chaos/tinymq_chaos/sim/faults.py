"""The faults, as one table: what each does when it begins and when it ends, how often and for how long.

A fault is a generator: it begins, yields what it did in words (its parameters), and ends when it is resumed. None
instead of words: it cannot happen now. The world's promises bound it: damage comes to one broker at a time, and to
another one only when that has recovered.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tinymq_chaos.sim.brokers import SimBroker
from tinymq_chaos.sim.disk import POINTS
from tinymq_chaos.sim.world import LINK_S, World

Fault = Callable[[World, random.Random], Iterator[str | None]]

HOUR_US = 3_600_000_000
EIGHT_DAYS_US = 8 * 24 * HOUR_US


def _one(world: World, rng: random.Random) -> SimBroker:
    """Anyone; a leader of something rather than not."""
    return rng.choice(list(world.brokers.values()))


def _up(world: World, rng: random.Random) -> SimBroker | None:
    up = [b for b in world.brokers.values() if b.up and not b.process.paused]
    return rng.choice(up) if up else None


def _both(some: list[int], others: list[int]) -> list[tuple[int, int]]:
    return [pair for a in some for b in others for pair in ((a, b), (b, a))]


def _sides(world: World, rng: random.Random) -> tuple[list[int], list[int]]:
    """A minority of brokers and the others; clients stay on the side of their choice."""
    ids = list(world.brokers)
    rng.shuffle(ids)
    cut = rng.randint(1, len(ids) // 2)
    few, many = sorted(ids[:cut]), sorted(ids[cut:])
    for client in world.clients.clients:
        if rng.random() < 0.3:
            rng.choice((few, many)).append(client)
    return few, many


# ---- network -----------------------------------------------------------------------------------------------


def partition(world: World, rng: random.Random) -> Iterator[str | None]:
    few, many = _sides(world, rng)
    world.cut("partition", _both(few, many))
    yield f"{few} | {many}"
    world.mend("partition")


def one_way(world: World, rng: random.Random) -> Iterator[str | None]:
    few, many = _sides(world, rng)
    if rng.random() < 0.5:
        few, many = many, few
    world.cut("one way", [(a, b) for a in few for b in many])
    yield f"nothing gets from {few} to {many}"
    world.mend("one way")


def chain(world: World, rng: random.Random) -> Iterator[str | None]:
    ids = rng.sample(list(world.brokers), len(world.brokers))
    broken = [(a, b) for at, a in enumerate(ids) for b in ids[at + 2 :]]
    world.cut("chain", [pair for a, b in broken for pair in ((a, b), (b, a))])
    yield " - ".join(map(str, ids))
    world.mend("chain")


def star(world: World, rng: random.Random) -> Iterator[str | None]:
    centre, *rays = rng.sample(list(world.brokers), len(world.brokers))
    world.cut("star", [(a, b) for a in rays for b in rays if a != b])
    yield f"only {centre} reaches the others"
    world.mend("star")


def delays(world: World, rng: random.Random) -> Iterator[str | None]:
    broker_id = rng.choice(list(world.brokers))
    seconds, jitter_s = rng.choice(((0.001, 0.002), (0.01, 0.02), (0.05, 0.1), (0.1, 0.2), (0.3, 0.3)))
    chosen = [broker_id] if rng.random() < 0.5 else list(world.brokers)
    for each in chosen:
        world.links(each, seconds, jitter_s)
    yield f"{seconds} s and up to {jitter_s} s to and from {chosen}"
    for each in chosen:
        world.links(each, *LINK_S)


def loss(world: World, rng: random.Random) -> Iterator[str | None]:
    """Packets are lost and sent again: what follows them waits."""
    share = rng.choice((0.01, 0.05, 0.2))
    directions = _some_directions(world, rng)
    for direction in directions:
        world.weather.of(direction).loss = share
    yield f"{share:.0%} of packets, {_in_words(directions)}"
    for direction in directions:
        world.weather.of(direction).loss = 0.0


def duplication(world: World, rng: random.Random) -> Iterator[str | None]:
    share = rng.choice((0.05, 0.3))
    directions = _some_directions(world, rng)
    for direction in directions:
        world.weather.of(direction).duplicate = share
    yield f"{share:.0%} of control messages, {_in_words(directions)}"
    for direction in directions:
        world.weather.of(direction).duplicate = 0.0


def reordering(world: World, rng: random.Random) -> Iterator[str | None]:
    """Great jitter: connections overtake one another; each keeps its own order."""
    directions = _some_directions(world, rng)
    jitter_s = rng.choice((0.05, 0.2))
    before = {d: world.weather.of(d).jitter_s for d in directions}
    for direction in directions:
        world.weather.of(direction).jitter_s = jitter_s
    yield f"up to {jitter_s} s apart, {_in_words(directions)}"
    for direction in directions:
        world.weather.of(direction).jitter_s = min(before[direction], LINK_S[1])


def resets(world: World, rng: random.Random) -> Iterator[str | None]:
    places = [*world.brokers, *world.clients.clients]
    some = [tuple(rng.sample(places, 2)) for _ in range(rng.randint(1, 6))]
    for a, b in some:
        world.network.reset(a, b)
        world.clients.reset(a, b)
    yield f"between {some}"


def _some_directions(world: World, rng: random.Random) -> list[tuple[int, int]]:
    every = [(a, b) for a in world.brokers for b in world.brokers if a != b]
    return every if rng.random() < 0.4 else rng.sample(every, 2)


def _in_words(directions: list[tuple[int, int]]) -> str:
    return ", ".join(f"{a} -> {b}" for a, b in directions) if len(directions) < 3 else "everywhere"


# ---- disks -------------------------------------------------------------------------------------------------


def slow_disk(world: World, rng: random.Random) -> Iterator[str | None]:
    delay_s = rng.choice(((0.005, 0.02), (0.02, 0.03), (0.05, 0.3)))
    chosen = [_one(world, rng)] if rng.random() < 0.7 else list(world.brokers.values())
    before = {b: b.disk_s for b in chosen}
    for broker in chosen:
        broker.set_disk(delay_s)
    yield f"{delay_s} s at {[b.id for b in chosen]}"
    for broker in chosen:
        broker.set_disk(before[broker])


def hung_disk(world: World, rng: random.Random) -> Iterator[str | None]:
    """Nothing comes to an end until the fault does."""
    broker = _up(world, rng)
    if broker is None:
        yield None
        return
    disk = broker.disk
    hung = disk.hung = world.loop.create_future()
    yield f"of broker {broker.id}"
    disk.hung = None
    hung.set_result(None)


def failing_sync(world: World, rng: random.Random) -> Iterator[str | None]:
    broker = _up(world, rng)
    if broker is None:
        yield None
        return
    pattern = rng.choice(("groups/*", "groups/*", "groups/*", "ballots-a", "ballots-b", "marks"))
    starts = broker.starts
    broker.files.fail_sync(pattern)
    yield f"the next sync of {pattern} at broker {broker.id}"
    if broker.up and broker.starts == starts:  # a failed replica stays so until its broker starts again
        rng.choice((broker.kill, broker.power_cut))()


def full_disk(world: World, rng: random.Random) -> Iterator[str | None]:
    broker = _up(world, rng)
    if broker is None:
        yield None
        return
    left = rng.randrange(30_000)
    broker.files.disk_full(left)
    yield f"{left} bytes are left at broker {broker.id}"
    broker.files.disk_full(None)
    if broker.up:
        broker.kill()


# ---- processes ---------------------------------------------------------------------------------------------


def pause(world: World, rng: random.Random) -> Iterator[str | None]:
    broker = _up(world, rng)
    if broker is None:
        yield None
        return
    process = broker.process
    world.pause(broker)
    yield f"broker {broker.id}"
    if broker.up and broker.process is process:
        world.resume(broker)
    world.mend(f"pause {broker.id}")


def _down(world: World, brokers: list[SimBroker], end: Callable[[SimBroker], None], words: str) -> Iterator[str | None]:
    """They end, and start again when the fault is over."""
    if not brokers:
        yield None
        return
    for broker in brokers:
        broker.wanted = False
        end(broker)
    yield f"{words} {[b.id for b in brokers]}"
    for broker in brokers:
        broker.wanted = True
        broker.revive()


def kill(world: World, rng: random.Random) -> Iterator[str | None]:
    broker = _up(world, rng)
    yield from _down(world, [broker] if broker is not None else [], lambda b: b.kill(), "kill -9")


def power_cut(world: World, rng: random.Random) -> Iterator[str | None]:
    broker = _up(world, rng)
    yield from _down(world, [broker] if broker is not None else [], lambda b: b.power_cut(), "power cut")


def some_at_once(world: World, rng: random.Random) -> Iterator[str | None]:
    """More than one: a majority, or all."""
    up = [b for b in world.brokers.values() if b.up]
    if len(up) < 2:
        yield None
        return
    some = rng.sample(up, rng.randint(2, len(up)))
    for broker in some:
        if broker.process.paused:
            world.resume(broker)
    if rng.random() < 0.6:
        yield from _down(world, some, lambda b: b.power_cut(), "power cut")
    else:
        yield from _down(world, some, lambda b: b.kill(), "kill -9")


def crash_anywhere(world: World, rng: random.Random) -> Iterator[str | None]:
    broker = _up(world, rng)
    if broker is None:
        yield None
        return
    steps, power = int(rng.expovariate(1 / 400)) + 1, rng.random() < 0.5
    broker.crash_soon(steps, power)
    yield f"broker {broker.id} after {steps} steps, power {power}"


def crash_at_point(world: World, rng: random.Random) -> Iterator[str | None]:
    broker = _up(world, rng)
    if broker is None:
        yield None
        return
    point = rng.choice(list(POINTS))
    after = rng.randrange(5)
    broker.files.crash_at(point, skip=rng.randrange(3), operations_after=after, bytes_written=rng.randrange(600))
    yield f"broker {broker.id} at {point} and {after} operations more"
    broker.files.forget_crash()


def clean_stop(world: World, rng: random.Random) -> Iterator[str | None]:
    broker = _up(world, rng)
    yield from _down(world, [broker] if broker is not None else [], lambda b: b.stop_politely(), "SIGTERM")


# ---- clocks ------------------------------------------------------------------------------------------------


def wall_jump(world: World, rng: random.Random) -> Iterator[str | None]:
    broker = _one(world, rng)
    jump_us = rng.choice((HOUR_US, -HOUR_US, EIGHT_DAYS_US, -EIGHT_DAYS_US))
    broker.set_clock(jump_us, broker.rate)
    yield f"broker {broker.id} by {jump_us / HOUR_US:+.0f} h"
    broker.set_clock(0, broker.rate)


def drift(world: World, rng: random.Random) -> Iterator[str | None]:
    rates = {broker: rng.choice((0.95, 1.0, 1.05)) for broker in world.brokers.values()}
    for broker, rate in rates.items():
        broker.set_clock(broker.skew_us, rate)
    yield f"rates {list(rates.values())}"
    for broker in rates:
        broker.set_clock(broker.skew_us, 1.0)


# ---- the table ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """A row: how often against the others, and how long it lasts, in virtual seconds."""

    begin: Fault
    weight: int
    lasts_s: tuple[float, ...]  # one of these, or between two


FAULTS: dict[str, Kind] = {
    "partition": Kind(partition, 4, (0.3, 5.0)),
    "one way": Kind(one_way, 4, (0.3, 5.0)),
    "chain": Kind(chain, 3, (0.5, 6.0)),
    "star": Kind(star, 2, (0.5, 6.0)),
    "delays": Kind(delays, 3, (0.5, 6.0)),
    "loss": Kind(loss, 3, (0.5, 6.0)),
    "duplication": Kind(duplication, 2, (0.5, 5.0)),
    "reordering": Kind(reordering, 2, (0.5, 5.0)),
    "resets": Kind(resets, 3, (0.0, 0.1)),
    "slow disk": Kind(slow_disk, 3, (0.5, 5.0)),
    "hung disk": Kind(hung_disk, 2, (0.2, 4.0)),
    "failing sync": Kind(failing_sync, 3, (0.1, 3.0)),
    "full disk": Kind(full_disk, 2, (0.3, 4.0)),
    "pause": Kind(pause, 4, (0.5, 2.0, 6.0)),
    "kill": Kind(kill, 4, (0.0, 4.0)),
    "power cut": Kind(power_cut, 4, (0.0, 4.0)),
    "some at once": Kind(some_at_once, 4, (0.0, 2.0)),
    "crash anywhere": Kind(crash_anywhere, 5, (0.1, 2.0)),
    "crash at a point": Kind(crash_at_point, 5, (0.5, 4.0)),
    "clean stop": Kind(clean_stop, 2, (0.2, 4.0)),
    "wall jump": Kind(wall_jump, 2, (0.5, 6.0)),
    "drift": Kind(drift, 1, (2.0, 10.0)),
}
