"""Look-ups by the records' own timestamps, which need not rise. Entries are read as needed, in the executor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from tinymq.format.entry import Entry, EntryHeader, Kind
from tinymq.format.transactional import Item
from tinymq.log.replica_log.reader import LogReader
from tinymq.log.replica_log.segment_list import SegmentList
from tinymq.log.segment.index import NO_TIMESTAMP
from tinymq.log.segment.segment import Segment

SCAN_BYTES = 512 * 1024  # read at a time when looking for a timestamp


class TimeIndex:
    """Finds entries by time: first the segment by its greatest timestamp, then a row of its sparse index, then the
    entry, and in a PUBLISH entry the batch."""

    def __init__(self, segments: SegmentList, reader: LogReader) -> None:
        self._segments = segments
        self._reader = reader

    async def entry_for_time(self, timestamp_us: int, end_offset: int, start_offset: int = 0) -> Entry | None:
        """The first entry that has a record of `timestamp_us` or later, and records between the two offsets.

        The entry begins below `end_offset` and ends above `start_offset`.
        """
        for segment in list(self._segments):
            if segment.header.base_offset >= end_offset:
                break
            greatest = segment.max_timestamp_us
            if segment.next_offset > start_offset and greatest is not None and greatest >= timestamp_us:
                row = max(segment.sparse.row_of_time(timestamp_us), segment.sparse.row_of_offset(start_offset))
                async for entry in self._data(segment.sparse.indexes[row], min(end_offset, segment.next_offset)):
                    if entry.header.max_timestamp_us >= timestamp_us and entry.header.next_offset > start_offset:
                        found = await self._batch_of_time(entry, timestamp_us, end_offset, start_offset)
                        if found is not None:
                            return found
        return None

    async def _batch_of_time(self, entry: Entry, timestamp_us: int, end_offset: int, start_offset: int) -> Entry | None:
        """The entry itself, or the first such batch of a PUBLISH entry, as the entry that readers get."""
        if entry.header.kind == Kind.DATA:
            return entry
        within = _between(entry.header, start_offset, end_offset)
        item = await self._reader.of_items(
            entry, lambda items: next((i for i in items if i.max_timestamp_us >= timestamp_us and within(i)), None)
        )
        return None if item is None else await self._reader.published_entry(entry, item)

    async def entry_of_max_timestamp(self, end_offset: int, start_offset: int = 0) -> Entry | None:
        """The first entry with the greatest record timestamp of all entries that begin below `end_offset` and end above
        `start_offset`."""
        greatest = NO_TIMESTAMP
        for segment in list(self._segments):
            base = segment.header.base_offset
            if segment.next_offset <= start_offset or base >= end_offset or segment.max_timestamp_us is None:
                continue
            # A segment that lies between the two offsets as a whole is not read. Nor is one that an offset cuts, unless
            # its greatest timestamp is above all before it.
            if base >= start_offset and segment.next_offset <= end_offset:
                greatest = max(greatest, segment.max_timestamp_us)
            elif segment.max_timestamp_us > greatest:
                greatest = max(greatest, await self._greatest_within(segment, start_offset, end_offset))
        if greatest == NO_TIMESTAMP:
            return None
        return await self.entry_for_time(greatest, end_offset, start_offset)

    async def _greatest_within(self, segment: Segment, start_offset: int, end_offset: int) -> int:
        """The greatest record timestamp of the segment's entries between two offsets. Reading ends with the entry that
        has the greatest of the whole segment."""
        end_offset = min(end_offset, segment.next_offset)
        assert segment.max_timestamp_us is not None
        row = segment.sparse.row_of_offset(max(start_offset, segment.header.base_offset))
        greatest = NO_TIMESTAMP
        if start_offset <= segment.header.base_offset:
            # Every entry before `end_offset` counts, so the sparse index already has the greatest up to its last row.
            row = max(row, segment.sparse.row_of_offset(end_offset))
            greatest = segment.sparse.timestamps[row]
        async for entry in self._data(segment.sparse.indexes[row], end_offset):
            if entry.header.next_offset > start_offset:
                greatest = max(greatest, await self._greatest_of(entry, start_offset, end_offset))
                if greatest == segment.max_timestamp_us:
                    break
        return greatest

    async def _greatest_of(self, entry: Entry, start_offset: int, end_offset: int) -> int:
        """The greatest record timestamp of the entry's batches that lie between two offsets, also in part."""
        header = entry.header
        if header.kind == Kind.DATA or (header.base_offset >= start_offset and header.next_offset <= end_offset):
            return header.max_timestamp_us
        within = _between(header, start_offset, end_offset)
        return await self._reader.of_items(
            entry, lambda items: max((i.max_timestamp_us for i in items if within(i)), default=NO_TIMESTAMP)
        )

    async def _data(self, index: int, end_offset: int) -> AsyncIterator[Entry]:
        """Entries with records from `index` on that begin below `end_offset`."""
        # A trim may have removed entries since the caller looked: continue with the first one that is left.
        while entries := await self._reader.read(max(index, self._segments.first.first_index), SCAN_BYTES):
            for entry in entries:
                if entry.header.base_offset >= end_offset:
                    return
                if entry.header.record_count:
                    yield entry
            index = entries[-1].index + 1


def _between(publish: EntryHeader, start_offset: int, end_offset: int) -> Callable[[Item], bool]:
    """Whether the batch of an item begins below `end_offset` and ends above `start_offset`."""
    base = publish.base_offset
    return lambda item: base + item.first < end_offset and base + item.first + item.record_count > start_offset
