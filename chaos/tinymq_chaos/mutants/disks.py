"""Mutants of durability: the order of syncs, and what recovery trusts on a disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tinymq.base.errors import SyncFailed
from tinymq.broker.state import state as broker_state
from tinymq.format.entry import crc32c, crc32c_of
from tinymq.log.broker_files import durability_marks, vote_store
from tinymq.log.files import record_file
from tinymq.log.files.files import File
from tinymq.log.replica_log import creation, recovery
from tinymq.log.segment import reads, scan, snapshot_files
from tinymq.log.writer.disk import LogDisk
from tinymq.log.writer.sync_batch import SyncBatch, SyncBatches, SyncOutcome
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant, replaces

CRASHES = ("kill", "power_cut", "power_cut_all")
POWER = Focus(faults=("power_cut_all", "slow_disk"), segment_bytes=16 << 10, pace=0.5)
FOUND = Focus(faults=("crash_at_append", "slow_disk"), workloads=("idempotent",), pace=0.25)
CUT = Focus(faults=("seesaw", "latency"), segment_bytes=256 << 10, workloads=("idempotent",), pace=0.25)
TORN = Focus(faults=("crash_at_marks", "crash_at_ballots"), workloads=("churn", "idempotent"), pace=0.5)
TRANSFERS = Focus(faults=("trim", "wipe"), workloads=("idempotent",), segment_bytes=4 << 10, pace=0.25)
INSTALLS = Focus(faults=("trim", "wipe", "crash_at_head"), workloads=("idempotent",), segment_bytes=4 << 10, pace=0.25)
REPAIRS = Focus(faults=("flip_bits", "kill"), workloads=("idempotent",), segment_bytes=16 << 10, pace=0.5)
STATES = Focus(faults=("flip_states", "kill"), workloads=("idempotent",), segment_bytes=8 << 10, pace=0.25)
FLIPS = Focus(faults=("flip_bits", "kill", "isolate"), segment_bytes=16 << 10, seconds=16.0)


class _NeverSynced:
    """Files whose syncs do nothing."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def sync(self, files: Any) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


@mutant("7: logs are synced", POWER)
@replaces(LogDisk.sync)
def logs_are_not_synced(real: Any, self: LogDisk, also: Any) -> None:
    self._touched = {}
    real(self, also)


@mutant("7: votes are synced", POWER)
@replaces(vote_store.VoteFile.write)
def votes_are_not_synced(real: Any, self: vote_store.VoteFile, changes: Any) -> list[File]:
    real(self, changes)
    return []


@mutant("a failed sync stops its replica and acknowledges nothing", Focus(faults=("fail_sync", "power_cut_all")))
@replaces(LogDisk.sync)
def failed_syncs_are_ignored(real: Any, self: LogDisk, also: Any) -> None:
    with suppress(SyncFailed):
        real(self, also)


@mutant("a mark is written after the sync that it reports", POWER)
@replaces(SyncBatches.carry_out)
def marks_before_the_sync(real: Callable[..., SyncOutcome], self: SyncBatches, batch: SyncBatch) -> SyncOutcome:
    for work in batch.works:
        self.marks.note(work.mark)
    self.marks.flush()
    self.marks.sync()
    return real(self, batch)


@mutant("a mark is lowered before the entries that it covers are cut", CUT)
def marks_stay_high(p: Patches) -> None:
    p.replace(SyncBatches.lower_marks, lambda self, works: None)


@mutant("a torn tail is cut off", FOUND)
def torn_tails_stay(p: Patches) -> None:
    """Take a torn frame for a whole one: check neither checksum nor chain above the mark."""
    p.replace(crc32c, _any_crc, within=[scan])


class _AnyCrc(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _any_crc(data: Any, seed: int = 0) -> int:
    return _AnyCrc(crc32c(data, seed))


@mutant("checksums of payloads are verified whenever they are read from a disk", FLIPS)
def checksums_are_not_verified(p: Patches) -> None:
    p.replace(crc32c, _any_crc, within=[scan])
    p.replace(crc32c_of, _any_crc, within=[reads])


@mutant("a damaged frame at or below the mark is not taken for a torn tail", FLIPS)
def damage_is_cut_off(p: Patches) -> None:
    p.replace(recovery.LogRecovery.refuse_below_mark, lambda self, first, problem: None)
    p.replace(recovery.LogRecovery.check_mark, lambda self: None)


@mutant("entries found above the mark are written again and synced before they count", FOUND)
def the_page_cache_is_taken_for_the_disk(p: Patches) -> None:
    p.replace(recovery.LogRecovery.rewrite, lambda self, segment: [])


@mutant("votes found at a start are written again and synced", Focus(faults=("crash_at_ballots", "kill", "isolate")))
@replaces(vote_store.VoteFile.__init__)
def stored_votes_are_trusted(real: Any, self: vote_store.VoteFile, files: Any, loaded: Any) -> None:
    """The votes may be in the page cache only, and messages that rest on them leave at once."""
    real(self, _NeverSynced(files), loaded)
    self._files = files


@mutant("12 of reliability: a record of marks or votes is read whole or not at all", TORN)
def torn_records_are_read(p: Patches) -> None:
    p.replace(crc32c, _any_crc, within=[record_file])


@mutant("a group's missing data directory is noticed", Focus(faults=("kill", "remove_group", "isolate")))
@replaces(durability_marks.load_marks)
def lost_directories_are_recreated(real: Any, files: Any) -> Any:
    loaded = real(files)
    return durability_marks.LoadedMarks({}, loaded.number, loaded.complete)


@mutant("a snapshot with a wrong checksum is not used", STATES)
def checkpoints_are_not_verified(p: Patches) -> None:
    """Skip the checksums of the file and of the partition's state in it: either of them alone finds the damage."""
    p.replace(crc32c, _any_crc, within=[snapshot_files, broker_state])


@mutant("a log that begins behind a snapshot counts once its file names are synced", TRANSFERS)
@replaces(creation.begin_behind)
def installed_logs_count_before_their_names(real: Any, files: Any, group: Any, snapshot: Any) -> Any:
    return real(_NeverSynced(files), group, snapshot)


@mutant("a log that begins behind a snapshot counts once its mark is synced", INSTALLS)
@replaces(SyncBatches.put_mark)
def installed_logs_count_before_their_mark(real: Any, self: SyncBatches, mark: durability_marks.DurabilityMark) -> None:
    self.marks.write([mark]) if mark.index and mark.snapshot_index == mark.index else real(self, mark)


@mutant("22: the log that replaces a quarantined one has a higher count", REPAIRS)
@replaces(SyncBatches.put_mark)
def repaired_replicas_keep_their_count(real: Any, self: SyncBatches, mark: durability_marks.DurabilityMark) -> None:
    real(self, replace(mark, count=mark.count - 1) if mark.flags & durability_marks.QUARANTINING else mark)


# Two rules have no mutant, because no run can show them:
#
# - The mark of a quarantined log is synced before its files are moved. Otherwise a power cut in between leaves the old
#   mark and no log. Recovery treats that as damage and raises the count (tests/log/test_replacing.py).
# - A snapshot's chunks have checksums, and so has the whole. No fault changes bytes on their way: TCP's checksum
#   and the framing's would have to miss the change (tests/raft/replica/test_snapshot_receiver.py).
