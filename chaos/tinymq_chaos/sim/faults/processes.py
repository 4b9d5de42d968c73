"""Faults of processes and machines: they pause, end or lose power at any point, and start again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from tinymq_chaos.sim.faults.action import action
from tinymq_chaos.sim.faults.victims import running
from tinymq_chaos.sim.world.brokers import SimBroker
from tinymq_chaos.sim.world.world import World

# steps of a broker's loop before a crash anywhere: an idle loop makes about 100 per second
STEPS_MEAN = (20.0, 100.0, 400.0)
AT_WRITE = 0.5  # how often a power cut waits for an unsynced write: for so many operations, and so long
OPERATIONS_MAX = 6
PATIENCE_S = 1.0
EACH_S = 1.0  # of a rolling restart, between two brokers


@action
def pause(world: World, rng: random.Random) -> Iterator[str | None]:
    broker = running(world, rng)
    if broker is None:
        yield None
        return
    process = broker.process
    world.pause(broker)
    yield f"broker {broker.id}"
    world.resume(process)


def _down(brokers: list[SimBroker], end: Callable[[SimBroker], None]) -> Iterator[str | None]:
    """End the brokers, and start them when the fault ends."""
    if not brokers:
        yield None
        return
    for broker in brokers:
        broker.wanted = False
        if broker.process.paused:
            broker.world.wake(broker.process)
        end(broker)
    yield f"{[b.id for b in brokers]}"
    for broker in brokers:
        broker.wanted = True
        broker.revive()


def _one(world: World, rng: random.Random) -> list[SimBroker]:
    broker = running(world, rng)
    return [broker] if broker is not None else []


def _several(world: World, rng: random.Random) -> list[SimBroker]:
    """Return all brokers that are up, or some, but more than one."""
    up = [b for b in world.brokers.values() if b.up]
    if len(up) < 2:
        return []
    return up if rng.random() < 0.6 else rng.sample(up, rng.randint(2, len(up)))


@action
def kill(world: World, rng: random.Random) -> Iterator[str | None]:
    return _down(_one(world, rng), lambda b: b.kill())


@action
def kill_all(world: World, rng: random.Random) -> Iterator[str | None]:
    return _down(_several(world, rng), lambda b: b.kill())


@action
def power_cut(world: World, rng: random.Random) -> Iterator[str | None]:
    return _lose_power(world, rng, _one(world, rng))


@action
def power_cut_all(world: World, rng: random.Random) -> Iterator[str | None]:
    return _lose_power(world, rng, _several(world, rng))


def _lose_power(world: World, rng: random.Random, brokers: list[SimBroker]) -> Iterator[str | None]:
    """Cut the power of all of them at one moment; half the time when one of them has an unsynced write."""
    processes = {broker: broker.process for broker in brokers}

    def cut() -> None:
        for broker, process in processes.items():
            if broker.up and broker.process is process:
                world.wake(process)
                broker.power_cut()
        processes.clear()

    if not brokers:
        yield None
        return
    words = f"{[b.id for b in brokers]}"
    for broker in brokers:
        broker.wanted = False
    if rng.random() < AT_WRITE:
        first, operations = rng.choice(brokers), rng.randrange(OPERATIONS_MAX)
        first.power_cut_at_write(operations, cut)
        world.clock.call_later(PATIENCE_S, cut)
        yield f"{words}, once broker {first.id} has done {operations} operations"
    else:
        cut()
        yield words
    cut()
    for broker in brokers:
        broker.wanted = True
        broker.revive()


@action
def stop(world: World, rng: random.Random) -> Iterator[str | None]:
    """SIGTERM."""
    return _down(_one(world, rng), lambda b: b.stop_politely())


@action
def crash_anywhere(world: World, rng: random.Random) -> Iterator[str | None]:
    """End a broker's process between any two steps of its loop."""
    broker = running(world, rng)
    if broker is None:
        yield None
        return
    steps, power = int(rng.expovariate(1 / rng.choice(STEPS_MEAN))) + 1, rng.random() < 0.5
    process = broker.process
    broker.crash_soon(steps, power)
    yield f"broker {broker.id} after {steps} steps, {'power cut' if power else 'kill -9'}"
    process.forget_crash()  # the broker was too idle to get there


@action
def rolling_restart(world: World, rng: random.Random) -> Iterator[str | None]:
    """Stop and start one broker after another, the next one when all is well."""
    left = rng.sample(list(world.brokers.values()), len(world.brokers))
    over = False

    def go_on() -> None:
        if not over and left and not world.unhealthy():
            broker = left.pop()
            broker.stop_politely()
            broker.wanted = True  # the supervisor starts the broker
        if not over and left:
            world.clock.call_later(EACH_S, go_on)

    go_on()
    yield f"{[b.id for b in reversed(left)]}"
    over = True
