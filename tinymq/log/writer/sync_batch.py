"""Sync batches of the writer: what one batch does to the disk, in the order that writer.py draws.

Runs in the executor.
"""

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
from tinymq.log.replica_log.operations import Operation, Remove, Truncate, is_small, mark_before
from tinymq.log.writer.disk import LogDisk

SHARED = frozenset((*VOTES, MARKS))  # files that all groups need


@value
class LogWork:
    """One log's part of a sync batch."""

    operations: list[Operation]
    mark: DurabilityMark  # true once the operations are synced
    sync: bool = True  # False: this batch writes the log, and a later one syncs it

    @property
    def cuts(self) -> bool:
        """Whether it removes entries that the durable mark may claim."""
        return any(isinstance(operation, Truncate | Remove) for operation in self.operations)


@value
class SyncBatch:
    """The work of one sync batch."""

    works: list[LogWork]
    votes: dict[GroupId, HardState]  # that have changed
    commits: Mapping[GroupId, int]  # commit indexes that the marks of these groups have to say
    with_marks: bool  # write and sync the marks that earlier batches have noted, too
    unsynced: Sequence[GroupId] = ()  # groups that earlier batches wrote, and a later one syncs

    @property
    def groups(self) -> list[GroupId]:
        """Every group with unsynced entries. A failed sync may have lost any of them."""
        return [*(work.mark.group for work in self.works), *self.unsynced]

    @property
    def is_lone(self) -> bool:
        """Whether the batch writes one small entry of one log, and nothing else."""
        return len(self.works) == 1 and not (self.votes or self.with_marks) and is_small(self.works[0].operations)


@dataclass(slots=True)
class SyncOutcome:
    """How a sync batch has ended."""

    failed: dict[GroupId, TinymqError] = field(default_factory=dict)
    shared: TinymqError | None = None  # why the files that all groups need have failed
    commits: dict[GroupId, int] = field(default_factory=dict)  # commit indexes of its marks, durable now

    def fail(self, groups: Iterable[GroupId], error: TinymqError) -> None:
        """Fail all of `groups`. After a failed sync it is unknown which pages were lost."""
        self.failed = dict.fromkeys(groups, error)


class SyncBatches:
    """Carries sync batches out. Owned by the writer job: no two calls run at once, and none on the loop while a batch
    runs."""

    def __init__(self, files: Files, marks: DurabilityMarks, votes: VoteFile) -> None:
        self.marks = marks
        self.broken: StorageError | None = None  # why the marks are no longer reliable
        self._files = files
        self._votes = votes
        self._disk = LogDisk(files)
        self._boot_known = False  # the file `boot` names the present start of the machine

    def carry_out(self, batch: SyncBatch) -> SyncOutcome:
        """Carry out one batch. A disk that refuses is an outcome, not an exception."""
        outcome = SyncOutcome()
        works = batch.works
        # Logs whose interval is not over stay unsynced: this batch's sync leaves out their directories and files.
        self._disk.later = frozenset(
            map(group_directory, (*batch.unsynced, *(work.mark.group for work in works if not work.sync)))
        )
        try:
            self.lower_marks(works)
            shared: list[File] = self._votes.write(batch.votes) if batch.votes else []
            if batch.with_marks:
                self.marks.note_commits(batch.commits)
                shared += self.marks.flush()
        except StorageError as error:  # of files that all groups need
            outcome.shared = error
            outcome.fail(batch.groups, error)
            return outcome
        try:
            self._write(works, outcome)
            self._disk.sync(shared)
        except SyncFailed as error:
            # The kernel reports a failed write to one sync, which may have been of any file, and then calls the pages
            # clean. So every group with unsynced entries fails, also those whose own files were synced well.
            outcome.fail(batch.groups, error)
            if failed_paths(error) & SHARED:
                outcome.shared = error
            self._raise_counts(batch.groups)
            return outcome
        except OutOfDescriptors as error:  # while a directory was opened to sync it: only its names may be lost
            outcome.fail(batch.groups, error)
            return outcome
        if batch.with_marks:
            self.marks.synced()
            outcome.commits = self._durable_commits(batch.commits)
        for work in works:
            # The mark is only noted. A later batch makes it durable: it may lag behind the log, but never lead it.
            if work.sync and work.mark.group not in outcome.failed:
                self.marks.cover(work.mark.group)
                self.marks.note(work.mark)
        return outcome

    def _raise_counts(self, groups: Iterable[GroupId]) -> None:
        """After a failed sync, give a new identity to every replica that has acknowledged unsynced entries.

        They may be lost, although the machine keeps running, and the file `boot` tells of its restarts only. If the
        marks cannot be written either, the broker ends, and finds at its next start what the disk has.
        """
        marks = [self.marks.get(group) for group in groups]
        with suppress(StorageError):
            self.marks.write([forgetful(mark) for mark in marks if mark is not None and mark.flags & LAZY])
            self.marks.sync()

    def _durable_commits(self, groups: Iterable[GroupId]) -> dict[GroupId, int]:
        """The commit indexes of these groups in the file of marks, which is synced."""
        return {group: mark.commit for group in groups if (mark := self.marks.get(group)) is not None}

    def idle(self, marks: list[DurabilityMark], commits: Mapping[GroupId, int]) -> SyncOutcome:
        """Make the marks durable, and with them the commit indexes."""
        outcome = SyncOutcome()
        try:
            for mark in marks:
                self.marks.note(mark)
            self.marks.note_commits(commits)
            self.marks.flush()
            self.marks.sync()
            outcome.commits = self._durable_commits(commits)
        except StorageError as error:
            outcome.shared = error
        return outcome

    def put_mark(self, mark: DurabilityMark) -> None:
        """Write one mark, and sync it. Raises StorageError. After DiskFull the file is as before; after any other error
        its content is unknown, and `broken` is set."""
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
        self._votes.close()
        self.marks.close()

    def lower_marks(self, works: list[LogWork]) -> None:
        """Make marks durable that will not claim too much, before entries are removed or may count unsynced."""
        lowered = []
        for work in works:
            mark = needed = self.marks.get(work.mark.group)
            if mark is None or needed is None:
                continue
            if work.cuts:
                self.marks.unnote(work.mark.group)
                needed = mark_before(work.operations, mark)
            if not work.sync:
                # The entries of this batch may be acknowledged before their sync. A mark with LAZY lets the next start
                # of the machine see that. It compares the id of the start with the file `boot`, so that is written
                # first.
                self.marks.expose(work.mark.group)
                if not mark.flags & LAZY:
                    self._store_boot()
                    needed = replace(needed, flags=needed.flags | LAZY)
            if needed != mark:
                lowered.append(needed)
        if lowered:
            self.marks.write(lowered)
            self.marks.sync()

    def _store_boot(self) -> None:
        if not self._boot_known:
            if (boot := self._files.boot_id()) and read_boot(self._files) != boot:
                write_boot(self._files, boot)
            self._boot_known = True

    def _write(self, works: list[LogWork], outcome: SyncOutcome) -> None:
        """Carry out all operations. An error ends one log only, and the others go on."""
        for work in works:
            try:
                for operation in work.operations:
                    self._disk.carry_out(operation)
            except SyncFailed:  # too many files were open, so some were synced early: this concerns all logs
                raise
            except StorageError as error:
                outcome.failed[work.mark.group] = error
