"""Mutants of topics that promise less: in memory, and synced at intervals."""

from __future__ import annotations

from typing import Any

from tinymq.log import intervals, store
from tinymq.log.disk_engine import DiskCounts
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant

VOLATILE = Focus(faults=("kill", "kill_of_all"), workloads=("volatile",), pace=0.3)
DELAYED = Focus(faults=("power_cut",), workloads=("delayed",), pace=0.2)
ALL_KILLED = Focus(faults=("kill_of_all",), workloads=("delayed",), pace=0.3)
CUT = Focus(faults=("power_cut_of_all",), workloads=("delayed",), pace=0.2)


@mutant("22: a replica in memory that begins anew is another one", VOLATILE)
def memory_replicas_stay_the_same(p: Patches) -> None:
    async def next_count(self: DiskCounts, group: Any) -> int:
        return 0

    p.set(DiskCounts, "next", next_count)


@mutant("22: after a power cut a replica that is synced at intervals is another one", DELAYED)
def lazy_replicas_stay_the_same(p: Patches) -> None:
    p.set(store, "after_boot", lambda mark: mark)


@mutant(
    "a kill takes nothing from a replica that is synced at intervals",
    Focus(faults=("kill_of_all",), workloads=("delayed",), pace=0.3),
)
def kills_count_as_power_cuts(p: Patches) -> None:
    p.set(store, "read_boot", lambda files: b"")


@mutant("what is synced at intervals is synced when its interval ends", CUT)
def intervals_never_end(p: Patches) -> None:
    p.set(intervals.Intervals, "due", lambda self, now_s: [])
    p.set(intervals.Intervals, "anybody_due", property(lambda self: False))
