"""The segments of one log: its bounds, the terms of its entries, and the file in which an entry lies.

All of it is in memory. Nothing here reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Iterator

from tinymq.base.types import GroupId
from tinymq.format.entry import EntryHeader, pack_header
from tinymq.log.files.layout import INDEX, SEGMENT, SNAPSHOT, group_directory, in_group
from tinymq.log.replica_log.terms import TermRuns
from tinymq.log.segment.index import IndexFile
from tinymq.log.segment.reads import Located
from tinymq.log.segment.segment import Segment, SegmentHeader, segment_of_index, segment_of_offset


class SegmentList:
    """The segments, oldest first. Owned by one log, on the loop."""

    __slots__ = ("_empty", "_segments", "_terms", "active", "cuts", "directory", "first")

    def __init__(self, group: GroupId, segments: list[Segment], terms: TermRuns) -> None:
        self.directory = group_directory(group)
        self.cuts = 0  # truncations and removals so far: a reader compares it to see that its segments still count
        self._segments = segments
        self._terms = terms
        # A log that lost its first segment to damage has none. An empty segment stands in, which no file backs, so that
        # the bounds of such a log are those of an empty one.
        self._empty = Segment(SegmentHeader(group, 1, 0, 0, 0), "")
        self._note_ends()

    def _note_ends(self) -> None:
        self.first = self._segments[0] if self._segments else self._empty
        self.active = self._segments[-1] if self._segments else self._empty  # the only one that grows

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    # Looking up

    def bounds(self) -> list[tuple[int, int, int, int | None]]:
        """(first index, last index, bytes, greatest record timestamp) of each segment."""
        return [(s.first_index, s.last_index, s.end, s.max_timestamp_us) for s in self._segments]

    def of_index(self, index: int) -> Segment:
        """The segment that holds the entry at `index`, which is not below the first one."""
        return self._segments[segment_of_index(self._segments, index)]

    def of_offset(self, offset: int) -> Segment:
        """The segment that holds the record at `offset`, which is not below the log's start."""
        return self._segments[segment_of_offset(self._segments, offset)]

    def end_at(self, index: int) -> bool:
        """Whether `index` is the last entry of a full segment. The log keeps a snapshot there."""
        if not self._segments:
            return False
        segment = self.of_index(index)
        return segment.sealed and segment.last_index == index

    def covers(self, index: int) -> bool:
        """Whether the log knows term and crc at `index`: those of its entries, and of the one before the first."""
        return bool(self._segments) and self.first.first_index - 1 <= index <= self.active.last_index

    def term_at(self, index: int) -> int | None:
        """Term of the entry at `index`; None where the log does not know it."""
        if not self.covers(index):
            return None
        return self.first.header.prev_term if index < self.first.first_index else self._terms.at(index)

    @property
    def last_append_time_us(self) -> int | None:
        """Append time of the last entry; None if no segment has any."""
        return next((s.last.append_time_us for s in reversed(self._segments) if s.last is not None), None)

    # Growing

    def append(self, header: EntryHeader) -> int:
        """Add an entry to the active segment. Returns the position of its frame."""
        active = self.active
        # Most entries have the term of the one before. This runs for every entry, so it notes only the others.
        if active.last is None or header.term != active.last.term:
            self._terms.note(header.index, header.term)
        return active.append(header)

    def roll(self) -> Segment:
        """Begin a new segment behind the active one."""
        full = self.active
        header = SegmentHeader(
            full.header.group,
            first_index=full.last_index + 1,
            base_offset=full.next_offset,
            prev_term=full.last_term,
            prev_crc=full.last_crc,
        )
        self._segments.append(Segment(header, in_group(self.directory, header.first_index, SEGMENT)))
        self._note_ends()
        return self.active

    def index_of(self, segment: Segment) -> IndexFile:
        """The index file of a segment that has just become full."""
        assert segment.last is not None
        return make_index(segment, self._terms, pack_header(segment.last))

    # Cutting. Both return the paths of the files that no longer count.

    def truncate_from(self, index: int, before: Located | None) -> list[str]:
        """Forget the entries from `index` on. `before` is where the entry at `index - 1` lies; None: the first
        segment becomes empty."""
        gone: list[str] = []
        # The segment of entry `index - 1` stays and becomes active, even if `index` begins the next one.
        while self._segments[-1].first_index > max(index - 1, self.first.first_index):
            gone += self._paths(self._segments.pop(), SEGMENT, INDEX)
        segment = self._segments[-1]
        if index <= segment.last_index:
            if segment.sealed:
                gone += self._paths(segment, INDEX)  # it is written again when the segment is full again
            if before is None:
                segment.cut(None, 0, None)
            else:
                segment.cut(before.header, before.position, before.max_timestamp_us)
        self._terms.cut_from(index)
        self.cuts += 1
        self._note_ends()
        return gone

    def remove_first(self, count: int) -> list[str]:
        """Forget the oldest `count` segments."""
        gone = [path for segment in self._segments[:count] for path in self._paths(segment, SEGMENT, INDEX, SNAPSHOT)]
        del self._segments[:count]
        self.cuts += 1
        self._note_ends()
        self._terms.cut_before(self.first.first_index)
        return gone

    def _paths(self, segment: Segment, *kinds: str) -> list[str]:
        return [in_group(self.directory, segment.first_index, kind) for kind in kinds]


def make_index(segment: Segment, terms: TermRuns, last_head: bytes) -> IndexFile:
    """The index file of a full segment, whose last frame begins with `last_head`."""
    assert segment.last is not None
    return IndexFile(
        first_index=segment.first_index,
        end=segment.end,
        last=segment.last,
        last_head=last_head,
        last_position=segment.last_position,
        max_timestamp_us=segment.max_timestamp_us,
        sparse=segment.sparse,
        runs=terms.between(segment.first_index, segment.last_index),
    )
