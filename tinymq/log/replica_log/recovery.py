"""Opening a group's log: what on disk counts, what a crash tore off, and what is damage.

| found | at or below the mark | above the mark |
|---|---|---|
| a frame that is not whole or not chained | damage: nothing is cut, the replica stops | torn: cut there |
| a segment missing, or its header bad | damage | torn: it and all later segments are removed |
| whole frames | they count | they are written again in place and synced, and then they count |

Frames above the mark are written again because reading them proves nothing. After a kill they may be in the page cache
alone, and after a failed sync the kernel calls its failed pages clean (Rebello et al., ATC '20).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tinymq.base.errors import CorruptData, UnsupportedVersion
from tinymq.format.entry import HEADER_SIZE, EntryHeader, parse_entry, parse_header
from tinymq.log.broker_files.durability_marks import DAMAGED, SUSPECT, DurabilityMark
from tinymq.log.files.files import File, Files
from tinymq.log.files.layout import INDEX, SEGMENT, SNAPSHOT, first_index_of, group_directory, in_group
from tinymq.log.files.record_file import read_whole
from tinymq.log.replica_log.segment_list import make_index
from tinymq.log.replica_log.terms import TermRuns
from tinymq.log.segment.index import IndexFile, pack_index, parse_index
from tinymq.log.segment.scan import scan_segment
from tinymq.log.segment.segment import SEGMENT_HEADER_SIZE, Segment, SegmentHeader, parse_segment_header
from tinymq.log.segment.snapshot_files import read_snapshot

REWRITE_BYTES = 4 * 1024 * 1024  # read and written again at a time


@dataclass(slots=True)
class Recovered:
    """The state of a log at its opening. With `damage`, `segments` are those before the damage, and nothing on disk was
    changed.
    """

    segments: list[Segment] = field(default_factory=list)
    terms: TermRuns = field(default_factory=TermRuns)
    snapshots: set[int] = field(default_factory=set)  # last included indexes of the durable snapshots
    applied_index: int = 0  # of `snapshot`
    snapshot: bytes | None = None  # the newest one
    base_time_us: int = 0  # append time of the entry before the first one, if a snapshot has it
    damage: str | None = None
    tail_intact: bool = True  # the marked entry is there and whole, even if others are not

    @property
    def last_index(self) -> int:
        return self.segments[-1].last_index if self.segments else 0


class _Damage(Exception):
    """Something at or below the mark is missing, or not what was written."""


def recover(files: Files, mark: DurabilityMark, segment_bytes: int) -> Recovered | None:
    """Open the log of `mark.group`. Returns None if the log does not exist and its mark claims no entry. Blocks."""
    return LogRecovery(files, mark, segment_bytes).run()


class LogRecovery:
    """Opens one log: reads its segments, decides what is torn or damaged, and repairs the tail."""

    def __init__(self, files: Files, mark: DurabilityMark, segment_bytes: int) -> None:
        self._files = files
        self._mark = mark
        self._segment_bytes = segment_bytes
        self._directory = group_directory(mark.group)
        # A suspect mark may be older than the durable one was. Anything found may then be durable, so nothing is torn.
        self._suspect = bool(mark.flags & SUSPECT)
        self._found = Recovered()
        self._scanned: list[Segment] = []  # read frame by frame, not opened from their index files
        self._last_clean: Segment | None = None  # the last segment that has only zeros behind its frames
        self._torn: list[int] = []  # first indexes of segments to remove
        self._marked: tuple[EntryHeader, int] | None = None  # the marked entry, and the position of its frame

    def run(self) -> Recovered | None:
        """Read first, change later: up to `_settle` nothing on disk is written, so damage leaves all as it was."""
        names = self._files.list(self._directory)
        firsts = [i for name in names if (i := first_index_of(name, SEGMENT)) is not None]
        # Segments below the mark's first index are left over from a removal that a crash cut short.
        kept = [i for i in firsts if self._suspect or i >= self._mark.first_index]
        try:
            self._read_segments(kept)
            if not self._found.last_index and not self._mark.index and not self._suspect:
                return None
            self.check_mark()
            if self._mark.flags & DAMAGED:
                raise _Damage("a read found damage before the broker was started again")
            self._read_snapshots([i for name in names if (i := first_index_of(name, SNAPSHOT)) is not None])
        except _Damage as damage:
            self._found.damage = str(damage)
            self._found.tail_intact = self._tail_intact()
            return self._found
        self._settle(names)
        return self._found

    # Reading

    def _read_segments(self, firsts: list[int]) -> None:
        if firsts and firsts[0] != self._mark.first_index and not self._suspect:
            raise _Damage(f"the log begins at entry {firsts[0]}, not {self._mark.first_index}: a segment is missing")
        for position, first in enumerate(firsts):
            problem = self._read_segment(first, firsts[position + 1 :])
            if problem is not None:
                self.refuse_below_mark(first, problem)
                self._torn = [i for i in firsts[position:] if i not in {s.first_index for s in self._found.segments}]
                return

    def refuse_below_mark(self, first: int, problem: str) -> None:
        """Decide on a problem in segment `first`: it is torn, or raise _Damage."""
        if self._suspect or first < self._mark.segment or self._found.last_index < self._mark.index:
            raise _Damage(problem)

    def _read_segment(self, first: int, later: list[int]) -> str | None:
        """Add segment `first` to what is found, up to its first problem. Returns the problem, or None."""
        path = in_group(self._directory, first, SEGMENT)
        file = self._files.open(path)
        try:
            try:
                header = parse_segment_header(file.read(0, SEGMENT_HEADER_SIZE))
            except CorruptData as error:
                return f"{path}: {error.message}"
            if problem := self._misplaced(header, first):
                return f"{path}: {problem}"
            segment = Segment(header, path)
            # A full segment below the marked one is opened by its index, so that a start does not read the whole log.
            # A later read verifies each frame that it returns.
            if first < self._mark.segment and later and self._from_index(segment, file, later[0]):
                return None
            self._found.segments.append(segment)
            self._scanned.append(segment)
            bad = scan_segment(file, segment, self._note)
            if bad is not None:
                return f"{path} at byte {bad.position}: {bad.what}"
            self._last_clean = segment
            return None
        finally:
            file.close()

    def _header_of(self, first: int) -> SegmentHeader:
        file = self._files.open(in_group(self._directory, first, SEGMENT))
        try:
            return parse_segment_header(file.read(0, SEGMENT_HEADER_SIZE))
        finally:
            file.close()

    def _misplaced(self, header: SegmentHeader, first: int) -> str | None:
        """Why the segment with this header cannot follow those found so far; None if it can."""
        if header.group != self._mark.group or header.first_index != first:
            return f"it is segment {header.first_index} of {header.group}"
        if not self._found.segments:
            return None
        before = self._found.segments[-1]
        if (first, header.prev_crc) != (before.last_index + 1, before.last_crc):
            return f"it does not follow entry {before.last_index}"
        if (header.prev_term, header.base_offset) != (before.last_term, before.next_offset):
            return f"its term or offset does not follow entry {before.last_index}"
        return None

    def _note(self, header: EntryHeader, position: int) -> None:
        self._found.terms.note(header.index, header.term)
        if header.index == self._mark.index:
            self._marked = header, position

    def _from_index(self, segment: Segment, file: File, next_first: int) -> bool:
        """Fill `segment` from its index file. Returns False if that file is missing or damaged, or does not fit the
        segment and the one after it."""
        data = read_whole(self._files, in_group(self._directory, segment.first_index, INDEX))
        if data is None:
            return False
        try:
            index = parse_index(data)
            after = self._header_of(next_first)
        except (CorruptData, UnsupportedVersion):
            return False
        ends = (index.first_index, index.last.index, index.last.header_crc)
        if ends != (segment.first_index, next_first - 1, after.prev_crc) or index.end != file.size():
            return False
        segment.sparse = index.sparse
        segment.last, segment.last_index, segment.last_position = index.last, index.last.index, index.last_position
        segment.end = index.end
        segment.max_timestamp_us = index.max_timestamp_us
        segment.sealed = True
        for first, term in index.runs:
            self._found.terms.note(first, term)
        self._found.segments.append(segment)
        return True

    def check_mark(self) -> None:
        """Raise _Damage unless the log reaches the marked entry, and that entry is the one that was marked."""
        mark = self._mark
        if not self._found.segments:
            raise _Damage("all segments are missing")
        if self._found.last_index < mark.index:
            raise _Damage(f"the log ends at entry {self._found.last_index}; it was durable up to {mark.index}")
        first = self._found.segments[0].header
        # A log that begins behind a snapshot may be marked at the entry that only the snapshot includes.
        if mark.index and mark.index == first.first_index - 1 and (first.prev_crc, first.prev_term) != (
            mark.crc, mark.term,
        ):  # fmt: skip
            raise _Damage(f"the log does not begin behind entry {mark.index} as it was marked")
        if mark.index and first.first_index <= mark.index:
            if self._marked is None:  # the mark names another segment than the one that has the entry
                raise _Damage(f"entry {mark.index} is not where it was marked as durable")
            header, position = self._marked
            if (header.header_crc, header.term, position) != (mark.crc, mark.term, mark.position):
                raise _Damage(f"entry {mark.index} is not the one that was marked as durable")

    def _tail_intact(self) -> bool:
        """Whether the marked entry itself is whole, in a log that is damaged somewhere."""
        mark = self._mark
        if not mark.index:
            return not self._suspect
        try:
            file = self._files.open(in_group(self._directory, mark.segment, SEGMENT))
            try:
                head = file.read(mark.position, HEADER_SIZE)
                entry = parse_entry(head + file.read(mark.position + HEADER_SIZE, parse_header(head).length))
            finally:
                file.close()
        except (FileNotFoundError, CorruptData):
            return False
        return (entry.index, entry.term, entry.header.header_crc) == (mark.index, mark.term, mark.crc)

    def _read_snapshots(self, firsts: list[int]) -> None:
        """Read the snapshots at the starts of these segments, and keep the newest."""
        recovered = self._found
        for first in firsts:
            path = in_group(self._directory, first, SNAPSHOT)
            # The last entry of the snapshot must be the one before the segment. Its checksum identifies it.
            crc = next((s.header.prev_crc for s in recovered.segments if s.first_index == first), None)
            if crc is None and first - 1 == recovered.last_index:
                crc = recovered.segments[-1].last_crc
            if crc is None:
                continue  # its entries were cut away
            try:
                stored = read_snapshot(self._files, path, first - 1, crc)
            except CorruptData:
                continue  # an older snapshot serves as well, with more entries to apply again
            recovered.snapshots.add(stored.applied_index)
            recovered.applied_index, recovered.snapshot = stored.applied_index, stored.state
            if first == recovered.segments[0].first_index:
                recovered.base_time_us = stored.append_time_us
        if recovered.applied_index < recovered.segments[0].first_index - 1:
            raise _Damage(f"the log begins at entry {recovered.segments[0].first_index}, and no snapshot is readable")

    # Settling: from here on the disk is changed

    def _settle(self, names: list[str]) -> None:
        """Truncate the torn tail, remove leftover files, and make the remaining entries durable."""
        self._remove_torn()
        self._remove_leftovers(names)
        *full, last = self._found.segments
        for segment in full:
            segment.sealed = True
        last.sealed = last.is_full(self._segment_bytes)
        self._make_durable()
        self._write_indexes()

    def _remove_torn(self) -> None:
        """Remove the files of segments behind the first problem, none of whose entries was acknowledged."""
        segments = self._found.segments
        # An empty segment at the end has no entry to keep; the log rolls again when it needs one.
        while len(segments) > 1 and segments[-1].last is None:
            self._torn.append(segments.pop().first_index)
        for first in self._torn:
            for kind in (SEGMENT, INDEX):
                self._files.remove(in_group(self._directory, first, kind))

    def _remove_leftovers(self, names: list[str]) -> None:
        """Remove files in front of the log, where retention was interrupted, and snapshots of entries that are gone."""
        begin, end = self._found.segments[0].first_index, self._found.last_index
        for name in names:
            for kind in (SEGMENT, INDEX, SNAPSHOT):
                first_index = first_index_of(name, kind)
                if first_index is not None and (first_index < begin or (kind == SNAPSHOT and first_index - 1 > end)):
                    self._files.remove(f"{self._directory}/{name}")

    def _make_durable(self) -> None:
        """Write again, and sync, all entries and snapshots that the mark does not call durable.

        They may be in the page cache only. After a failed sync the kernel calls such pages clean, so a sync alone would
        not write them.
        """
        recovered = self._found
        dirty: list[File] = []
        try:
            for segment in self._scanned:
                if segment.first_index >= self._mark.segment and segment in recovered.segments:
                    dirty += self.rewrite(segment)
            for applied_index in recovered.snapshots:
                if applied_index > self._mark.snapshot_index:
                    dirty.append(self._rewrite_file(in_group(self._directory, applied_index + 1, SNAPSHOT)))
            if dirty:
                self._files.sync(dirty)
                self._files.sync_directory(self._directory)
        finally:
            for file in dirty:
                file.close()

    def rewrite(self, segment: Segment) -> list[File]:
        """Write the frames above the mark again in place, and cut what follows them. Returns the file if it changed."""
        position = 0
        if segment.first_index == self._mark.segment and self._marked is not None:
            position = self._mark.position + self._marked[0].size
        file = self._files.open(segment.path)
        zeros_behind = segment is self._last_clean and not segment.sealed  # the next frames go into these zeros
        if position == segment.end and (zeros_behind or file.size() == segment.end):
            file.close()
            return []
        self._copy(file, position, segment.end)
        if not zeros_behind:
            file.truncate(segment.end)
        return [file]

    def _rewrite_file(self, path: str) -> File:
        file = self._files.open(path)
        self._copy(file, 0, file.size())
        return file

    @staticmethod
    def _copy(file: File, position: int, end: int) -> None:
        """Read and write the bytes from `position` to `end`, which makes their pages dirty again."""
        while position < end:
            data = file.read(position, min(REWRITE_BYTES, end - position))
            file.write(position, [data])
            position += len(data)

    def _write_indexes(self) -> None:
        """Write the index files that were missing or damaged, without a sync: they can be made again at any time."""
        for segment in self._scanned:
            if segment.sealed and segment in self._found.segments:
                file = self._files.open(in_group(self._directory, segment.first_index, INDEX), create=True)
                try:
                    file.truncate(0)
                    file.write(0, [pack_index(_index_of(self._files, segment, self._found.terms))])
                finally:
                    file.close()


def _index_of(files: Files, segment: Segment, terms: TermRuns) -> IndexFile:
    """The index of a full segment, whose last header is read from its file."""
    assert segment.last is not None
    file = files.open(segment.path)
    try:
        head = file.read(segment.last_position, HEADER_SIZE)
    finally:
        file.close()
    return make_index(segment, terms, head)
