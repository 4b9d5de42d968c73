"""Which batches without offsets to copy to the end of the log, so that old segments can go. Pure.

A segment stays while an entry in it has a batch that waits, or one of a transaction without an end, and so do all
segments behind it. When retention has reached segments that are mostly empty of such batches, the leader copies those
that lie in the oldest ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tinymq.broker.state.delayed import DelayedBatch
from tinymq.broker.state.staged import StagedBatch, StagedEntry
from tinymq.format import delayed, transactional
from tinymq.format.entry import HEADER_SIZE

PINNED_MAX = 2  # kept segments may take this many times the bytes of the batches staged in them
COPIED_BYTES_MAX = 4 * 1024 * 1024  # in one check of retention: users' writes come first


class SegmentBounds(NamedTuple):
    """A closed segment of a log."""

    first_index: int
    last_index: int
    bytes: int


class StoredBatch(NamedTuple):
    """A batch without offsets, where it lies."""

    entry_index: int
    frame_bytes: int  # of its entry
    batch: int | StagedBatch  # the schedule id of a delayed batch, or the place of a batch in its transaction


def stored_delayed(batch: DelayedBatch) -> StoredBatch:
    return StoredBatch(batch.entry_index, HEADER_SIZE + delayed.STAGED_HEAD_SIZE + batch.bytes, batch.schedule_id)


def stored_transactional(batch: StagedBatch, entry: StagedEntry) -> StoredBatch:
    return StoredBatch(entry.entry_index, HEADER_SIZE + transactional.STAGED_HEAD_SIZE + entry.length, batch)


def due_copies(
    pinned: Sequence[SegmentBounds], stored: Sequence[StoredBatch], is_movable: Callable[[StoredBatch], bool]
) -> list[StoredBatch]:
    """The batches to copy now, those of the oldest entries first.

    `pinned` are the segments that retention would remove if no batch were in them, and `stored` all batches there.
    """
    taken = sum(segment.bytes for segment in pinned)
    if taken <= PINNED_MAX * sum(batch.frame_bytes for batch in stored):
        return []
    copies, size = list[StoredBatch](), 0
    for batch in sorted(stored, key=lambda batch: batch.entry_index):
        if not is_movable(batch):
            continue
        size += batch.frame_bytes
        if copies and size > COPIED_BYTES_MAX:
            break
        copies.append(batch)
    return copies
