"""Mutants of topics with weaker durability: in memory, or synced at intervals."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tinymq.log.broker_files import boot_id
from tinymq.log.broker_files.durability_marks import DurabilityMarks
from tinymq.log.engine.disk_engine import DiskIncarnationCounts
from tinymq.log.replica_log.log import Log
from tinymq.log.writer import interval_sync
from tinymq.log.writer.writer import Writer
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant, replaces

VOLATILE = Focus(faults=("kill", "kill_all"), workloads=("volatile",), pace=0.3)
DELAYED = Focus(faults=("power_cut",), workloads=("delayed",), pace=0.2)
ALL_KILLED = Focus(faults=("kill_all",), workloads=("delayed",), pace=0.3)
CUT = Focus(faults=("power_cut_all",), workloads=("delayed",), pace=0.2)


@mutant("22: a restarted replica in memory is another one", VOLATILE)
@replaces(DiskIncarnationCounts.next)
async def memory_replicas_stay_the_same(_: Any, self: DiskIncarnationCounts, group: Any) -> int:
    return 0


@mutant("22: after a power cut a replica that is synced at intervals is another one", DELAYED)
def interval_replicas_stay_the_same(p: Patches) -> None:
    p.replace(boot_id.after_boot, lambda mark: mark)


@mutant(
    "a kill takes no record from a replica that is synced at intervals",
    Focus(faults=("kill_all",), workloads=("delayed",), pace=0.3),
)
def kills_count_as_power_cuts(p: Patches) -> None:
    p.replace(boot_id.read_boot, lambda files: b"")


@mutant("records are synced when their interval ends", CUT)
def intervals_never_end(p: Patches) -> None:
    p.replace(interval_sync.IntervalSync.due, lambda self, now_s: [])
    p.replace(interval_sync.IntervalSync.anybody_due, property(lambda self: False))


ALTERED = "tests/log/test_altered_sync.py::test_"


@mutant(
    "a mark gets its LAZY flag when it is written, not when it is noted",
    test=f"{ALTERED}a_mark_created_under_always_does_not_cover_later_entries",
)
def marks_say_what_was_noted(p: Patches) -> None:
    p.replace(DurabilityMarks.expose, lambda self, group: None)


@mutant(
    "closing a log, or taking a new count, waits for the sync of all its entries",
    test=f"{ALTERED}entries_are_synced_before_a_mark_covers_them",
)
def logs_are_closed_unsynced(p: Patches) -> None:
    p.replace(Writer.syncing_all, lambda self: nullcontext())


@mutant(
    "a shortened interval applies to all later writes",
    test=f"{ALTERED}a_shorter_interval_applies_to_later_writes",
)
@replaces(interval_sync.IntervalSync.wrote)
def the_first_interval_counts(_: Any, self: interval_sync.IntervalSync, log: Log, now_s: float) -> None:
    due_s = self._due_s.setdefault(log, now_s + log.config.sync_interval_s)
    self.next_s = min(self.next_s, due_s)
