"""Mutants of durability: what is synced before what, and what is believed of a disk that is read again."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tinymq.entry import crc32c
from tinymq.errors import SyncFailed
from tinymq.log import ballots, marks, reads, recovery, rounds, scan, writer
from tinymq.log.files import File
from tinymq.log.operations import Disk
from tinymq.log.states import read_state
from tinymq_chaos.mutants.mutant import Focus, Patches, mutant

CRASHES = ("kill", "power_cut", "power_cut_of_all")
POWER = Focus(faults=("power_cut_of_all", "slow_disk"), segment_bytes=16 << 10, pace=0.5)
FOUND = Focus(faults=("kill_of_all", "power_cut_of_all"), workloads=("idempotent",), pace=0.25)
FLIPS = Focus(faults=("flip_bits", "kill", "isolate_one"), segment_bytes=16 << 10, seconds=16.0)


@mutant("7: logs are synced", POWER)
def logs_are_not_synced(p: Patches) -> None:
    real = Disk.sync

    def sync(self: Disk, also: Any) -> None:
        self._touched = {}
        real(self, also)

    p.set(Disk, "sync", sync)


@mutant("7: ballots are synced", POWER)
def ballots_are_not_synced(p: Patches) -> None:
    real = ballots.BallotFile.write

    def write(self: ballots.BallotFile, changes: Any) -> list[File]:
        real(self, changes)
        return []

    p.set(ballots.BallotFile, "write", write)


@mutant("a failed sync stops its replica and acknowledges nothing", Focus(faults=("fail_sync", "power_cut_of_all")))
def failed_syncs_are_ignored(p: Patches) -> None:
    real = Disk.sync

    def sync(self: Disk, also: Any) -> None:
        with suppress(SyncFailed):
            real(self, also)

    p.set(Disk, "sync", sync)


@mutant("a mark is written after the sync that it tells of", POWER)
def marks_before_the_sync(p: Patches) -> None:
    real = writer.Rounds.carry_out

    def carry_out(self: writer.Rounds, works: Any, changes: Any, *, with_marks: bool) -> Any:
        for work in works:
            self.marks.note(work.mark)
        self.marks.flush()
        self.marks.sync()
        return real(self, works, changes, with_marks=with_marks)

    p.set(writer.Rounds, "carry_out", carry_out)


@mutant(
    "a mark is lowered before what it covers is cut", Focus(faults=("isolate_one", "power_cut", "power_cut_of_all"))
)
def marks_stay_high(p: Patches) -> None:
    p.set(writer.Rounds, "_lower_marks", lambda self, works: None)


@mutant("a torn tail is cut off", Focus(faults=CRASHES, segment_bytes=16 << 10))
def torn_tails_stay(p: Patches) -> None:
    """What is not whole is taken for whole: neither checksum nor chain is looked at behind the mark."""
    p.set(scan, "crc32c", _any_crc)


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
    for module in (scan, reads):
        p.set(module, "crc32c", _any_crc)


@mutant("a damaged frame at or below the mark is not taken for a torn tail", FLIPS)
def damage_is_cut_off(p: Patches) -> None:
    p.set(recovery._Recovery, "_refuse_below_mark", lambda self, first, problem: None)
    p.set(recovery._Recovery, "_check_mark", lambda self: None)


@mutant("what is found above the mark is written again and synced before it counts", FOUND)
def the_page_cache_is_taken_for_the_disk(p: Patches) -> None:
    p.set(recovery._Recovery, "_rewrite", lambda self, segment: [])


@mutant("ballots found at a start are written again and synced", Focus(faults=(*CRASHES, "isolate_one")))
def ballots_are_believed_as_found(p: Patches) -> None:
    """The older copy is kept: a term or a vote of the last moments is forgotten."""
    real = ballots.BallotFile.write
    count = [0]

    def write(self: ballots.BallotFile, changes: Any) -> list[File]:
        count[0] += 1
        files = real(self, changes)
        return files if count[0] % 2 else []

    p.set(ballots.BallotFile, "write", write)


@mutant("12 of reliability: rounds of marks and ballots are read whole or not at all", POWER)
def torn_rounds_are_read(p: Patches) -> None:
    p.set(rounds, "crc32c", _any_crc)


@mutant("a group that was opened here and is gone is missed", Focus(faults=("kill", "remove_group", "isolate_one")))
def lost_folders_are_made_anew(p: Patches) -> None:
    real = marks.load_marks

    def load(files: Any) -> Any:
        loaded = real(files)
        return marks.LoadedMarks({}, loaded.number, loaded.complete)

    from tinymq.log import store

    p.set(store, "load_marks", load)


@mutant("a checkpoint has a checksum, and one that does not match is not used", FLIPS)
def checkpoints_are_not_verified(p: Patches) -> None:
    from tinymq.log import states

    assert read_state is states.read_state
    p.set(states, "crc32c", _any_crc)
