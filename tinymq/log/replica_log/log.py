"""One Raft group's log, which is its partition's log, too: appending, truncating, trimming.

Everything here is on the loop and in memory. The disk follows in the same order, through the writer: the log queues
its requests to the disk as values (operations.py), so that the loop goes on while they are carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tinymq.base.errors import Closed, TinymqError
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry
from tinymq.log.broker_files.durability_marks import LAZY, DurabilityMark
from tinymq.log.files.files import Files
from tinymq.log.files.layout import INDEX, SNAPSHOT, in_group
from tinymq.log.files.runner import Runner
from tinymq.log.replica_log.commit_progress import CommitProgress
from tinymq.log.replica_log.log_config import LogConfig
from tinymq.log.replica_log.operations import (
    Create,
    Operation,
    OperationQueue,
    PutSnapshot,
    Remove,
    Seal,
    Truncate,
)
from tinymq.log.replica_log.reader import LogReader
from tinymq.log.replica_log.recovery import Recovered
from tinymq.log.replica_log.segment_list import SegmentList
from tinymq.log.replica_log.snapshot_tracker import SnapshotTracker
from tinymq.log.replica_log.sync_progress import SyncProgress
from tinymq.log.replica_log.tail import Tail
from tinymq.log.replica_log.tail_budget import TailBudget
from tinymq.log.replica_log.time_index import TimeIndex
from tinymq.log.segment.index import pack_index
from tinymq.log.segment.segment import Segment, pack_segment_header
from tinymq.log.segment.snapshot_files import StoredSnapshot, pack_snapshot


class LogWriter(Protocol):
    """Carries out the operations of logs: it calls `take_operations`, and then `written` or `fail`."""

    def add(self, log: Log) -> None:
        """`log` has operations."""
        ...

    def commit_advanced(self, log: Log) -> None:
        """`log` knows a newer commit index than its durability mark. If that is urgent, `commit_synced` is called once
        the mark says it durably."""
        ...


class Log:
    """The entries of one Raft group on this broker. Lives on the loop.

    Two parts of it serve reads: `reader` and `time_index`. `durable_index` says what may be acknowledged:
    entries that are synced, or, if the topic is synced at intervals, written. When it rises, `on_durable` is called.
    `on_failed` is called once, with SyncFailed, DiskFull or another StorageError; the log accepts nothing from then on.
    """

    def __init__(
        self,
        group: GroupId,
        files: Files,
        runner: Runner,
        writer: LogWriter,
        recovered: Recovered,
        *,
        count: int,
        commit: int,
        config: LogConfig,
        tails: TailBudget,
        fault_count: int | None = 0,
    ) -> None:
        self.group = group
        self.config = config
        self.count = count  # of this group's incarnations on this broker
        self.fault_count = fault_count  # see DurabilityMark
        self.on_durable: Callable[[], None] | None = None
        self.on_failed: Callable[[TinymqError], None] | None = None
        self.failed: TinymqError | None = None  # why the log accepts nothing any more
        self.closed = False  # the log is released, and another one may have its files
        self.quota: Callable[[int], None] | None = None  # see `check_quota`
        self.segments = SegmentList(group, recovered.segments, recovered.terms)
        self.progress = SyncProgress(self.last_index)
        self.snapshots = SnapshotTracker(recovered.snapshots)
        self._tail = Tail(self.last_index + 1, tails)
        self.reader = LogReader(self.segments, self._tail, self.progress, files, runner)
        self.time_index = TimeIndex(self.segments, self.reader)
        self.recovered_commit = min(commit, self.last_index)  # known before the restart
        self.commit = CommitProgress(self.recovered_commit)
        self._writer = writer
        self._operations = OperationQueue()
        self._applied_index = recovered.applied_index
        self._base_time_us = recovered.base_time_us  # append time of the entry before the first one; 0: not known

    # Bounds

    @property
    def first_index(self) -> int:
        return self.segments.first.first_index

    @property
    def last_index(self) -> int:
        return self.segments.active.last_index

    @property
    def last_term(self) -> int:
        return self.segments.active.last_term

    @property
    def last_crc(self) -> int:
        return self.segments.active.last_crc

    @property
    def last_append_time_us(self) -> int:
        """Append time of the last entry, even if a snapshot stands for it; 0 if there is none."""
        last_us = self.segments.last_append_time_us
        return self._base_time_us if last_us is None else last_us

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self.segments.active.next_offset

    @property
    def log_start_offset(self) -> int:
        """Offset of the first record that is kept."""
        return self.segments.first.header.base_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.end for segment in self.segments)

    @property
    def durable_index(self) -> int:
        """Entries up to here may be acknowledged."""
        return self.progress.durable_index

    @property
    def synced_index(self) -> int:
        """Entries up to here survive a power cut."""
        return self.progress.synced_index

    def term_at(self, index: int) -> int | None:
        """Term of the entry at `index`; None outside first_index - 1 … last_index."""
        return self.segments.term_at(index)

    # Appending

    def append(self, entries: Sequence[Entry]) -> None:
        """Accept entries, in memory; the disk follows. Raises the error that ended the log, if one did.

        Asserts that each entry continues the log: index, chain of checksums, offset.
        """
        self._check()
        segments = self.segments
        for entry in entries:
            segment, header = segments.active, entry.header
            # The age of a segment is counted in append times, which are in the entries, so that every replica rolls at
            # the same entry, whatever its own clock says.
            if not segment.sealed and segment.is_over(header.append_time_us, self.config.segment_us):
                self._seal(segment)
            if segment.sealed:
                segment = self._roll()
            assert header.index == segment.last_index + 1, (self.group, header.index, segment.last_index)
            assert header.prev_crc == segment.last_crc, (self.group, header.index)
            assert header.base_offset == segment.next_offset, (self.group, header.index)
            position = segments.append(header)
            self._tail.append(entry, position)
            self._operations.write(segment.path, position, entry)
            if segment.is_full(self.config.segment_bytes):
                self._seal(segment)
        if entries:
            self._writer.add(self)

    def configure(self, config: LogConfig) -> None:
        """Use `config` from now on. `storage` is as before."""
        assert config.storage is self.config.storage, self.group
        self.config = config

    def _seal(self, segment: Segment) -> None:
        segment.sealed = True
        directory = self.segments.directory
        index_path = in_group(directory, segment.first_index, INDEX)
        packed = pack_index(self.segments.index_of(segment))
        self._operations.add(Seal(directory, segment.path, segment.end, index_path, packed))

    def _roll(self) -> Segment:
        segment = self.segments.roll()
        self._operations.add(Create(self.segments.directory, segment.path, pack_segment_header(segment.header)))
        return segment

    def check_quota(self, length: int) -> None:
        """Raises QuotaExceeded if the broker's logs of this storage have no room for `length` bytes more."""
        if self.quota is not None:
            self.quota(length)

    # Cutting

    def truncate_from(self, index: int) -> None:
        """Remove the entries from `index` on: from memory at once, and then from the disk, where the mark is lowered
        first. Blocks if the entry before `index` is on disk alone.

        Asserts that the log knows the entry before `index`, and that `index` is not committed.
        """
        self._check()
        if index > self.last_index:
            return
        assert max(1, self.first_index - 1) < index, (self.group, index, self.first_index)
        assert index > self.commit.known, (self.group, index, self.commit.known)
        before = None if index == self.first_index else self.reader.locate(index - 1)
        gone = self.segments.truncate_from(index, before)
        self._tail.cut_from(index)
        self.snapshots.cut_from(index)
        self.progress.cut_from(index)
        segment = self.segments.active
        self._operations.add(
            Truncate(self.segments.directory, segment.path, segment.end, removed=tuple(gone), mark=self.mark())
        )
        self._writer.add(self)

    def remove_before(self, index: int) -> None:
        """Remove whole segments that end below `index`.

        A segment goes only if a snapshot of everything up to its end is durable, and a later entry is synced: otherwise
        a power cut could leave a log that begins with nothing to start from.
        """
        self._check()
        count = 0
        for number, segment in enumerate(list(self.segments)[:-1], start=1):
            if segment.last_index >= index or segment.last_index >= self.synced_index:
                break
            if segment.last_index in self.snapshots.durable:
                count = number
        if not count:
            return
        gone = self.segments.remove_first(count)
        self._tail.cut_before(self.first_index)
        self.snapshots.cut_before(self.first_index)
        self._operations.add(Remove(self.segments.directory, tuple(gone), self.first_index))
        self._writer.add(self)

    def remove_before_offset(self, offset: int, keep_from: int | None = None) -> None:
        """Remove the segments whose records all lie below `offset`, as `remove_before` does. Entries from `keep_from`
        on stay. A log that has failed keeps all."""
        if self.failed is not None or self.segments.first.next_offset > offset:  # retention asks often: decide cheaply
            return
        below = self.closed_below(offset)
        end = below[-1][1] + 1 if below else 0
        self.remove_before(end if keep_from is None else min(end, keep_from))

    def closed_below(self, offset: int) -> list[tuple[int, int, int]]:
        """(first index, last index, bytes) of the segments whose records all lie below `offset`, but for the last
        segment of the log."""
        return [(s.first_index, s.last_index, s.end) for s in list(self.segments)[:-1] if s.next_offset <= offset]

    # Snapshots, and what the replica has applied and knows to be committed

    def wants_snapshot(self, applied_index: int) -> bool:
        """Whether the log wants a snapshot at this index: a segment ends there, and none has been saved yet.

        A segment may be closed long after its last entry was applied.
        """
        return not self.snapshots.has(applied_index) and self.segments.end_at(applied_index)

    def save_snapshot(self, applied_index: int, data: bytes) -> None:
        """Keep the state machine's dump at the end of a segment. It is written once its entries are durable."""
        if self.failed is None and self.wants_snapshot(applied_index):
            last = self.segments.of_index(applied_index).last
            assert last is not None
            stored = StoredSnapshot(applied_index, last.append_time_us, last.header_crc, data)
            self.snapshots.save(applied_index, pack_snapshot(stored))
            self._write_snapshots()

    def note_applied(self, index: int) -> None:
        """Entries up to `index` are applied. Those that are durable, too, may leave memory."""
        self._applied_index = max(self._applied_index, index)
        self._tail.release(min(self._applied_index, self.durable_index) + 1)

    def note_commit(self, index: int) -> None:
        """Entries up to `index` are committed. The next mark says it, so that a restart knows it without the leader."""
        if self.failed is None and self.commit.advance(index):
            self._writer.commit_advanced(self)

    def sync_commit(self, index: int) -> None:
        """Make durable that everything up to `index` is committed, as soon as `note_commit` says so; then `on_durable`
        is called."""
        self.commit.require(index)
        self._writer.commit_advanced(self)

    def _write_snapshots(self) -> None:
        directory = self.segments.directory
        for index, packed in self.snapshots.queue(self.synced_index):
            self._operations.add(PutSnapshot(directory, in_group(directory, index + 1, SNAPSHOT), packed))
            self._writer.add(self)

    # The writer's side

    def take_operations(self) -> list[Operation]:
        """Return the work of the sync batch that begins. The log may change before `written` is called."""
        self.progress.begin(self.last_index)
        self.snapshots.take()
        return self._operations.take()

    @property
    def mark_flags(self) -> int:
        """The flags of the log's marks while it is open."""
        return LAZY if self.config.sync_interval_s else 0

    def mark(self, flags: int = 0) -> DurabilityMark:
        """A mark of the log's end, to be written once that is durable."""
        segment = self.segments.active
        return DurabilityMark(
            self.group,
            count=self.count,
            flags=flags,
            crc=segment.last_crc,
            first_index=self.first_index,
            index=segment.last_index,
            term=segment.last_term,
            segment=segment.first_index,
            position=segment.last_position,
            commit=min(self.commit.known, segment.last_index),
            snapshot_index=max(self.snapshots.durable, default=0),
            fault_count=self.fault_count,
        )

    def written(self, *, synced: bool = True) -> None:
        """The sync batch has written its operations, and has synced them unless the log is synced at intervals."""
        if synced:
            self.snapshots.synced(self.first_index)
            self.progress.synced()
            self._write_snapshots()
        if self.progress.written():
            self._tail.release(min(self._applied_index, self.durable_index) + 1)
            if self.on_durable is not None:
                self.on_durable()

    def commit_synced(self, index: int) -> None:
        """The disk knows that everything up to `index` is committed."""
        if self.commit.synced(index) and self.on_durable is not None:
            self.on_durable()

    def fail(self, error: TinymqError) -> None:
        """The sync batch has failed. Its entries are not durable, and never will be."""
        if self.failed is None:
            self.failed = error
            self._operations.take()
            if self.on_failed is not None:
                self.on_failed(error)

    def close(self) -> None:
        """Accept nothing more, and make no callback."""
        self.on_durable = self.on_failed = self.reader.on_damage = None
        if not self.closed:
            self._tail.close()
        self.closed = True
        self.fail(Closed(f"the log of {self.group} is closed"))

    def _check(self) -> None:
        if self.failed is not None:
            raise self.failed
