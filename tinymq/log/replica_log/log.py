"""One Raft group's log: appending, truncating, trimming. It is the partition's log, too.

Everything here is on the loop and in memory; the disk follows in the same order, through the writer. What is
asked of the disk is a list of values (operations.py), so that the loop may go on while they are carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tinymq.base.errors import Closed, TinymqError
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry, pack_header
from tinymq.log.broker_files.durability_marks import LAZY, DurabilityMark
from tinymq.log.files.files import Files
from tinymq.log.files.layout import INDEX, SEGMENT, SNAPSHOT, group_directory, in_group
from tinymq.log.files.runner import Runner
from tinymq.log.replica_log.commits import CommitProgress
from tinymq.log.replica_log.kept_snapshots import SnapshotTracker
from tinymq.log.replica_log.log_config import LogConfig
from tinymq.log.replica_log.operations import Create, Operation, PutSnapshot, Remove, Seal, Truncate, Write
from tinymq.log.replica_log.recovery import Recovered, make_index
from tinymq.log.replica_log.tail import Tail
from tinymq.log.replica_log.tail_budget import TailBudget
from tinymq.log.replica_log.time_index import TimedView
from tinymq.log.segment.index import pack_index
from tinymq.log.segment.segment import Segment, SegmentHeader, pack_segment_header, segment_of_index
from tinymq.log.segment.snapshot_files import StoredSnapshot, pack_snapshot


class LogWriter(Protocol):
    """Who carries out what a log asks for, and tells it when that is done: `take`, then `written` or `fail`."""

    def add(self, log: Log) -> None:
        """`log` has operations."""
        ...

    def note_mark(self, log: Log) -> None:
        """`log` has a newer commit index; if it presses, `kept` is called once it is durable."""
        ...


class Log(TimedView):
    """`durable_index` rises, and `on_durable` is called, after a sync, or where one follows within an interval after a
    write: see `written`, which alone says what may be acknowledged. `on_failed` is called once, with SyncFailed,
    DiskFull or another StorageError, and then the log takes nothing any more."""

    def __init__(
        self, group: GroupId, files: Files, runner: Runner, writer: LogWriter, recovered: Recovered, *,
        count: int, commit: int, config: LogConfig, tails: TailBudget, fault_count: int | None = 0,
    ) -> None:  # fmt: skip
        super().__init__(group, files, runner, tails)
        self.on_durable: Callable[[], None] | None = None
        self.on_failed: Callable[[TinymqError], None] | None = None
        self.failed: TinymqError | None = None  # why nothing is taken any more
        self.closed = False  # let go of: another one may have its place
        self.room: Callable[[int], None] | None = None  # see `check_quota`
        self.count = count  # of this group's incarnations here
        self.fault_count = fault_count  # see Mark
        self._writer = writer
        self._folder = group_directory(group)
        self.config = config
        self._segments = recovered.segments
        self._runs = recovered.runs
        self._tail = Tail(self.last_index + 1, tails)
        self._states = SnapshotTracker(recovered.states)
        self._operations: list[Operation] = []
        self._chunks: list[bytes] | None = None  # of the last operation, when that is a Write to go on with
        self._applied = recovered.applied_index
        self.recovered_commit = min(commit, self.last_index)
        self.commit = CommitProgress(self.recovered_commit)
        self._base_time_us = recovered.base_time_us
        self._covered = 0  # the round under way makes durable what lies up to here and was not truncated since
        self.durable_index = self.synced_index = self.last_index

    # Appending

    def append(self, entries: Sequence[Entry]) -> None:
        """Take entries in, in memory; the disk follows. Asserts that each continues the log: index, chain, offset.
        Raises the error that ended the log, if one did."""
        self._check()
        for entry in entries:
            segment = self._segments[-1]
            header = entry.header
            if not segment.sealed and segment.is_over(header.append_time_us, self.config.segment_us):
                self._seal(segment)
            if segment.sealed:
                segment = self._roll(segment)
            assert header.index == segment.last_index + 1, (self.group, header.index, segment.last_index)
            assert header.prev_crc == segment.last_crc, (self.group, header.index)
            assert header.base_offset == segment.next_offset, (self.group, header.index)
            position = segment.append(header)
            self._runs.note(header.index, header.term)
            self._tail.append(entry, position)
            if self._chunks is None:
                self._chunks = []
                self._operations.append(Write(segment.path, position, self._chunks))
            self._chunks.append(entry.head)
            if entry.payload:
                self._chunks.append(entry.payload)
            if segment.is_full(self.config.segment_bytes):
                self._seal(segment)
        if entries:
            self._wake()

    def configure(self, config: LogConfig) -> None:
        """From now on; `storage` stays as it is."""
        assert config.storage is self.config.storage, self.group
        self.config = config

    def _seal(self, segment: Segment) -> None:
        assert segment.last is not None
        segment.sealed = True
        index = pack_index(make_index(segment, self._runs, pack_header(segment.last)))
        self._do(
            Seal(self._folder, segment.path, segment.end, in_group(self._folder, segment.first_index, INDEX), index)
        )

    def _roll(self, full: Segment) -> Segment:
        header = SegmentHeader(self.group, full.last_index + 1, full.next_offset, full.last_term, full.last_crc)
        segment = Segment(header, in_group(self._folder, header.first_index, SEGMENT))
        self._do(Create(self._folder, segment.path, pack_segment_header(header)))
        self._segments.append(segment)
        return segment

    def check_quota(self, length: int) -> None:
        """Raises QuotaExceeded when so many bytes more are too many for the broker's logs of this kind."""
        if self.room is not None:
            self.room(length)

    # Cutting

    def truncate_from(self, index: int) -> None:
        """Entries from `index` on are gone from memory at once; the disk follows, its mark first.
        Asserts that what is before it is known, and that it is not committed. Blocks for what is not in memory."""
        self._check()
        if index > self.last_index:
            return
        assert max(1, self.first_index - 1) < index, (self.group, index, self.first_index)
        assert index > self.commit.known, (self.group, index, self.commit.known)
        place = None if index == self.first_index else self._locate(index - 1)
        gone: list[str] = []
        while self._segments[-1].first_index > max(index - 1, self.first_index):
            gone += self._paths(self._segments.pop(), SEGMENT, INDEX)
        segment = self._segments[-1]
        if segment.sealed and index <= segment.last_index:
            gone.append(in_group(self._folder, segment.first_index, INDEX))
        if index <= segment.last_index:
            if place is None:
                segment.cut(None, 0, None)
            else:
                segment.cut(place.header, place.position, place.max_timestamp_us)
        self._runs.cut_from(index)
        self._tail.cut_from(index)
        self._window = []
        self._states.cut_from(index)
        self.durable_index = min(self.durable_index, index - 1)
        self.synced_index = min(self.synced_index, index - 1)
        self._covered = min(self._covered, index - 1)
        self._cuts += 1
        self._do(Truncate(self._folder, segment.path, segment.end, tuple(gone), self.mark()))
        self._wake()

    def remove_before(self, index: int) -> None:
        """Remove whole segments that end below `index`, as far as the applied state where the next one begins is
        durable, and an entry behind it."""
        self._check()
        keep = 0
        for at, segment in enumerate(self._segments[:-1]):
            if segment.last_index >= index or segment.last_index >= self.synced_index:
                break
            if segment.last_index in self._states.durable:
                keep = at + 1
        if not keep:
            return
        gone = [path for segment in self._segments[:keep] for path in self._paths(segment, SEGMENT, INDEX, SNAPSHOT)]
        del self._segments[:keep]
        self._tail.cut_before(self.first_index)
        self._runs.cut_before(self.first_index)
        self._states.cut_before(self.first_index)
        self._window = []
        self._cuts += 1
        self._do(Remove(self._folder, tuple(gone), self.first_index))
        self._wake()

    def remove_before_offset(self, offset: int) -> None:
        """As `remove_before`: the segments that hold no record at or above `offset`. Of a log that has ended, none."""
        if self.failed is None and self._segments[0].next_offset <= offset:  # cheap: it is asked again and again
            gone = [s.last_index + 1 for s in self._segments[:-1] if s.next_offset <= offset]
            self.remove_before(gone[-1] if gone else 0)

    def _paths(self, segment: Segment, *kinds: str) -> list[str]:
        return [in_group(self._folder, segment.first_index, kind) for kind in kinds]

    # Applied states and notes

    def wants_snapshot(self, applied_index: int) -> bool:
        """Is the applied state at this index to be kept, and not given yet? A segment may be closed when its last
        entry is long applied."""
        return not self._states.has(applied_index) and self.ends_segment(applied_index)

    def save_snapshot(self, applied_index: int, data: bytes) -> None:
        """Keep the applied state where a segment ends (`ends_segment`); written once its entries are durable."""
        if self.failed is None and self.wants_snapshot(applied_index):
            last = self._segments[segment_of_index(self._segments, applied_index)].last
            assert last is not None
            stored = StoredSnapshot(applied_index, last.append_time_us, last.header_crc, data)
            self._states.give(applied_index, pack_snapshot(stored))
            self._write_states()

    def note_applied(self, index: int) -> None:
        """Entries up to `index` are applied: once durable, they need not stay in memory."""
        self._applied = max(self._applied, index)
        self._tail.release(min(self._applied, self.durable_index) + 1)

    def note_commit(self, index: int) -> None:
        """Recorded with the next mark, so that a restart need not learn it from the leader."""
        if self.failed is None and self.commit.learn(index):
            self._writer.note_mark(self)

    def sync_commit(self, index: int) -> None:
        """Make durable, as soon as it is noted, that all up to `index` is committed; `on_durable` is called then."""
        self.commit.want(index)
        self._writer.note_mark(self)

    def _write_states(self) -> None:
        for at, packed in self._states.ask(self.synced_index):
            self._do(PutSnapshot(self._folder, in_group(self._folder, at + 1, SNAPSHOT), packed))
            self._wake()

    # The writer's side

    def take(self) -> list[Operation]:
        """What the round that begins has to do. Until `written`, the log may go on changing."""
        operations, self._operations, self._chunks = self._operations, [], None
        self._covered = self.last_index
        self._states.take()
        return operations

    @property
    def mark_flags(self) -> int:
        """What marks of it say while it is open."""
        return LAZY if self.config.sync_interval_s else 0

    def mark(self, flags: int = 0) -> DurabilityMark:
        """The log's end, as a mark to be written once that is durable."""
        segment = self._segments[-1]
        return DurabilityMark(
            self.group, self.count, flags, segment.last_crc, self.first_index, segment.last_index, segment.last_term,
            segment.first_index, segment.last_position, min(self.commit.known, segment.last_index),
            max(self._states.durable, default=0), self.fault_count,
        )  # fmt: skip

    def written(self, *, synced: bool = True) -> None:
        """The round is written, and `synced`; else the log is one that may be acknowledged before."""
        if synced:
            self._states.synced(self.first_index)
            self.synced_index = max(self.synced_index, self._covered)
            self._write_states()
        if self._covered > self.durable_index:
            self.durable_index = self._covered
            self._tail.release(min(self._applied, self.durable_index) + 1)
            if self.on_durable is not None:
                self.on_durable()

    def kept(self, commit: int) -> None:
        if self.commit.keep(commit) and self.on_durable is not None:
            self.on_durable()

    def fail(self, error: TinymqError) -> None:
        """The round failed: what it held is not durable and never will be."""
        if self.failed is None:
            self.failed = error
            self._operations, self._chunks = [], None
            if self.on_failed is not None:
                self.on_failed(error)

    def close(self) -> None:
        """Take nothing more, and call nobody."""
        self.on_durable = self.on_failed = self.on_damage = None
        if not self.closed:
            self._tail.close()
        self.closed = True
        self.fail(Closed(f"the log of {self.group} is closed"))

    def _check(self) -> None:
        if self.failed is not None:
            raise self.failed

    def _do(self, operation: Operation) -> None:
        self._operations.append(operation)
        self._chunks = None

    def _wake(self) -> None:
        self._writer.add(self)
