"""The faults of the simulator: the rows of tinymq_chaos/faults.py that it simulates, with their actions.

The promises of tinymq bound the faults: at most a minority of disks is damaged (damage.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tinymq_chaos import faults as table
from tinymq_chaos.faults import Simulated
from tinymq_chaos.sim.faults import alterations, clocks, damage, disks, joins, network, points, processes, twins
from tinymq_chaos.sim.faults.action import ACTIONS, Action
from tinymq_chaos.sim.virtual.disk import POINTS

FAMILIES = (
    alterations,
    network,
    disks,
    processes,
    points,
    joins,
    clocks,
    damage,
    twins,
)  # imported for the actions that they register


@dataclass(frozen=True, slots=True)
class SimFault:
    """A fault that the simulator can do: its action, and how it is drawn."""

    begin: Action
    drawn: Simulated


FAULTS: dict[str, SimFault] = {
    name: SimFault(ACTIONS[name], row.simulated)
    for name, row in table.FAULTS.items()
    if isinstance(row.simulated, Simulated)
}

# Variants that only a command or a mutant asks for. The seed draws the points of crash_at_point together.
for _point in POINTS:
    _crash = partial(points.crash_at_point, points=(_point,))
    _name = f"crash_at_{_point.replace(' ', '_').replace('-', '_')}"
    FAULTS[_name] = SimFault(_crash, Simulated(0, (2.0, 4.0)))
FAULTS["flip_states"] = SimFault(partial(damage.flip_bits, kinds=(".state",)), Simulated(0, (0.1, 0.5), damages=True))

DAMAGE = frozenset(name for name, fault in FAULTS.items() if fault.drawn.damages)
"""The faults that take synced bytes from a disk, or may do so."""

SINGLE = tuple(name for name, fault in FAULTS.items() if fault.drawn.single)
"""The faults for a broker whose registry is in its memory: it cannot start a second time on its data directory."""

__all__ = ["DAMAGE", "FAULTS", "SINGLE", "Action", "SimFault"]
