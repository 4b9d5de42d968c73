"""What can be asked of a log. Nothing here changes it, but for what is remembered of it in memory.

Entries lie in memory (the tail) or on disk (all others). An entry leaves memory only when it is durable and
applied, so what is on disk alone is never truncated, and a cold read never meets the writer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from tinymq.base.errors import CorruptData, OffsetOutOfRange
from tinymq.base.types import GroupId
from tinymq.format.entry import Entry, EntryHeader
from tinymq.log.files.files import Files
from tinymq.log.files.runner import Runner
from tinymq.log.replica_log.tail import Tail
from tinymq.log.replica_log.tail_budget import TailBudget
from tinymq.log.replica_log.terms import TermRuns
from tinymq.log.segment.index import NO_TIMESTAMP
from tinymq.log.segment.reads import Frames, Located, Span, find_data_frames, locate, read_data_frames, read_entries
from tinymq.log.segment.segment import Segment, segment_of_index, segment_of_offset
from tinymq.log.segment.snapshot_files import Snapshot, read_base_snapshot

T = TypeVar("T")

WINDOW_BYTES = 1024 * 1024  # read ahead by `entry`


class LogView:
    """Bounds, terms, entries and offsets of one Raft group's log. On the loop; `async` methods read from disk in
    the executor, `entry` and `crc_at` block when what they want is not in memory."""

    def __init__(self, group: GroupId, files: Files, runner: Runner, tails: TailBudget) -> None:
        self.group = group
        self.on_damage: Callable[[CorruptData], None] | None = None  # a read found that what is stored is damaged
        self.durable_index = 0  # all up to it may be acknowledged; invariant: <= last_index
        self.synced_index = 0  # all up to it survive a power cut; = durable_index unless sync is at intervals
        self.recovered_commit = 0  # a commit index that was known before the restart; <= durable_index then
        self._files = files
        self._runner = runner
        self._segments: list[Segment] = []  # never empty, but in a damaged log that lost its first one
        self._runs = TermRuns()
        self._tail = Tail(1, tails)
        self._window: list[Entry] = []  # what `entry` read last
        self._cuts = 0  # truncations and removals so far
        self._base_time_us = 0  # append time of the entry before the first one, as far as known

    # Bounds

    @property
    def first_index(self) -> int:
        return self._segments[0].first_index if self._segments else 1

    @property
    def last_index(self) -> int:
        return self._segments[-1].last_index if self._segments else 0

    @property
    def last_term(self) -> int:
        return self._segments[-1].last_term if self._segments else 0

    @property
    def last_crc(self) -> int:
        return self._segments[-1].last_crc if self._segments else 0

    @property
    def last_append_time_us(self) -> int:
        """Append time of the last entry, whether it is kept or not; 0 when there is none."""
        last = next((s.last for s in reversed(self._segments) if s.last is not None), None)
        return self._base_time_us if last is None else last.append_time_us

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self._segments[-1].next_offset if self._segments else 0

    @property
    def log_start_offset(self) -> int:
        """Offset of the first record that is kept."""
        return self._segments[0].header.base_offset if self._segments else 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.end for segment in self._segments)

    def segment_bounds(self) -> list[tuple[int, int, int, int | None]]:
        """(first index, last index, bytes, greatest record timestamp) of each segment, oldest first."""
        return [(s.first_index, s.last_index, s.end, s.max_timestamp_us) for s in self._segments]

    def ends_segment(self, index: int) -> bool:
        """Whether `index` is the last entry of a full segment: an applied state is wanted there."""
        if not self._segments:
            return False
        segment = self._segments[segment_of_index(self._segments, index)]
        return segment.sealed and segment.last_index == index

    def term_at(self, index: int) -> int | None:
        """Term of the entry at `index`; None outside first_index - 1 … last_index."""
        if not self._segments or not self.first_index - 1 <= index <= self.last_index:
            return None
        if index < self.first_index:
            return self._segments[0].header.prev_term
        return self._runs.at(index)

    def crc_at(self, index: int) -> int | None:
        """header_crc of the entry at `index`; None outside first_index - 1 … last_index. Blocks for an entry that is
        not in memory. Raises CorruptData."""
        if not self._segments or not self.first_index - 1 <= index <= self.last_index:
            return None
        if index < self.first_index:
            return self._segments[0].header.prev_crc
        if (entry := self._tail.entry(index)) is not None:
            return entry.header.header_crc
        try:
            return self._locate(index).header.header_crc
        except CorruptData as error:
            raise self._damaged(error) from None

    # Entries

    def tail(self, index: int, bytes_max: int) -> list[Entry] | None:
        """Entries from `index` on that are in memory, at least one; [] past the end; None when it is not there."""
        return self._tail.slice(index, bytes_max)

    async def read(self, index: int, bytes_max: int) -> list[Entry]:
        """Entries from `index` on, at least one and about `bytes_max` at most; [] past the end.
        Raises OffsetOutOfRange below first_index, CorruptData when what is stored is not what was written."""
        while True:
            found = self._tail.slice(index, bytes_max)
            if found is not None:
                return found
            cuts = self._cuts
            span = self._span_of_index(index)
            try:
                return await self._runner.run(partial(read_entries, self._files, span, index, bytes_max))
            except CorruptData as error:
                if cuts == self._cuts:  # else it may have been cut away while it was read: look again
                    raise self._damaged(error) from None

    def entry(self, index: int) -> Entry:
        """The entry at `index`; blocks when it is not in memory, reading ahead. Raises as `read`.
        Asserts that `index` is not past the end."""
        assert index <= self.last_index, (index, self.last_index)
        found = self._tail.entry(index)
        if found is not None:
            return found
        at = index - self._window[0].index if self._window else -1
        if not 0 <= at < len(self._window):
            self._window = read_entries(self._files, self._span_of_index(index), index, WINDOW_BYTES)
            at = 0
        found = self._window[at]
        if at == len(self._window) - 1:
            self._window = []  # entries are asked for in order: all of it was
        return found

    async def read_base_snapshot(self) -> Snapshot | None:
        """What was applied right before the first entry; None when that is entry 1. Raises CorruptData."""
        while (first := self._segments[0].header).first_index > 1:
            cuts = self._cuts
            try:
                return await self._runner.run(partial(read_base_snapshot, self._files, first))
            except CorruptData as error:
                if cuts == self._cuts:
                    raise self._damaged(error) from None
        return None

    def _damaged(self, error: CorruptData) -> CorruptData:
        """To be raised: somebody else may have to know, too."""
        if self.on_damage is not None:
            self.on_damage(error)
        return error

    # Offsets

    def tail_from_offset(self, offset: int, end_offset: int, bytes_max: int) -> bytes | None:
        """Frames with records, as stored, the first one holding `offset`, none that begins at `end_offset` or above;
        at least one, if there is any. None when the first is not in memory."""
        if offset >= min(end_offset, self.next_offset):
            return b""
        return self._tail.frames(offset, end_offset, bytes_max)

    async def read_from_offset(self, offset: int, end_offset: int, bytes_max: int) -> bytes | memoryview:
        """As `tail_from_offset`, from disk when need be. Raises OffsetOutOfRange below log_start_offset,
        CorruptData."""
        return await self._from_offset(read_data_frames, offset, end_offset, bytes_max)

    async def find_from_offset(self, offset: int, end_offset: int, bytes_max: int) -> Frames:
        """As `read_from_offset`, for who can send a file: from disk, perhaps StoredFrames."""
        return await self._from_offset(find_data_frames, offset, end_offset, bytes_max)

    async def _from_offset(
        self, read: Callable[[Files, Span, int, int, int], T], offset: int, end_offset: int, bytes_max: int
    ) -> T | bytes:
        while True:
            warm = self.tail_from_offset(offset, end_offset, bytes_max)
            if warm is not None:
                return warm
            cuts = self._cuts
            span = self._span_of_offset(offset)
            try:
                return await self._runner.run(partial(read, self._files, span, offset, end_offset, bytes_max))
            except CorruptData as error:
                if cuts == self._cuts:
                    raise self._damaged(error) from None

    # Where things lie

    def _span_of_index(self, index: int) -> Span:
        if index < self.first_index:
            raise OffsetOutOfRange(f"entry {index} is below the log's first one, {self.first_index}")
        segment = self._segments[segment_of_index(self._segments, index)]
        return self._span(segment, segment.sparse.row_of_index(index))

    def _span_of_offset(self, offset: int) -> Span:
        if offset < self.log_start_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is below the log's start, {self.log_start_offset}", log_start=self.log_start_offset
            )
        segment = self._segments[segment_of_offset(self._segments, offset)]
        return self._span(segment, segment.sparse.row_of_offset(offset))

    def _span(self, segment: Segment, row: int) -> Span:
        """From a row of the sparse index to the end of what is on disk for certain."""
        sparse = segment.sparse
        last_index = min(segment.last_index, self.durable_index)
        assert sparse.indexes[row] <= last_index, (self.group, sparse.indexes[row], last_index)
        return Span(segment.path, sparse.positions[row], sparse.indexes[row], last_index, sparse.timestamps[row])

    def _locate(self, index: int) -> Located:
        """Header and place of an entry on disk or in memory. Blocks when it is on disk alone."""
        segment = self._segments[segment_of_index(self._segments, index)]
        row = segment.sparse.row_of_index(index)
        first = segment.sparse.indexes[row]
        greatest = segment.sparse.timestamps[row]
        if first < self._tail.first_index:
            if index < self._tail.first_index:
                return locate(self._files, self._span(segment, row), index)
            before = locate(self._files, self._span(segment, row), self._tail.first_index - 1)
            greatest = NO_TIMESTAMP if before.max_timestamp_us is None else before.max_timestamp_us
            first = self._tail.first_index
        headers = [self._cached(i) for i in range(first, index + 1)]
        greatest = max([greatest, *(h.max_timestamp_us for h in headers if h.record_count)])
        return Located(headers[-1], self._tail.position(index), None if greatest == NO_TIMESTAMP else greatest)

    def _cached(self, index: int) -> EntryHeader:
        entry = self._tail.entry(index)
        assert entry is not None, index
        return entry.header
