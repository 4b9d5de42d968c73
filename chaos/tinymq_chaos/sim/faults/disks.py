"""Faults of disks that lose nothing that was synced."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tinymq_chaos.sim.brokers import DISK_S
from tinymq_chaos.sim.faults.chosen import anyone, running
from tinymq_chaos.sim.world import World

SYNCED = ("groups/*", "groups/*", "groups/*", "ballots-a", "ballots-b", "marks")


def slow_disk(world: World, rng: random.Random) -> Iterator[str | None]:
    delay_s = rng.choice(((0.005, 0.02), (0.02, 0.03), (0.05, 0.3)))
    chosen = [anyone(world, rng)] if rng.random() < 0.7 else list(world.brokers.values())
    for broker in chosen:
        broker.set_disk(delay_s)
    yield f"twice {delay_s} s at {[b.id for b in chosen]}"
    for broker in chosen:
        broker.set_disk(DISK_S)


def hung_disk(world: World, rng: random.Random) -> Iterator[str | None]:
    """Nothing comes to an end until the fault does."""
    broker = running(world, rng)
    if broker is None:
        yield None
        return
    disk = broker.disk
    hung = disk.hung = world.loop.create_future()
    yield f"of broker {broker.id}"
    disk.hung = None
    hung.set_result(None)


def fail_sync(world: World, rng: random.Random) -> Iterator[str | None]:
    """EIO once. A replica whose sync failed stays so until its broker is started again, which ends the fault."""
    broker = running(world, rng)
    if broker is None:
        yield None
        return
    pattern, starts = rng.choice(SYNCED), broker.starts
    broker.tampered = True
    broker.files.fail_sync(pattern)
    yield f"the next sync of {pattern} at broker {broker.id}"
    if broker.up and broker.starts == starts:
        rng.choice((broker.kill, broker.power_cut))()


def disk_full(world: World, rng: random.Random) -> Iterator[str | None]:
    broker = running(world, rng)
    if broker is None:
        yield None
        return
    left = rng.randrange(30_000)
    broker.tampered = True
    broker.files.disk_full(left)
    yield f"{left} bytes are left at broker {broker.id}"
    broker.files.disk_full(None)
    if broker.up:
        broker.kill()
