"""Reads of published batches from the segments in which they lie, as functions for the executor.

A PUBLISH entry of a large transaction is far behind its batches, which may lie in several segments, between entries of
others. `frames_of` reads them, and verifies their checksums. `sendable_frames` leaves large batches unread, to be sent
from their file, and verifies the headers of their entries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from tinymq.base.errors import CorruptData, StorageError
from tinymq.base.value import value
from tinymq.format.entry import HEADER_SIZE, EntryHeader, parse_header
from tinymq.format.made_frames import made_head, misfit
from tinymq.format.transactional import STAGED_HEAD_SIZE, Item
from tinymq.log.files.files import File, Files, RealFile
from tinymq.log.segment.reads import (
    SENDS_FILES,
    SENT_BATCH_BYTES_MIN,
    SENT_FRAMES_MAX,
    SENT_SHARE_MIN,
    Frames,
    Piece,
    StoredFrames,
    damaged,
    open_segment,
)

BEFORE_BATCH = HEADER_SIZE + STAGED_HEAD_SIZE  # bytes of a STAGED entry in front of its batch


class IndexRow(NamedTuple):
    """A row of a sparse index."""

    entry_index: int
    position: int  # of that entry's frame


@value
class StagedRun:
    """Batches to read that lie in one segment, in this order."""

    path: str
    rows: Sequence[IndexRow]  # from the last one at or before the first batch to that of the last batch
    items: Sequence[Item]


@value
class PublishedRun:
    """Batches that follow each other in a PUBLISH entry, of which at least one is read from a segment."""

    publish: EntryHeader
    runs: Sequence[StagedRun]
    cached: Sequence[tuple[Item, memoryview]]  # those behind them, which are in memory

    @property
    def size(self) -> int:
        """Bytes of all frames."""
        items = [*(item for run in self.runs for item in run.items), *(item for item, _ in self.cached)]
        return sum(HEADER_SIZE + item.length for item in items)


def frames_of(files: Files, batches: PublishedRun) -> bytes:
    """The batches, each under the header that is made for it. Raises CorruptData."""
    parts: list[bytes | memoryview] = []
    for run in batches.runs:
        file = open_segment(files, run.path)
        try:
            neighbours = _neighbours(run.items)
            firsts = StagedRun(run.path, run.rows, [items[0] for items in neighbours])
            for items, (_, position, _) in zip(neighbours, _places(file, firsts), strict=True):
                for item, batch in _read(file, position, items):
                    parts += made_head(batches.publish, item), batch
        finally:
            file.close()
    for item, cached in batches.cached:
        parts += made_head(batches.publish, item), cached
    return b"".join(parts)


def _neighbours(items: Sequence[Item]) -> list[list[Item]]:
    """The items in groups whose entries follow each other."""
    groups: list[list[Item]] = []
    for item in items:
        if groups and item.entry_index == groups[-1][-1].entry_index + 1:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def _read(file: File, position: int, items: Sequence[Item]) -> Iterator[tuple[Item, memoryview]]:
    """The verified batches of neighbours, of which the first one's entry is at `position`. One read for all."""
    view = memoryview(file.read(position, sum(BEFORE_BATCH + item.length for item in items)))
    at = 0
    for item in items:
        end = at + BEFORE_BATCH + item.length
        try:
            problem = misfit(item, parse_header(view, at), view[at + BEFORE_BATCH : end])
        except CorruptData as error:
            problem = error.message
        if problem is not None:
            raise damaged(file.path, position + at, item.entry_index, problem)
        yield item, view[at + BEFORE_BATCH : end]
        at = end


def sendable_frames(files: Files, batches: PublishedRun) -> Frames:
    """As `frames_of`, for a caller that can send parts of a file. They may be fewer, as they are in one file."""
    return _sendable(files, batches) or frames_of(files, batches)


def _sendable(files: Files, batches: PublishedRun) -> StoredFrames | None:
    """The frames as parts of their file; None if they have to be read."""
    run = batches.runs[0]
    large = _large(run.items)
    if not SENDS_FILES or sum(HEADER_SIZE + item.length for item in large) < SENT_SHARE_MIN * batches.size:
        return None
    file = open_segment(files, run.path)
    stored = None
    try:
        if isinstance(file, RealFile):
            with suppress(CorruptData, StorageError):  # the read that follows says where the damage is
                places = list(_places(file, StagedRun(run.path, run.rows, large)))
                pieces = [
                    (made_head(batches.publish, item), position + BEFORE_BATCH, item.length)
                    for item, position, _ in places
                ]
                fits = not any(misfit(item, header) for item, _, header in places)
                if fits and pieces[-1][1] + pieces[-1][2] <= file.size():
                    _load(file, pieces)
                    base, last = batches.publish.base_offset, large[-1]
                    stored = StoredFrames(file, pieces, (base + large[0].first, base + last.first + last.record_count))
        return stored
    finally:
        if stored is None:
            file.close()


def _large(items: Sequence[Item]) -> list[Item]:
    """The first of these, as long as it is cheaper to send them than to read them."""
    found: list[Item] = []
    for item in items[:SENT_FRAMES_MAX]:
        if item.length < SENT_BATCH_BYTES_MIN:
            break
        found.append(item)
    return found


def _load(file: RealFile, pieces: Sequence[Piece]) -> None:
    """Have the system read the parts, in one step if there is little else between them."""
    start, end = pieces[0][1], pieces[-1][1] + pieces[-1][2]
    if end - start <= 2 * sum(length for _, _, length in pieces):
        file.load(start, end - start)
        return
    for _, position, length in pieces:
        file.load(position, length)


def _places(file: File, run: StagedRun) -> Iterator[tuple[Item, int, EntryHeader]]:
    """Each batch with the position and the header of the entry that it names."""
    index, position = run.rows[0]
    for item in run.items:
        row = run.rows[bisect_right(run.rows, item.entry_index, key=_index) - 1]
        index, position = max((index, position), row)  # indexes and positions rise together
        while True:
            header = _header(file, run, position, index)
            if index == item.entry_index:
                break
            index, position = index + 1, position + header.size
        yield item, position, header
        index, position = index + 1, position + header.size


def _header(file: File, run: StagedRun, position: int, index: int) -> EntryHeader:
    """The header at `position`, which must be that of entry `index`."""
    try:
        header = parse_header(file.read(position, HEADER_SIZE))
    except CorruptData as error:
        raise damaged(run.path, position, index, error.message) from error
    if header.index != index:
        raise damaged(run.path, position, index, f"found entry {header.index}")
    return header


def _index(row: IndexRow) -> int:
    return row.entry_index
