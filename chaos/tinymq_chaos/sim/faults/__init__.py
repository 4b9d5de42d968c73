"""The faults, as one table: what each does when it begins and when it ends, how often and for how long.

A fault is a generator: it begins, yields what it did in words (its parameters), and ends when it is resumed. None
instead of words: it cannot happen now. What is promised bounds them: damage comes to a minority of disks (`damage.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tinymq_chaos.sim.faults import clocks, damage, disks, joins, network, points, processes
from tinymq_chaos.sim.virtual.disk import POINTS
from tinymq_chaos.sim.world.world import World

Fault = Callable[[World, random.Random], Iterator[str | None]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A row: how often against the others, and how long it lasts, in virtual seconds."""

    begin: Fault
    weight: int  # 0: only where it is asked for
    lasts_s: tuple[float, ...]  # two: something between; else one of these


FAULTS: dict[str, Kind] = {
    "isolate": Kind(network.isolate, 4, (0.3, 1.0, 3.0, 5.0, 8.0)),
    "partition": Kind(network.partition, 4, (0.3, 5.0)),
    "one_way": Kind(network.one_way, 4, (0.3, 5.0)),
    "unheard": Kind(network.unheard, 4, (0.8, 3.0)),
    "cut_link": Kind(network.cut_link, 3, (0.3, 5.0)),
    "chain": Kind(network.chain, 3, (0.5, 4.0, 15.0)),
    "star": Kind(network.star, 2, (0.5, 6.0)),
    "latency": Kind(network.latency, 3, (0.5, 6.0)),
    "loss": Kind(network.loss, 3, (0.5, 6.0)),
    "seesaw": Kind(network.seesaw, 2, (4.0, 10.0)),
    "duplicate": Kind(network.duplicate, 2, (0.5, 5.0)),
    "drop": Kind(network.drop, 2, (0.5, 5.0)),
    "stale": Kind(network.stale, 2, (0.5, 6.0)),
    "reorder": Kind(network.reorder, 2, (0.5, 5.0)),
    "reset": Kind(network.reset, 3, (0.0, 0.1)),
    "client_reset": Kind(network.client_reset, 3, (0.0, 0.1)),
    "slow_disk": Kind(disks.slow_disk, 3, (0.5, 5.0)),
    "hung_disk": Kind(disks.hung_disk, 2, (0.2, 7.0)),
    "fail_sync": Kind(disks.fail_sync, 3, (0.1, 3.0)),
    "disk_full": Kind(disks.disk_full, 2, (0.3, 4.0)),
    "trim": Kind(disks.trim, 3, (0.0, 1.0)),
    "pause": Kind(processes.pause, 4, (0.5, 2.0, 6.0)),
    "kill": Kind(processes.kill, 4, (0.0, 4.0)),
    "kill_all": Kind(processes.kill_all, 2, (0.0, 2.0)),
    "power_cut": Kind(processes.power_cut, 4, (0.0, 4.0)),
    "power_cut_all": Kind(processes.power_cut_all, 3, (0.0, 2.0)),
    "crash_anywhere": Kind(processes.crash_anywhere, 5, (0.1, 2.0)),
    "crash_at_point": Kind(points.crash_at_point, 5, (2.0, 6.0)),
    "stop": Kind(processes.stop, 2, (0.2, 4.0)),
    "rolling_restart": Kind(processes.rolling_restart, 2, (4.0, 9.0)),
    "join": Kind(joins.join, 3, (1.0, 8.0)),
    "wall_jump": Kind(clocks.wall_jump, 2, (0.5, 6.0)),
    "wrong_start": Kind(clocks.wrong_start, 6, (2.0, 7.0)),
    "drift": Kind(clocks.drift, 1, (2.0, 10.0)),
    "wipe": Kind(damage.wipe, 4, (0.5, 4.0)),
    "old_disk": Kind(damage.old_disk, 2, (0.5, 5.0)),
    "next_disk": Kind(damage.next_disk, 2, (4.0, 8.0)),
    "lost_config": Kind(damage.lost_config, 1, (3.0, 6.0)),
    "remove_group": Kind(damage.remove_group, 3, (0.5, 4.0)),
    "flip_bits": Kind(damage.flip_bits, 4, (0.5, 4.0)),
    "read_error": Kind(damage.read_error, 2, (0.5, 3.0)),
}

for _point in POINTS:  # one alone, for who asks for it: the seed draws them together
    _begin = partial(points.crash_at_point, points=(_point,))
    FAULTS[f"crash_at_{_point.replace(' ', '_').replace('-', '_')}"] = Kind(_begin, 0, (2.0, 4.0))
FAULTS["flip_states"] = Kind(partial(damage.flip_bits, kinds=(".state",)), 0, (0.1, 0.5))

DAMAGE = frozenset(
    {
        "wipe",
        "old_disk",
        "next_disk",
        "lost_config",
        "remove_group",
        "flip_bits",
        "read_error",
        "crash_at_point",
        "flip_states",
    }
)
"""What takes from a disk what was synced, or may come with it."""

ALONE = ("pause", "client_reset", "slow_disk", "wall_jump", "drift")
"""What comes to a broker whose registry is in its memory: it cannot be started again on the folder that it leaves."""

__all__ = ["ALONE", "DAMAGE", "FAULTS", "Fault", "Kind"]
