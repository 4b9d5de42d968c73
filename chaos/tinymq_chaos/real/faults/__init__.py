"""The faults of real processes, as one table: what each does, for how long, with which parameters.

A family is a module with its rows, KINDS; here they come together. How a fault looks: kind.py.
"""

from __future__ import annotations

from tinymq_chaos.real.faults import clocks, disks, files, network, processes
from tinymq_chaos.real.faults.kind import ANYBODY, Doing, Fault, Kind, Parameters, Stage, Value, whose

FAULTS: dict[str, Kind] = {
    **processes.KINDS,
    **network.KINDS,
    **disks.KINDS,
    **files.KINDS,
    **clocks.KINDS,
}

__all__ = ["ANYBODY", "FAULTS", "Doing", "Fault", "Kind", "Parameters", "Stage", "Value", "whose"]
