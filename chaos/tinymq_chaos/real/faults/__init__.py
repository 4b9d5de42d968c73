"""The faults of real processes: the rows of tinymq_chaos/faults.py that the harness does, with their actions.

kind.py says what an action is. Each other module has the actions of one family.
"""

from __future__ import annotations

from tinymq_chaos import faults as table
from tinymq_chaos.faults import ANYBODY, Family, Real, Value
from tinymq_chaos.real.faults import clocks, disks, files, network, processes
from tinymq_chaos.real.faults.kind import ACTIONS, Doing, Fault, Parameters, RealFault, Stage, unique_name

FAMILIES = (processes, network, disks, files, clocks)  # imported for the actions that they register

FAULTS: dict[str, RealFault] = {
    name: RealFault(ACTIONS[name], row.family, row.real)
    for name, row in table.FAULTS.items()
    if isinstance(row.real, Real)
}

__all__ = [
    "ANYBODY", "FAULTS", "Doing", "Family", "Fault", "Parameters", "Real", "RealFault", "Stage", "Value",
    "unique_name",
]  # fmt: skip
