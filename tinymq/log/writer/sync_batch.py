"""One round of the writer: what it does to the disk, in the order that writer.py draws. Runs in the executor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tinymq.base.errors import DiskFull, OutOfDescriptors, StorageError, SyncFailed, TinymqError
from tinymq.base.types import GroupId
from tinymq.base.value import value
from tinymq.log.broker_files.boot_id import forgetful, read_boot, write_boot
from tinymq.log.broker_files.durability_marks import LAZY, DurabilityMark, DurabilityMarks
from tinymq.log.broker_files.vote_store import HardState, VoteFile
from tinymq.log.files.files import File, Files, failed_paths
from tinymq.log.files.layout import MARKS, VOTES, group_directory
from tinymq.log.replica_log.operations import Operation, Remove, Truncate, mark_before
from tinymq.log.writer.disk import LogDisk

SHARED = frozenset((*VOTES, MARKS))


@value
class LogWork:
    """One log's part of a round."""

    operations: list[Operation]
    mark: DurabilityMark  # true once they are synced
    sync: bool = True  # else that is due another time: it counts once it is written

    @property
    def cuts(self) -> bool:
        """Whether something that may be marked as durable goes."""
        return any(isinstance(operation, Truncate | Remove) for operation in self.operations)


@dataclass(slots=True)
class SyncOutcome:
    """How a round ended: which groups failed, and whether the files that all of them share did."""

    failed: dict[GroupId, TinymqError] = field(default_factory=dict)
    shared: TinymqError | None = None
    kept: dict[GroupId, int] = field(default_factory=dict)  # the commit indexes that marks say, synced, as was asked

    def fail(self, groups: Iterable[GroupId], error: TinymqError) -> None:
        """Whoever takes part in a failed sync fails: which pages were lost cannot be told."""
        self.failed = dict.fromkeys(groups, error)


class SyncBatches:
    """Carries rounds out. Owned by the writer job: no two calls at once, never on the loop while one runs."""

    def __init__(self, files: Files, marks: DurabilityMarks, ballots: VoteFile) -> None:
        self.marks = marks
        self.broken: StorageError | None = None  # why the marks cannot be relied on any more
        self._files = files
        self._ballots = ballots
        self._disk = LogDisk(files)
        self._boot_known = False  # the file `boot` names this start of the machine

    def carry_out(
        self,
        works: list[LogWork],
        votes: dict[GroupId, HardState],
        known: Mapping[GroupId, int],
        *,
        with_marks: bool,
        unsynced: Sequence[GroupId] = (),
    ) -> SyncOutcome:
        """One round; `with_marks` takes along what earlier ones noted, and the commit indexes that are `known`, and
        `unsynced` are groups that earlier ones wrote, to be synced another time. A disk that refuses is an outcome, not
        an exception."""
        outcome = SyncOutcome()
        everybody = [*(work.mark.group for work in works), *unsynced]
        self._disk.later = frozenset(
            map(group_directory, (*unsynced, *(work.mark.group for work in works if not work.sync)))
        )
        try:
            self.lower_marks(works)
            shared: list[File] = self._ballots.write(votes) if votes else []
            if with_marks:
                self.marks.note_commits(known)
                shared += self.marks.flush()
        except StorageError as error:  # of files that all logs need
            outcome.shared = error
            outcome.fail(everybody, error)
            return outcome
        try:
            self._write(works, outcome)
            self._disk.sync(shared)
        except SyncFailed as error:
            outcome.fail(everybody, error)
            if failed_paths(error) & SHARED:
                outcome.shared = error
            self._confess(everybody)
            return outcome
        except OutOfDescriptors as error:  # for syncing a folder: only its names may be lost
            outcome.fail(everybody, error)
            return outcome
        if with_marks:
            self.marks.synced()
            outcome.kept = self._kept(known)
        for work in works:
            if work.sync and work.mark.group not in outcome.failed:
                self.marks.cover(work.mark.group)
                self.marks.note(work.mark)
        return outcome

    def _confess(self, groups: Iterable[GroupId]) -> None:
        """A sync failed: what was acknowledged before it may be lost, though this start of the machine goes on. If the
        marks fail, too, the broker ends, and what it finds then is what the disk has of it."""
        marks = [self.marks.get(group) for group in groups]
        with suppress(StorageError):
            self.marks.write([forgetful(mark) for mark in marks if mark is not None and mark.flags & LAZY])
            self.marks.sync()

    def _kept(self, known: Mapping[GroupId, int]) -> dict[GroupId, int]:
        """Of these groups, as the file says; all of it is synced."""
        return {group: mark.commit for group in known if (mark := self.marks.get(group)) is not None}

    def idle(self, marks: list[DurabilityMark], known: Mapping[GroupId, int]) -> SyncOutcome:
        """Make the marks durable, with the commit indexes that are `known`."""
        outcome = SyncOutcome()
        try:
            for mark in marks:
                self.marks.note(mark)
            self.marks.note_commits(known)
            self.marks.flush()
            self.marks.sync()
            outcome.kept = self._kept(known)
        except StorageError as error:
            outcome.shared = error
        return outcome

    def put_mark(self, mark: DurabilityMark) -> None:
        """Write it, synced. Raises StorageError: but for DiskFull it is unknown then what the file says."""
        try:
            self.marks.write([mark])
            self.marks.sync()
        except DiskFull:
            raise
        except StorageError as error:
            self.broken = error
            raise

    def forget(self, group: GroupId) -> None:
        """Close the files of the group's log, which is released. The log is synced, or has failed, or no longer
        counts."""
        self._disk.forget(group_directory(group))
        self.marks.cover(group)

    def close(self) -> None:
        self._disk.close()
        self._ballots.close()
        self.marks.close()

    def lower_marks(self, works: list[LogWork]) -> None:
        lowered = []
        for work in works:
            mark = needed = self.marks.get(work.mark.group)
            if mark is None or needed is None:
                continue
            if work.cuts:
                self.marks.unnote(work.mark.group)
                needed = mark_before(work.operations, mark)
            if not work.sync:
                self.marks.expose(work.mark.group)
                if not mark.flags & LAZY:
                    self._know_boot()
                    needed = replace(needed, flags=needed.flags | LAZY)
            if needed != mark:
                lowered.append(needed)
        if lowered:
            self.marks.write(lowered)
            self.marks.sync()

    def _know_boot(self) -> None:
        if not self._boot_known:
            if (boot := self._files.boot_id()) and read_boot(self._files) != boot:
                write_boot(self._files, boot)
            self._boot_known = True

    def _write(self, works: list[LogWork], outcome: SyncOutcome) -> None:
        for work in works:
            try:
                for operation in work.operations:
                    self._disk.carry_out(operation)
            except SyncFailed:  # some had to be synced early, to open no more files than may be open
                raise
            except StorageError as error:
                outcome.failed[work.mark.group] = error
