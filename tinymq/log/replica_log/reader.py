"""Reads of one log: entries by index, and stored frames by offset.

An entry lies in memory (the tail) or on disk (all others). It leaves memory only when it is durable and applied, so
what is on disk alone is never truncated, and a read from disk never meets the writer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from tinymq.base.errors import CorruptData, OffsetOutOfRange
from tinymq.format.entry import HEADER_SIZE, Entry, EntryHeader, parse_entry
from tinymq.format.made_frames import misfit, published_items
from tinymq.format.transactional import STAGED_HEAD_SIZE, Item, PublishedItems
from tinymq.log.files.files import Files
from tinymq.log.files.runner import Runner
from tinymq.log.replica_log.segment_list import SegmentList
from tinymq.log.replica_log.sync_progress import SyncProgress
from tinymq.log.replica_log.tail import Tail
from tinymq.log.segment.index import NO_TIMESTAMP
from tinymq.log.segment.published_batches import IndexRow, PublishedRun, StagedRun, frames_of, sendable_frames
from tinymq.log.segment.reads import Frames, Located, Span, find_data_frames, locate, read_data_frames, read_entries
from tinymq.log.segment.segment import Segment
from tinymq.log.segment.snapshot_files import Snapshot, read_base_snapshot

T = TypeVar("T")

READ_AHEAD_BYTES = 1024 * 1024  # that `entry` reads at a time
BATCHES_MAX = 2048  # of a PUBLISH entry in one read: a few milliseconds of the loop


class LogReader:
    """Lives on the loop. The `async` methods read from disk in the executor; `entry`, `crc_at` and `locate` block if
    the entry is not in memory.

    The log may be cut while a read is in the executor. The read then finds a file that is gone or shorter, which is no
    damage: it is repeated if `SegmentList.cuts` has changed.
    """

    def __init__(self, segments: SegmentList, tail: Tail, progress: SyncProgress, files: Files, runner: Runner) -> None:
        self.on_damage: Callable[[CorruptData], None] | None = None  # called when a read finds damage, before it raises
        self._segments = segments
        self._tail = tail
        self._progress = progress
        self._files = files
        self._runner = runner
        self._window: list[Entry] = []  # the entries that `entry` read last, consecutive
        self._window_cuts = 0  # `SegmentList.cuts` when it read them

    # Entries

    def tail(self, index: int, bytes_max: int) -> list[Entry] | None:
        """Entries from `index` on that are in memory, at least one; [] past the end; None if `index` is not in
        memory."""
        return self._tail.slice(index, bytes_max)

    async def read(self, index: int, bytes_max: int) -> list[Entry]:
        """Entries from `index` on, at least one and about `bytes_max` at most; [] past the end.

        Raises OffsetOutOfRange below the first entry, CorruptData if the stored bytes are not those that were written.
        """
        while True:
            entries = self._tail.slice(index, bytes_max)
            if entries is not None:
                return entries
            cuts, span = self._segments.cuts, self._span_of_index(index)
            try:
                return await self._runner.run(partial(read_entries, self._files, span, index, bytes_max))
            except CorruptData as error:
                if cuts == self._segments.cuts:
                    raise self._damaged(error) from None

    def entry(self, index: int) -> Entry:
        """The entry at `index`. Blocks if it is not in memory, and reads ahead. Raises as `read`.

        Asserts that `index` is not past the end.
        """
        last_index = self._segments.active.last_index
        assert index <= last_index, (index, last_index)
        entry = self._tail.entry(index)
        if entry is not None:
            return entry
        item = index - self._window[0].index if self._window else -1
        if not 0 <= item < len(self._window) or self._window_cuts != self._segments.cuts:
            self._window = read_entries(self._files, self._span_of_index(index), index, READ_AHEAD_BYTES)
            self._window_cuts = self._segments.cuts
            item = 0
        entry = self._window[item]
        if item == len(self._window) - 1:
            self._window = []  # the state machine asks for entries in order, and now has all of these
        return entry

    def crc_at(self, index: int) -> int | None:
        """header_crc of the entry at `index`; None where the log does not know it. Blocks if the entry is not in
        memory. Raises CorruptData."""
        if not self._segments.covers(index):
            return None
        if index < self._segments.first.first_index:
            return self._segments.first.header.prev_crc
        if (entry := self._tail.entry(index)) is not None:
            return entry.header.header_crc
        try:
            return self.locate(index).header.header_crc
        except CorruptData as error:
            raise self._damaged(error) from None

    async def read_base_snapshot(self) -> Snapshot | None:
        """The snapshot of everything before the first entry; None if that is entry 1. Raises CorruptData."""
        while (first := self._segments.first.header).first_index > 1:
            cuts = self._segments.cuts
            try:
                return await self._runner.run(partial(read_base_snapshot, self._files, first))
            except CorruptData as error:
                if cuts == self._segments.cuts:
                    raise self._damaged(error) from None
        return None

    def _damaged(self, error: CorruptData) -> CorruptData:
        """Report the damage, and return the error to raise."""
        if self.on_damage is not None:
            self.on_damage(error)
        return error

    # Offsets

    def tail_from_offset(self, offset: int, end_offset: int, bytes_max: int) -> bytes | None:
        """Frames with records, as stored. The first one holds `offset`, and none begins at `end_offset` or above.

        At least one frame if there is any. None if the first one is not in memory.
        """
        if offset >= min(end_offset, self._segments.active.next_offset):
            return b""
        return self._tail.frames(offset, end_offset, bytes_max)

    async def read_from_offset(self, offset: int, end_offset: int, bytes_max: int) -> bytes | memoryview:
        """As `tail_from_offset`, but read from disk if need be. Raises OffsetOutOfRange below the log's start,
        CorruptData."""
        return await self._from_offset(read_data_frames, frames_of, (offset, end_offset), bytes_max)

    async def find_from_offset(self, offset: int, end_offset: int, bytes_max: int) -> Frames:
        """As `read_from_offset`, for a caller that can send a part of a file: frames on disk may come as
        StoredFrames."""
        return await self._from_offset(find_data_frames, sendable_frames, (offset, end_offset), bytes_max)

    async def _from_offset(
        self,
        read: Callable[[Files, Span, int, int, int], T | Entry],
        read_published: Callable[[Files, PublishedRun], T],
        offsets: tuple[int, int],
        bytes_max: int,
    ) -> T | bytes:
        offset, end_offset = offsets
        while True:
            frames = self.tail_from_offset(offset, end_offset, bytes_max)
            if frames is not None:
                return frames
            cuts = self._segments.cuts
            try:
                found: T | Entry | None = self._tail.publish_at(offset)
                if found is None:
                    span = self._span_of_offset(offset)
                    found = await self._runner.run(partial(read, self._files, span, offset, end_offset, bytes_max))
                if not isinstance(found, Entry):
                    return found
                if cuts == self._segments.cuts:  # otherwise look where the batches lie now
                    batches = self._published_run(found, offsets, bytes_max)
                    return await self._runner.run(partial(read_published, self._files, batches))
            except CorruptData as error:
                if cuts == self._segments.cuts:
                    raise self._damaged(error) from None

    # Published batches

    async def of_items(self, publish: Entry, search: Callable[[PublishedItems], T]) -> T:
        """What `search` finds among the items of a PUBLISH entry, of which there may be 100,000. Raises CorruptData."""
        return await self._runner.run(lambda: search(PublishedItems(publish.payload)))

    async def published_entry(self, publish: Entry, item: Item) -> Entry:
        """The batch of a PUBLISH entry's item, as the entry that readers get.

        Raises OffsetOutOfRange if the batch is below the first entry, CorruptData.
        """
        offset = publish.header.base_offset + item.first
        return parse_entry(await self.read_from_offset(offset, offset + 1, 1))

    def _published_run(self, publish: Entry, offsets: tuple[int, int], bytes_max: int) -> PublishedRun:
        """The batches of a PUBLISH entry to read from the first offset on. Raises OffsetOutOfRange, CorruptData."""
        first_index = self._segments.first.first_index
        on_disk, cached = list[Item](), list[tuple[Item, memoryview]]()
        for item in published_items(publish.header, publish.payload, *offsets):
            bytes_max -= HEADER_SIZE + item.length
            count = len(on_disk) + len(cached)
            if count and (bytes_max < 0 or count == BATCHES_MAX):
                break
            staged = self._tail.entry(item.entry_index)
            if item.entry_index < first_index:
                if not count:
                    raise self._gone(publish, offsets[0], first_index)
                break
            if staged is None:
                if cached:  # a copy lies behind the next batches: the caller sends those on disk first
                    break
                on_disk.append(item)
            elif problem := misfit(item, staged.header):
                raise CorruptData(f"entry {item.entry_index}: {problem}", index=item.entry_index)
            else:
                cached.append((item, memoryview(staged.payload)[STAGED_HEAD_SIZE:]))
        return PublishedRun(publish.header, self._staged_runs(on_disk), cached)

    @staticmethod
    def _gone(publish: Entry, offset: int, first_index: int) -> OffsetOutOfRange:
        """The error for an offset whose batch is below the first entry.

        A replica that was filled from a snapshot begins with a later entry than others, and removed segments are gone:
        in both cases the records are below the partition's log start, at the latest when all is applied. So are those
        of all batches before them in the PUBLISH entry, and a reader continues behind the last batch that is gone.
        """
        items = PublishedItems(publish.payload)
        kept = items.kept_from(first_index)
        start = publish.header.base_offset + items[kept].first if kept < len(items) else publish.header.next_offset
        return OffsetOutOfRange(
            f"offset {offset} was published from before the log's first entry, {first_index}", log_start=start
        )

    def _staged_runs(self, items: Sequence[Item]) -> list[StagedRun]:
        """Where the batches lie: for each segment, and again where one lies before the batch in front of it."""
        runs: list[StagedRun] = []
        at = 0
        while at < len(items):
            segment = self._segments.of_index(items[at].entry_index)
            end = at + 1
            while end < len(items) and items[end - 1].entry_index < items[end].entry_index <= segment.last_index:
                end += 1
            sparse = segment.sparse
            first, last = (sparse.row_of_index(items[n].entry_index) for n in (at, end - 1))
            rows = zip(sparse.indexes[first : last + 1], sparse.positions[first : last + 1], strict=True)
            runs.append(StagedRun(segment.path, [IndexRow(*row) for row in rows], items[at:end]))
            at = end
        return runs

    # Where entries lie

    def locate(self, index: int) -> Located:
        """Header and place of an entry. Blocks if it is on disk alone. Raises CorruptData."""
        segment = self._segments.of_index(index)
        row = segment.sparse.row_of_index(index)
        first = segment.sparse.indexes[row]
        greatest = segment.sparse.timestamps[row]
        # The result has the greatest record timestamp of the segment up to `index`. The sparse index knows it up to its
        # row; the headers between row and `index` have the rest, some of them on disk and the later ones in the tail.
        if first < self._tail.first_index:
            if index < self._tail.first_index:
                return locate(self._files, self._span(segment, row), index)
            before = locate(self._files, self._span(segment, row), self._tail.first_index - 1)
            greatest = NO_TIMESTAMP if before.max_timestamp_us is None else before.max_timestamp_us
            first = self._tail.first_index
        headers = [self._header_in_tail(i) for i in range(first, index + 1)]
        greatest = max([greatest, *(h.max_timestamp_us for h in headers if h.record_count)])
        return Located(headers[-1], self._tail.position(index), None if greatest == NO_TIMESTAMP else greatest)

    def _header_in_tail(self, index: int) -> EntryHeader:
        entry = self._tail.entry(index)
        assert entry is not None, index
        return entry.header

    def _span_of_index(self, index: int) -> Span:
        first_index = self._segments.first.first_index
        if index < first_index:
            raise OffsetOutOfRange(f"entry {index} is below the log's first one, {first_index}")
        segment = self._segments.of_index(index)
        return self._span(segment, segment.sparse.row_of_index(index))

    def _span_of_offset(self, offset: int) -> Span:
        start = self._segments.first.header.base_offset
        if offset < start:
            raise OffsetOutOfRange(f"offset {offset} is below the log's start, {start}", log_start=start)
        segment = self._segments.of_offset(offset)
        return self._span(segment, segment.sparse.row_of_offset(offset))

    def _span(self, segment: Segment, row: int) -> Span:
        """From a row of the sparse index to the last entry of the segment that is certainly on disk."""
        sparse = segment.sparse
        last_index = min(segment.last_index, self._progress.durable_index)
        assert sparse.indexes[row] <= last_index, (segment.path, sparse.indexes[row], last_index)
        return Span(
            path=segment.path,
            position=sparse.positions[row],
            index=sparse.indexes[row],
            last_index=last_index,
            max_before_us=sparse.timestamps[row],
        )
