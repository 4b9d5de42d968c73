"""Faults of disks that lose nothing that was synced."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from functools import partial

from tinymq.broker.partition.partition import Partition
from tinymq.raft import Group, Role
from tinymq.simulation.disk_errors import Operation
from tinymq_chaos.sim.faults.action import action
from tinymq_chaos.sim.faults.victims import anyone, running
from tinymq_chaos.sim.world.brokers import DISK_S
from tinymq_chaos.sim.world.world import World

TRIM_NOT = 0.4  # how often a log is left alone
REFUSED: tuple[tuple[str, Operation], ...] = (  # (paths, operation) of a disk error, each as likely as another
    ("groups/*", "write"), ("groups/*.log", "write"), ("groups/*", "truncate"), ("groups/*", "remove"),
    ("groups/*", "open"), ("groups/*", "create"), ("*", "rename"), ("marks*", "write"), ("ballots-*", "write"),
)  # fmt: skip
SYNCED = ("groups/*", "groups/*", "groups/*", "ballots-a", "ballots-b", "marks")


@action
def slow_disk(world: World, rng: random.Random) -> Iterator[str | None]:
    delay_s = rng.choice(((0.005, 0.02), (0.02, 0.03), (0.05, 0.3)))
    chosen = [anyone(world, rng)] if rng.random() < 0.7 else list(world.brokers.values())
    for broker in chosen:
        broker.set_disk(delay_s)
    yield f"twice {delay_s} s at {[b.id for b in chosen]}"
    for broker in chosen:
        broker.set_disk(DISK_S)


@action
def trim(world: World, rng: random.Random) -> Iterator[str | None]:
    """Remove the heads of some logs, as far as their snapshots and batches without offsets of their own allow, as
    retention does.

    A replica that lacks entries which its leader has removed needs the leader's snapshot instead.
    """
    trimmed = []
    for broker in world.brokers.values():
        for group in broker.groups() if broker.up and not broker.process.paused else ():
            log, upto = group.log, rng.randint(0, group.applied_index)
            if group.role not in (Role.LEADER, Role.FOLLOWER) or log.failed is not None or rng.random() < TRIM_NOT:
                continue
            before = log.first_index
            broker.process.do(partial(log.remove_before, min(upto, kept_from(group))))
            if log.first_index > before:
                heads, name = world.history.heads, world.seen.log_of(group.id)
                heads[name] = max(log.log_start_offset, heads.get(name, 0))
                trimmed.append(f"{group.id} of broker {broker.id} to {log.first_index}")
    yield ", ".join(trimmed) or None


def kept_from(group: Group) -> int:
    """Return the index from which on retention keeps a log, whatever its log start."""
    kept = group.machine.state.lowest_kept_index if isinstance(group.machine, Partition) else None
    return group.applied_index if kept is None else kept


@action
def hung_disk(world: World, rng: random.Random) -> Iterator[str | None]:
    """No operation of the disk ends before the fault does."""
    broker = running(world, rng)
    if broker is None:
        yield None
        return
    disk = broker.disk
    hung = disk.hung = world.loop.create_future()
    yield f"of broker {broker.id}"
    disk.hung = None
    hung.set_result(None)


@action
def hung_file(world: World, rng: random.Random) -> Iterator[str | None]:
    """No call that uses this file ends before the fault does; all other files are well."""
    broker = running(world, rng)
    paths = broker.files.files_of(lambda path: path.startswith("groups/") or path in SYNCED) if broker else []
    if broker is None or not paths:
        yield None
        return
    disk, broker.files.watched = broker.disk, rng.choice(paths)
    files, hung = broker.files, world.loop.create_future()
    disk.hung_file = hung
    yield f"{files.watched} of broker {broker.id}"
    disk.hung_file, files.watched = None, ""
    hung.set_result(None)


@action
def disk_error(world: World, rng: random.Random) -> Iterator[str | None]:
    """One kind of operation fails with EIO. A replica stays failed until its broker restarts, which ends the fault."""
    yield from _failing(world, rng, errno.EIO, *rng.choice(REFUSED))


@action
def no_room(world: World, rng: random.Random) -> Iterator[str | None]:
    """No file and no directory can be made. Half the time there is room again while the process still runs."""
    yield from _failing(world, rng, errno.ENOSPC, "groups/*", "create", "make")


def _failing(
    world: World, rng: random.Random, error: int, pattern: str, *operations: Operation
) -> Iterator[str | None]:
    broker = running(world, rng)
    if broker is None:
        yield None
        return
    files, mended_s = broker.files, rng.uniform(0.0, 2.0) if rng.random() < 0.5 else None
    broker.tampered = True
    for operation in operations:
        files.errors.fail(operation, pattern, error)
    if mended_s is not None:
        world.clock.call_later(mended_s, files.errors.mend)
    words = "" if mended_s is None else f", for {mended_s:.3f} s"
    yield f"{' and '.join(operations)} {pattern} at broker {broker.id}{words}"
    files.errors.mend()
    if broker.up:
        broker.kill()


@action
def fail_sync(world: World, rng: random.Random) -> Iterator[str | None]:
    """Fail one sync with EIO. The replica stays failed until its broker restarts, which ends the fault."""
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


@action
def disk_full(world: World, rng: random.Random) -> Iterator[str | None]:
    broker = running(world, rng)
    if broker is None:
        yield None
        return
    left = rng.randrange(30_000)
    broker.tampered = True
    files, room_s = broker.files, rng.uniform(0.0, 2.0) if rng.random() < 0.5 else None
    files.disk_full(left)
    if room_s is not None:  # room again, while the process still runs
        world.clock.call_later(room_s, lambda: files.disk_full(None))
    yield f"{left} bytes are left at broker {broker.id}{'' if room_s is None else f', for {room_s:.3f} s'}"
    files.disk_full(None)
    if broker.up:
        broker.kill()
